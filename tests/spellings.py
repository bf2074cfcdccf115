"""LayerNorms, GroupNorms, RMSNorms and GELUs as exporters write them, node for node.

What they write is from exports by `bench/exports`: PyTorch 2.13 (both exporters), tf2onnx with
Keras, jax2onnx. Each takes x with a dynamic batch; `EXPECTED` tells what it is, None where nothing
can stand for it alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tests.unit.graph.sketch import Sketch, f32

WIDTH = 24
WEIGHT, BIAS = f32(np.linspace(0.5, 1.5, WIDTH)), f32(np.linspace(-0.3, 0.7, WIDTH))
ROWS, IMAGES = ["batch", 5, WIDTH], ["batch", WIDTH, 6, 4]

EXPECTED: dict[str, str | None] = {}
_MAKERS: dict[str, Callable[[], onnx.ModelProto]] = {}


def spelling(expected: str | None):
    def register(maker: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
        EXPECTED[maker.__name__] = expected
        _MAKERS[maker.__name__] = maker
        return maker

    return register


def proto(name: str) -> onnx.ModelProto:
    """Return a model; its output has the shape of x, which ONNX cannot infer of all."""
    made = _MAKERS[name]()
    made.graph.output[0].type.CopyFrom(made.graph.input[0].type)
    return made


def torchscript(axes: list[int], shape: list[Any], weight=WEIGHT, bias=BIAS) -> onnx.ModelProto:
    s = Sketch(13)
    x = s.input("x", shape)
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=axes), name="/norm/Sub")
    squares = s.op("ReduceMean", s.op("Pow", centred, 2.0), axes=axes)
    root = s.op("Sqrt", s.op("Add", squares, 1e-5))
    y = s.op("Mul", s.op("Div", centred, root), weight)
    return s.proto(s.op("Relu", s.op("Add", y, bias), name="after"))


@spelling("LayerNormalization")
def torchscript_layer_norm():
    return torchscript([-1], ROWS)


@spelling("LayerNormalization")
def torchscript_two_axes():
    return torchscript([-2, -1], ROWS, np.outer(f32([1, 2, 3, 4, 5]), WEIGHT))


@spelling(None)
def torchscript_channels_first():
    return torchscript([1], IMAGES, WEIGHT[:, None, None], BIAS[:, None, None])


@spelling("InstanceNormalization")
def torchscript_instance_norm():
    return torchscript([2, 3], IMAGES, WEIGHT[:, None, None], BIAS[:, None, None])


@spelling(None)
def torchscript_by_deviation():
    """(x - mean) / (std + eps): the eps stands outside of the root."""
    s = Sketch(13)
    x = s.input("x", ROWS)
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1]))
    total = s.op("ReduceMean", s.op("Mul", centred, centred), axes=[-1])
    root = s.op("Sqrt", s.op("Div", s.op("Mul", total, float(WIDTH)), float(WIDTH - 1)))
    return s.proto(s.op("Div", centred, s.op("Add", root, 1e-6)))


@spelling("LayerNormalization")
def torch_without_keepdim():
    s = Sketch(18)
    x = s.input("x", ROWS)
    mean = s.op("Unsqueeze", s.op("ReduceMean", x, [-1], keepdims=0), [2])
    squares = s.op("Pow", s.op("Sub", x, mean), 2.0)
    variance = s.op("Unsqueeze", s.op("ReduceMean", squares, [-1], keepdims=0), [2])
    root = s.op("Sqrt", s.op("Add", variance, 1e-5))
    again = s.op("Sub", x, mean)
    return s.proto(s.op("Add", s.op("Mul", s.op("Div", again, root), WEIGHT), BIAS))


@spelling("LayerNormalization")
def dynamo_layer_norm():
    """As its decomposition of x.var writes it: an unbiased correction of nothing."""
    s = Sketch(18)
    x = s.input("x", ROWS)
    mean = s.op("ReduceMean", x, [-1], keepdims=1)
    centred = s.op("Sub", x, mean)
    sums = s.op("ReduceMean", s.op("Mul", centred, centred), [-1], keepdims=1)
    variance = s.op("Div", s.op("Mul", sums, float(WIDTH)), float(WIDTH))
    inverse = s.op("Reciprocal", s.op("Sqrt", s.op("Add", variance, 1e-5)))
    return s.proto(s.op("Add", s.op("Mul", s.op("Mul", centred, inverse), WEIGHT), BIAS))


def tensorflow(axes: list[int], shape: list[Any], weight, bias) -> onnx.ModelProto:
    s = Sketch(15)
    x = s.input("x", shape)
    mean = s.op("ReduceMean", x, axes=axes)
    difference = s.op("Sub", x, mean)
    variance = s.op("ReduceMean", s.op("Mul", difference, difference), axes=axes)
    inverse = s.op("Reciprocal", s.op("Sqrt", s.op("Add", variance, 1e-3)))
    scale = s.op("Mul", inverse, weight)
    shift = s.op("Add", s.op("Mul", s.op("Neg", mean), scale), bias)
    return s.proto(s.op("Add", s.op("Mul", x, scale), shift))


@spelling("LayerNormalization")
def keras_layer_norm():
    return tensorflow([2], ROWS, WEIGHT[None, None], BIAS[None, None])


@spelling(None)
def keras_channels_first():
    images = (WEIGHT[None, :, None, None], BIAS[None, :, None, None])
    return tensorflow([1], IMAGES, *images)


@spelling("LayerNormalization")
def jax_layer_norm():
    """As Flax has it: max(0, E[x²] - E[x]²), and every broadcast by Reshape and Expand."""
    s = Sketch(15)
    x = s.input("x", ROWS)
    target = s.op("Concat", s.op("Shape", x, end=2), [1], axis=0)

    def broadcast(value: str) -> str:
        return s.op("Expand", s.op("Reshape", value, target), target)

    mean = s.op("Mul", s.op("ReduceSum", x, [2], keepdims=0), 1 / WIDTH)
    squares = s.op("Mul", s.op("ReduceSum", s.op("Mul", x, x), [2], keepdims=0), 1 / WIDTH)
    variance = s.op("Max", 0.0, s.op("Sub", squares, s.op("Mul", mean, mean)))
    root = s.op("Sqrt", s.op("Add", broadcast(variance), 1e-6))
    scale = s.op("Mul", s.op("Reciprocal", root), WEIGHT[None, None])
    y = s.op("Mul", s.op("Sub", x, broadcast(mean)), scale)
    return s.proto(s.op("Add", y, BIAS[None, None]))


@spelling(None)
def jax_variance():
    """As jnp.var has it: NaN where nothing is left to average."""
    s = Sketch(18)
    x = s.input("x", ROWS)
    mean = s.op("Div", s.op("ReduceSum", x, [2]), float(WIDTH))
    centred = s.op("Sub", x, mean)
    left = s.op("Greater", s.op("Sub", float(WIDTH), 0.0), 0.0)
    variance = s.op("Div", s.op("ReduceSumSquare", centred, [2]), float(WIDTH))
    variance = s.op("Where", left, variance, float("nan"))
    y = s.op("Div", s.op("Sub", x, mean), s.op("Sqrt", s.op("Add", variance, 1e-5)))
    return s.proto(s.op("Add", s.op("Mul", y, WEIGHT), BIAS))


@spelling("RMSNormalization")
def torch_rms_norm():
    s = Sketch(13)
    x = s.input("x", ROWS)
    mean = s.op("ReduceMean", s.op("Pow", x, 2.0), axes=[-1])
    inverse = s.op("Div", 1.0, s.op("Sqrt", s.op("Add", mean, 1e-6)))
    return s.proto(s.op("Mul", WEIGHT, s.op("Mul", x, inverse)))


@spelling(None)
def torch_group_norm():
    s = Sketch(13)
    x = s.input("x", IMAGES)
    grouped = s.op("Reshape", x, [0, 6, -1])
    normal = s.op("InstanceNormalization", grouped, np.ones(6, np.float32), np.zeros(6, np.float32))
    y = s.op("Reshape", normal, s.op("Shape", x))
    y = s.op("Mul", y, WEIGHT[:, None, None])
    return s.proto(s.op("Add", y, BIAS[:, None, None]))


@spelling("Gelu")
def torch_gelu():
    s = Sketch(13)
    x = s.input("x", ROWS)
    erf = s.op("Erf", s.op("Div", x, float(np.sqrt(2))))
    return s.proto(s.op("Mul", s.op("Mul", x, s.op("Add", erf, 1.0)), 0.5))


@spelling("Gelu")
def torch_gelu_tanh():
    s = Sketch(13)
    x = s.input("x", ROWS)
    cubic = s.op("Mul", s.op("Pow", x, 3.0), 0.044715)
    tanh = s.op("Tanh", s.op("Mul", s.op("Add", x, cubic), 0.7978845608))
    return s.proto(s.op("Mul", s.op("Mul", x, 0.5), s.op("Add", tanh, 1.0)))


@spelling(None)
def nearly_gelu():
    """Of GELU's form, with another constant: only comparing shows it."""
    s = Sketch(13)
    x = s.input("x", ROWS)
    erf = s.op("Erf", s.op("Div", x, 1.5))
    return s.proto(s.op("Mul", s.op("Mul", x, s.op("Add", erf, 1.0)), 0.5))


@spelling(None)
def quick_gelu():
    s = Sketch(13)
    x = s.input("x", ROWS)
    return s.proto(s.op("Mul", x, s.op("Sigmoid", s.op("Mul", x, 1.702))))
