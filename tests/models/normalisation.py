"""Normalisations in every spelling: their squares leave the range and come back after the root."""

import numpy as np
import onnx

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Normalisation written out"
LAYER_NORM = ("NVIDIA/TensorRT#2781", "NVIDIA/TensorRT#4355", "microsoft/onnxruntime#13639")
GROUPED = ("microsoft/onnxruntime#10079", "NVIDIA/TensorRT#2691")
SQUARED = {"square", "overflow"}


def averaged(s: Sketch, x: str, axes: list[int], name: str) -> str:
    """Add a mean over `axes`, which are an attribute up to opset 17 and an input from 18 on."""
    if s.opset >= 18:
        return s.op("ReduceMean", x, axes, name=name)
    return s.op("ReduceMean", x, name=name, axes=axes)


def spread(s: Sketch, centred: str, axes: list[int]) -> str:
    """Add mean(centred²) + 1e-5."""
    square = s.op("Pow", centred, f32(2.0), name="square")
    return s.op("Add", averaged(s, square, axes, "variance"), f32(1e-5), name="eps")


@illness(FAMILY, *LAYER_NORM)
def layer_norm(peak: float = 5e3) -> Ill:
    """LayerNorm as Pow, ReduceMean, Sqrt and Div: the squares reach 2.5e7."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    centred = s.op("Sub", x, averaged(s, x, [-1], "mean"), name="centre")
    root = s.op("Sqrt", spread(s, centred, [-1]), name="root")
    y = s.op("Div", centred, root, name="divide")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 32)), name="gamma")
    inputs = {"x": signals(1, 4, 32, seed=5, peak=peak)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, *LAYER_NORM)
def layer_norm_product() -> Ill:
    """LayerNorm as Mul(x, x), Sqrt, Reciprocal and Mul."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    centred = s.op("Sub", x, averaged(s, x, [-1], "mean"), name="centre")
    square = s.op("Mul", centred, centred, name="square")
    shifted = s.op("Add", averaged(s, square, [-1], "variance"), f32(1e-5), name="eps")
    inverse = s.op("Reciprocal", s.op("Sqrt", shifted, name="root"), name="inverse")
    y = s.op("Mul", centred, inverse, name="normal")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 32)), name="gamma")
    inputs = {"x": signals(1, 4, 32, seed=40, peak=5e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, "roboflow/rf-detr#176")
def layer_norm_channels() -> Ill:
    """LayerNorm over the channels of NCHW, as ConvNeXt has it."""
    s = Sketch()
    x = s.input("x", [1, 8, 4, 4])
    centred = s.op("Sub", x, averaged(s, x, [1], "mean"), name="centre")
    root = s.op("Sqrt", spread(s, centred, [1]), name="root")
    y = s.op("Div", centred, root, name="divide")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 8).reshape(8, 1, 1)), name="gamma")
    inputs = {"x": signals(1, 8, 4, 4, seed=41, peak=5e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, *LAYER_NORM)
def layer_norm_sums() -> Ill:
    """LayerNorm whose means are a ReduceSum times 1/n."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    mean = s.op("Mul", s.op("ReduceSum", x, [-1], name="sum"), f32(1 / 32), name="mean")
    centred = s.op("Sub", x, mean, name="centre")
    square = s.op("Pow", centred, f32(2.0), name="square")
    squares = s.op("ReduceSum", square, [-1], name="sum_of_squares")
    variance = s.op("Mul", squares, f32(1 / 32), name="variance")
    root = s.op("Sqrt", s.op("Add", variance, f32(1e-5), name="eps"), name="root")
    y = s.op("Div", centred, root, name="divide")
    inputs = {"x": signals(1, 4, 32, seed=42, peak=1e3)}
    kept = {"square", "sum_of_squares", "variance", "eps", "root"}
    return Ill(s.proto(y), inputs, kept, SQUARED)


@illness(FAMILY, *LAYER_NORM)
def layer_norm_axes_input() -> Ill:
    """LayerNorm at opset 18, where the axes of ReduceMean are an input."""
    s = Sketch(18)
    x = s.input("x", [1, 4, 32])
    centred = s.op("Sub", x, averaged(s, x, [-1], "mean"), name="centre")
    root = s.op("Sqrt", spread(s, centred, [-1]), name="root")
    y = s.op("Div", centred, root, name="divide")
    inputs = {"x": signals(1, 4, 32, seed=43, peak=5e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, *LAYER_NORM)
def layer_norm_power() -> Ill:
    """LayerNorm whose reciprocal root is a Pow(-0.5)."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    centred = s.op("Sub", x, averaged(s, x, [-1], "mean"), name="centre")
    inverse = s.op("Pow", spread(s, centred, [-1]), f32(-0.5), name="inverse")
    y = s.op("Mul", centred, inverse, name="normal")
    inputs = {"x": signals(1, 4, 32, seed=44, peak=5e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "inverse"}, SQUARED)


@illness(FAMILY, *LAYER_NORM)
def layer_norm_op() -> Ill:
    """LayerNormalization as one node keeps its squares in FP32: nothing to keep."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    y = s.op("LayerNormalization", x, f32(np.linspace(0.5, 1.5, 32)), name="norm")
    return Ill(s.proto(y), {"x": signals(1, 4, 32, seed=45, peak=5e3)})


@illness(FAMILY, "microsoft/onnxruntime#15752")
def rms_norm() -> Ill:
    """RMSNorm: no mean is subtracted, and an outlier's square overflows."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    root = s.op("Sqrt", spread(s, x, [-1]), name="root")
    y = s.op("Mul", x, s.op("Reciprocal", root, name="inverse"), name="normal")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 32)), name="gamma")
    inputs = {"x": signals(1, 4, 32, seed=46, peak=2e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, *GROUPED)
def instance_norm() -> Ill:
    """InstanceNorm over the pixels of each channel: the squares of values above 256."""
    s = Sketch()
    x = s.input("x", [1, 3, 8, 8])
    centred = s.op("Sub", x, averaged(s, x, [2, 3], "mean"), name="centre")
    root = s.op("Sqrt", spread(s, centred, [2, 3]), name="root")
    y = s.op("Div", centred, root, name="divide")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 3).reshape(3, 1, 1)), name="gamma")
    inputs = {"x": signals(1, 3, 8, 8, seed=47, peak=2e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, *GROUPED)
def instance_norm_op() -> Ill:
    """InstanceNormalization as one node computes in FP32 inside: nothing to keep."""
    s = Sketch()
    x = s.input("x", [1, 3, 8, 8])
    scale, bias = f32(np.linspace(0.5, 1.5, 3)), f32(np.zeros(3))
    y = s.op("InstanceNormalization", x, scale, bias, name="norm")
    return Ill(s.proto(y), {"x": signals(1, 3, 8, 8, seed=48, peak=2e3)})


@illness(FAMILY, *GROUPED)
def group_norm() -> Ill:
    """GroupNorm between two Reshapes."""
    s = Sketch()
    x = s.input("x", [1, 4, 4, 4])
    grouped = s.op("Reshape", x, [1, 2, -1], name="split")
    centred = s.op("Sub", grouped, averaged(s, grouped, [-1], "mean"), name="centre")
    root = s.op("Sqrt", spread(s, centred, [-1]), name="root")
    normal = s.op("Div", centred, root, name="divide")
    y = s.op("Reshape", normal, [1, 4, 4, 4], name="join")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 4).reshape(4, 1, 1)), name="gamma")
    inputs = {"x": signals(1, 4, 4, 4, seed=49, peak=2e3)}
    return Ill(s.proto(y), inputs, {"square", "variance", "eps", "root"}, SQUARED)


@illness(FAMILY, *GROUPED)
def group_norm_op() -> Ill:
    """GroupNormalization (opset 21) as one node keeps its squares in FP32: nothing to keep."""
    s = Sketch(21)
    x = s.input("x", [1, 4, 4, 4])
    scale, bias = f32(np.linspace(0.5, 1.5, 4)), f32(np.zeros(4))
    y = s.op("GroupNormalization", x, scale, bias, name="norm", num_groups=2)
    proto = s.proto(y)
    # ONNX infers no type for it.
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [1, 4, 4, 4])
    )
    return Ill(proto, {"x": signals(1, 4, 4, 4, seed=50, peak=2e3)})


@illness(FAMILY, "NVIDIA/TensorRT#1954")
def l2_norm() -> Ill:
    """x / √Σx² as Mul, ReduceSum, Sqrt and Div."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    square = s.op("Mul", x, x, name="square")
    root = s.op("Sqrt", s.op("ReduceSum", square, [-1], name="sum"), name="root")
    y = s.op("Div", x, root, name="divide")
    inputs = {"x": signals(1, 4, 32, seed=51, peak=1e3)}
    return Ill(s.proto(y), inputs, {"square", "sum", "root"}, SQUARED)


@illness(FAMILY, "NVIDIA/TensorRT#1954")
def l2_norm_sums() -> Ill:
    """x / √Σx² whose squares fit while their sum does not."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    square = s.op("Mul", x, x, name="square")
    root = s.op("Sqrt", s.op("ReduceSum", square, [-1], name="sum"), name="root")
    y = s.op("Div", x, root, name="divide")
    inputs = {"x": f32(np.sign(signals(1, 4, 32, seed=52)) * 150)}
    return Ill(s.proto(y), inputs, {"sum", "root"}, {"overflow"})


@illness(FAMILY, "NVIDIA/TensorRT#1954")
def l2_norm_op() -> Ill:
    """ReduceL2 and LpNormalization square inside, in FP32: a suspicion that costs nothing."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    y = s.op("Div", x, s.op("ReduceL2", x, name="norm", axes=[-1]), name="divide")
    z = s.op("LpNormalization", x, name="normalise", axis=-1, p=2)
    return Ill(s.proto(y, z), {"x": signals(1, 4, 32, seed=53, peak=1e3)})


@illness(FAMILY, "NVIDIA/TensorRT#3206")
def two_norms() -> Ill:
    """Two blocks, each a projection and a written-out RMSNorm with outliers."""
    s = Sketch()
    value = s.input("x", [1, 4, 16])
    for i in range(2):
        value = s.op("MatMul", value, weights(16, 16, seed=54 + i, scale=300), name=f"project_{i}")
        square = s.op("Pow", value, f32(2.0), name=f"square_{i}")
        mean = s.op("ReduceMean", square, name=f"mean_{i}", axes=[-1])
        root = s.op("Sqrt", s.op("Add", mean, f32(1e-6), name=f"eps_{i}"), name=f"root_{i}")
        value = s.op("Div", value, root, name=f"divide_{i}")
    inputs = {"x": signals(1, 4, 16, seed=56)}
    kept = {f"{name}_{i}" for name in ("square", "mean", "eps", "root") for i in range(2)}
    return Ill(s.proto(value), inputs, kept, SQUARED)
