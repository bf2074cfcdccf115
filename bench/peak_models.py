"""Models of 1 to 4 MB whose activations dominate memory: images of 640 × 640 pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

SIDE = 640
CLASSES = 4


@dataclass
class _Sketch:
    """A graph under construction, on `x`, f32[1, 3, SIDE, SIDE]."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=lambda: {"x": 3})

    def op(self, op: str, *inputs: str, channels: int = 0, **attributes: Any) -> str:
        """Append a node, by default with as many channels as its first input."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}:0"], name, **attributes))
        self.channels[f"{name}:0"] = channels or self.channels[inputs[0]]
        return f"{name}:0"

    def constant(self, array: ArrayLike) -> str:
        """Return a new f32 constant, or int64 where `array` holds integers."""
        made = np.asarray(array)
        made = made.astype(np.int64 if made.dtype.kind == "i" else np.float32)
        self.constants.append(numpy_helper.from_array(made, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def conv(self, x: str, channels: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        """Append a convolution that keeps the variance, with a bias."""
        before = self.channels[x] // group
        shape = (channels, before, kernel, kernel)
        weight = self.rng.standard_normal(shape) * (2 / (before * kernel**2)) ** 0.5
        bias = 0.1 * self.rng.standard_normal(channels)
        return self.op(
            "Conv",
            x,
            self.constant(weight),
            self.constant(bias),
            channels=channels,
            kernel_shape=[kernel] * 2,
            pads=[kernel // 2] * 4,
            strides=[stride] * 2,
            group=group,
        )

    def separable(self, x: str, channels: int, stride: int = 1) -> str:
        """Append a depthwise and a pointwise convolution, each with a Relu."""
        x = self.op("Relu", self.conv(x, self.channels[x], 3, stride, self.channels[x]))
        return self.op("Relu", self.conv(x, channels))

    def swish(self, x: str) -> str:
        """Append x · Sigmoid(x)."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def norm(self, x: str) -> str:
        """Append a BatchNormalization."""
        n = self.channels[x]
        ones = 1 + 0.1 * self.rng.random((2, n))
        numbers = (ones[0], 0.1 * self.rng.standard_normal(n), np.zeros(n), ones[1])
        return self.op("BatchNormalization", x, *map(self.constant, numbers))

    def up(self, x: str) -> str:
        """Append a Resize to twice the size."""
        scales = self.constant([1.0, 1.0, 2.0, 2.0])
        return self.op("Resize", x, "", scales, mode="nearest")

    def joined(self, *values: str) -> str:
        """Append a Concat of channels."""
        return self.op("Concat", *values, axis=1, channels=sum(self.channels[v] for v in values))

    def model(self, output: str, rank: int) -> onnx.ModelProto:
        """Return the model."""
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIDE, SIDE])
        sizes = [f"y{axis}" for axis in range(rank)]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, sizes)
        graph = helper.make_graph(self.nodes, "drawn", [given], [result], self.constants)
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def cnn() -> onnx.ModelProto:
    """Return a classifier whose first blocks have 64 channels at full resolution."""
    g = _Sketch()
    x = g.op("Relu", g.norm(g.conv("x", 64, 3)))
    for channels, stride in ((64, 1), (96, 2), (128, 2), (256, 2), (256, 1), (384, 2), (512, 2)):
        x = g.separable(x, channels, stride)
        x = g.op("Add", x, g.separable(x, channels))
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    weight = g.rng.standard_normal((512, 10)) / 512**0.5
    return g.model(g.op("MatMul", x, g.constant(weight)), 2)


def unet() -> onnx.ModelProto:
    """Return a segmenter whose full-resolution features wait for the end."""
    g = _Sketch()
    x, waiting = g.separable(g.conv("x", 32, 3), 48), []
    for channels in (96, 192, 320):
        waiting.append(x)
        x = g.separable(g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), channels)
        x = g.separable(x, channels)
    for skip in reversed(waiting):
        x = g.separable(g.joined(g.up(x), skip), g.channels[skip])
    return g.model(g.op("Sigmoid", g.conv(x, CLASSES)), 4)


def detector() -> onnx.ModelProto:
    """Return a detector with a stem at half resolution, Swish and heads at three scales."""
    g = _Sketch()
    x = g.swish(g.conv("x", 48, 3, 2))
    levels = []
    for channels in (64, 128, 192, 256):
        x = g.swish(g.conv(x, g.channels[x], 3, 2, g.channels[x]))
        x = g.swish(g.conv(x, channels))
        a = g.swish(g.conv(x, channels // 2))
        b = g.swish(g.conv(a, channels // 2, 3))
        x = g.swish(g.conv(g.joined(g.op("Add", a, b), x), channels))
        levels.append(x)
    rows = []
    for level in levels[1:]:
        head = g.conv(g.swish(g.conv(level, 64, 3)), 5 + CLASSES)
        flat = g.op("Reshape", head, g.constant([1, 5 + CLASSES, -1]))
        rows.append(g.op("Transpose", flat, perm=[0, 2, 1]))
    return g.model(g.op("Concat", *rows, axis=1), 3)


DRAWN: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "cnn": cnn,
    "unet": unet,
    "detector": detector,
}


def images(count: int) -> np.ndarray:
    """Return f32[count, 1, 3, SIDE, SIDE] of smooth shapes and a little noise, as photos have."""
    rng = np.random.default_rng(1)
    coarse = rng.standard_normal((count, 1, 3, SIDE // 32, SIDE // 32))
    smooth = np.kron(coarse, np.ones((32, 32)))
    return (smooth + 0.1 * rng.standard_normal(smooth.shape)).astype(np.float32)
