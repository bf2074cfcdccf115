"""Numbers that FP16 cannot hold, and operators written out."""

import numpy as np
import onnx

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


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


def _batch_norm(variance: float) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 3, 8])
    ones, zeros = f32(np.ones(3)), f32(np.zeros(3))
    norm = ("BatchNormalization", x, ones, zeros, zeros, f32(np.full(3, variance)))
    return s.proto(s.op(*norm, name="norm"))


@fault("constant-beyond-fp16", "warning", "norm")
def loud_channels(ill: bool) -> onnx.ModelProto:
    return _batch_norm(1e9 if ill else 1e4)


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


@fault("norm-written-out", "warning", "mean")
def layer_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=13 if ill else 17)
    x = s.input("x", [2, 8, 16])
    if ill:
        return s.proto(_layer_norm(s, x, [-1], WEIGHT))
    return s.proto(s.op("LayerNormalization", x, WEIGHT, WEIGHT, epsilon=EPS))


@fault("norm-written-out", "warning", "mean")
def layer_norm_of_a_late_opset(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=18)
    x = s.input("x", [2, 8, 16])
    return s.proto(_layer_norm(s, x, [-1], WEIGHT) if ill else s.op("Softmax", x))


@fault("norm-written-out", "warning", "mean")
def layer_norm_over_channels(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 16, 4, 4])
    return s.proto(_layer_norm(s, x, [1], WEIGHT[:, None, None]) if ill else s.op("Relu", x))


@fault("norm-written-out", "warning", "mean")
def layer_norm_with_products(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 8, 16])
    centred = s.op("Sub", x, _mean(s, x, [2], "mean"), name="centre")
    variance = _mean(s, s.op("Mul", centred, centred, name="square"), [2], "variance")
    inverse = s.op("Pow", s.op("Add", EPS, variance, name="eps"), -0.5, name="inverse")
    # Without the fault, a scale by the spread of something else.
    other = centred if ill else s.input("z", [2, 8, 16])
    return s.proto(s.op("Mul", other, inverse, name="product"))


@fault("norm-written-out", "warning", "mean")
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


@fault("norm-written-out", "warning", "square")
def rms_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=17 if ill else 23)
    x = s.input("x", [2, 8, 16])
    if not ill:
        return s.proto(s.op("RMSNormalization", x, WEIGHT, epsilon=EPS))
    mean = _mean(s, s.op("Pow", x, 2.0, name="square"), [-1], "mean")
    root = s.op("Sqrt", s.op("Add", mean, EPS, name="eps"), name="root")
    return s.proto(s.op("Mul", s.op("Div", x, root, name="divide"), WEIGHT, name="scale"))
