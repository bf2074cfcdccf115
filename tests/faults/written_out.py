"""Operators written out; without the fault, as one node or left alone."""

import numpy as np
import onnx

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32

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


@fault("groupnorm-written-out", "warning", "split")
def group_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=17 if ill else 21)
    x = s.input("x", [2, 16, 4, 4])
    if not ill:
        norm = s.op("GroupNormalization", x, WEIGHT, WEIGHT, num_groups=4, epsilon=EPS)
        proto = s.proto(norm)
        proto.graph.output[0].type.CopyFrom(proto.graph.input[0].type)
        return proto
    groups = s.op("Reshape", x, [0, 4, -1], name="split")
    norm = s.op(
        *("InstanceNormalization", groups, f32(np.ones(4)), f32(np.zeros(4))),
        name="norm",
        epsilon=EPS,
    )
    whole = s.op("Reshape", norm, [2, 16, 4, 4], name="join")
    return s.proto(s.op("Mul", whole, WEIGHT[:, None, None], name="scale"))


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


@fault("attention-written-out", "info", "scores")
def attention(ill: bool) -> onnx.ModelProto:
    s = Sketch(opset=17 if ill else 23)
    q, k, v = (s.input(name, [1, 2, 4, 8]) for name in "qkv")
    if not ill:
        return s.proto(s.op("Attention", q, k, v))
    turned = s.op("Transpose", k, perm=[0, 1, 3, 2], name="turn")
    scores = s.op("Div", s.op("MatMul", q, turned, name="scores"), 8**0.5, name="scale")
    masked = s.op("Add", scores, s.input("mask", [1, 1, 4, 4]), name="mask")
    weights = s.op("Softmax", masked, name="softmax")
    return s.proto(s.op("MatMul", weights, v, name="weigh"))


@fault("attention-written-out", "info", "scores")
def attention_of_a_classifier(ill: bool) -> onnx.ModelProto:
    """Without the fault, a Softmax between layers with weights."""
    s = Sketch()
    x = s.input("x", [1, 4, 8])
    weights = f32(np.eye(8))
    scores = s.op(
        "MatMul", x, s.op("Transpose", x, perm=[0, 2, 1]) if ill else weights, name="scores"
    )
    probabilities = s.op("Softmax", scores, name="softmax")
    return s.proto(s.op("MatMul", probabilities, x if ill else weights, name="weigh"))
