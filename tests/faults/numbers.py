"""Numbers that FP16 cannot hold, and operators written out."""

import numpy as np
import onnx
from onnx import TensorProto

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


@fault("eps-vanishes", "warning", "eps")
def logarithm(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 8])
    return s.proto(s.op("Log", s.op("Add", x, 1e-10 if ill else 1e-4, name="eps"), name="log"))


@fault("eps-vanishes", "warning", "bound")
def clipped_divisor(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x, z = s.input("x", [1, 8]), s.input("z", [1, 8])
    bounded = s.op("Clip", z, 1e-12 if ill else 1e-3, name="bound")
    return s.proto(s.op("Div", x, bounded, name="divide"))


@fault("eps-vanishes", "warning", "eps")
def numerator(ill: bool) -> onnx.ModelProto:
    """Without the fault, the sum is what is divided, and may be zero."""
    s = Sketch()
    x, z = s.input("x", [1, 8]), s.input("z", [1, 8])
    small = s.op("Add", x, 1e-10, name="eps")
    return s.proto(s.op("Div", *((z, small) if ill else (small, z)), name="divide"))


@fault("eps-subnormal", "info", "eps")
def root(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 8])
    return s.proto(s.op("Sqrt", s.op("Add", x, 1e-5 if ill else 1e-4, name="eps"), name="root"))


def _masked(value: float, *, choose: bool, how: str = "Softmax") -> onnx.ModelProto:
    s = Sketch()
    x, mask = s.input("x", [1, 8]), s.input("mask", [1, 8], TensorProto.BOOL)
    if choose:
        scores = s.op("Where", mask, x, value, name="mask")
    else:
        fill = s.op(
            "Mul", s.op("Cast", mask, to=TensorProto.FLOAT, name="cast"), value, name="mask"
        )
        scores = s.op("Add", x, fill, name="add")
    return s.proto(s.op(how, scores, name="end"))


@fault("mask-constant", "warning", "mask")
def lowest_mask(ill: bool) -> onnx.ModelProto:
    return _masked(float(np.finfo(np.float32).min) if ill else -1e4, choose=False)


@fault("mask-constant", "warning", "mask")
def mask_of_a_billion(ill: bool) -> onnx.ModelProto:
    return _masked(-1e9 if ill else -1e4, choose=True)


@fault("mask-constant", "warning", "mask")
def mask_at_the_edge(ill: bool) -> onnx.ModelProto:
    return _masked(-65504.0, choose=False, how="Softmax" if ill else "Relu")


@fault("mask-constant", "info", "mask")
def infinite_mask(ill: bool) -> onnx.ModelProto:
    return _masked(-np.inf if ill else -1e4, choose=True)


@fault("constant-beyond-fp16", "warning", "matmul")
def huge_weights(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 8])
    return s.proto(s.op("MatMul", x, f32(np.full((8, 4), 1e5 if ill else 6e4)), name="matmul"))


@fault("constant-beyond-fp16", "warning", "outer")
def huge_bound(ill: bool) -> onnx.ModelProto:
    """Without the fault, the huge number only bounds another."""
    s = Sketch()
    x = s.input("x", [1, 8])
    op = ("Mul", x, 1e6) if ill else ("Clip", x, -1.0, float(np.finfo(np.float32).max))
    return s.proto(s.op(*op, name="outer"))


@fault("constant-subnormal", "warning", "matmul")
def tiny_weights(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 8])
    weights = f32(np.full((8, 4), 1e-6))
    # A minority of tiny weights is usual.
    weights[: 3 if ill else 4] = 0.5
    return s.proto(s.op("MatMul", x, weights, name="matmul"))


@fault("constant-subnormal", "warning", "scale")
def tiny_addend(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 8])
    return s.proto(s.op("Mul" if ill else "Add", x, 1e-7, name="scale"))


def _batch_norm(variance: float) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 3, 8])
    ones, zeros = f32(np.ones(3)), f32(np.zeros(3))
    norm = ("BatchNormalization", x, ones, zeros, zeros, f32(np.full(3, variance)))
    return s.proto(s.op(*norm, name="norm"))


@fault("constant-beyond-fp16", "warning", "norm")
def loud_channels(ill: bool) -> onnx.ModelProto:
    return _batch_norm(1e9 if ill else 1e4)


@fault("fp64", "warning", "double")
def double(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [4], TensorProto.DOUBLE if ill else TensorProto.FLOAT)
    return s.proto(s.op("Relu", x, name="double"))


EPS = 1e-3
"""No rule has anything against it."""
WEIGHT = np.linspace(0.5, 1.5, 16, dtype=np.float32)


def _mean(s: Sketch, x: str, axes: list[int], name: str) -> str:
    if s.opset < 18:
        return s.op("ReduceMean", x, axes=axes, name=name)
    return s.op("ReduceMean", x, axes, name=name)


def _layer_norm(s: Sketch, x: str, axes: list[int], weight: np.ndarray) -> str:
    centred = s.op("Sub", x, _mean(s, x, axes, "mean"), name="centre")
    variance = _mean(s, s.op("Pow", centred, 2.0, name="square"), axes, "variance")
    root = s.op("Sqrt", s.op("Add", variance, EPS, name="eps"), name="root")
    y = s.op("Div", centred, root, name="divide")
    return s.op("Add", s.op("Mul", y, weight, name="scale"), weight, name="shift")


@fault("layernorm-written-out", "warning", "mean")
def layer_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=13 if ill else 17)
    x = s.input("x", [2, 8, 16])
    if ill:
        return s.proto(_layer_norm(s, x, [-1], WEIGHT))
    return s.proto(s.op("LayerNormalization", x, WEIGHT, WEIGHT, epsilon=EPS))


@fault("layernorm-written-out", "warning", "mean")
def layer_norm_of_a_late_opset(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=18)
    x = s.input("x", [2, 8, 16])
    return s.proto(_layer_norm(s, x, [-1], WEIGHT) if ill else s.op("Softmax", x))


@fault("layernorm-written-out", "warning", "mean")
def layer_norm_over_channels(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 16, 4, 4])
    return s.proto(_layer_norm(s, x, [1], WEIGHT[:, None, None]) if ill else s.op("Relu", x))


@fault("layernorm-written-out", "warning", "mean")
def layer_norm_with_products(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 8, 16])
    centred = s.op("Sub", x, _mean(s, x, [2], "mean"), name="centre")
    variance = _mean(s, s.op("Mul", centred, centred, name="square"), [2], "variance")
    inverse = s.op("Pow", s.op("Add", EPS, variance, name="eps"), -0.5, name="inverse")
    # Without the fault, a scale by the spread of something else.
    other = centred if ill else s.input("z", [2, 8, 16])
    return s.proto(s.op("Mul", other, inverse, name="product"))


@fault("instancenorm-written-out", "warning", "mean")
def instance_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=17)
    x = s.input("x", [2, 16, 4, 4])
    if not ill:
        return s.proto(s.op("InstanceNormalization", x, WEIGHT, WEIGHT, epsilon=EPS))
    centred = s.op("Sub", x, _mean(s, x, [2, 3], "mean"), name="centre")
    variance = _mean(s, s.op("Mul", centred, centred, name="square"), [2, 3], "variance")
    root = s.op("Sqrt", s.op("Add", variance, EPS, name="eps"), name="root")
    normal = s.op("Div", centred, root, name="quotient")
    return s.proto(s.op("Mul", normal, WEIGHT[:, None, None], name="scale"))


@fault("rmsnorm-written-out", "warning", "square")
def rms_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=17 if ill else 23)
    x = s.input("x", [2, 8, 16])
    if not ill:
        return s.proto(s.op("RMSNormalization", x, WEIGHT, epsilon=EPS))
    mean = _mean(s, s.op("Pow", x, 2.0, name="square"), [-1], "mean")
    root = s.op("Sqrt", s.op("Add", mean, EPS, name="eps"), name="root")
    return s.proto(s.op("Mul", s.op("Div", x, root, name="divide"), WEIGHT, name="scale"))


@fault("gelu-written-out", "info", "scale")
def gelu(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=17 if ill else 20)
    x = s.input("x", [2, 16])
    if not ill:
        return s.proto(s.op("Gelu", x))
    erf = s.op("Erf", s.op("Div", x, 2**0.5, name="scale"), name="erf")
    product = s.op("Mul", x, s.op("Add", erf, 1.0, name="one"), name="product")
    return s.proto(s.op("Mul", product, 0.5, name="half"))


@fault("gelu-written-out", "info", "cube")
def gelu_by_tanh(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 16])
    if not ill:
        return s.proto(s.op("Mul", x, s.op("Tanh", x)))
    cube = s.op("Mul", s.op("Pow", x, 3.0, name="cube"), 0.044715, name="small")
    inside = s.op("Mul", s.op("Add", x, cube, name="sum"), (2 / np.pi) ** 0.5, name="scale")
    gate = s.op("Add", s.op("Tanh", inside, name="tanh"), 1.0, name="one")
    return s.proto(s.op("Mul", s.op("Mul", x, gate, name="product"), 0.5, name="half"))
