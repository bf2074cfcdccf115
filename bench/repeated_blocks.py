"""Models of any number of nodes, in repeated blocks, with faults of four kinds planted in between.

Every block adds a little to a stream f32[batch, TOKENS, WIDTH]: written-out attention with its
LayerNorm, a perceptron, a convolution over tokens. A fault does the same through a detour that
FP32 takes without loss and FP16 does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH = 4, 16
BRANCH = 0.05
"""What a block adds to the stream, relative to it."""
DETOUR = 0.3
"""What a fault adds: far more than the tolerance of 1 % where it is lost."""
FAULTS = ("overflow", "square", "eps", "cancellation")


@dataclass
class _Sketch:
    """A graph under construction."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    block: str = ""

    def op(
        self, op_type: str, *inputs: str | float | NDArray[np.generic], **attributes: Any
    ) -> str:
        """Append a node of the block at hand; numbers and arrays become constants."""
        name = f"{self.block}/{op_type}_{len(self.nodes)}"
        names = [v if isinstance(v, str) else self.constant(v) for v in inputs]
        self.nodes.append(helper.make_node(op_type, names, [f"{name}:0"], name, **attributes))
        return f"{name}:0"

    def constant(self, value: float | NDArray[np.generic]) -> str:
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int) -> NDArray[np.float64]:
        return (
            self.rng.standard_normal(shape)
            / np.prod(shape[:-1] if len(shape) == 2 else shape[1:]) ** 0.5
        )

    def layer_norm(self, x: str) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Mul", centred, centred), axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, 1e-5))
        return self.op(
            "Add",
            self.op("Mul", self.op("Div", centred, deviation), np.ones(WIDTH)),
            self.weight(WIDTH, 1)[:, 0],
        )

    def linear(self, x: str) -> str:
        return self.op(
            "Add",
            self.op("MatMul", x, self.weight(WIDTH, WIDTH)),
            0.1 * self.weight(WIDTH, 1)[:, 0],
        )

    def attention(self, x: str) -> str:
        normal = self.layer_norm(x)
        query, key, value = (self.linear(normal) for _ in range(3))
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 2, 1]))
        weights = self.op("Softmax", self.op("Mul", scores, WIDTH**-0.5), axis=-1)
        return self.linear(self.op("MatMul", weights, value))

    def perceptron(self, x: str) -> str:
        return self.linear(self.op("Relu", self.linear(self.layer_norm(x))))

    def convolution(self, x: str) -> str:
        image = self.op("Transpose", x, perm=[0, 2, 1])
        result = self.op("Conv", image, self.weight(WIDTH, WIDTH, 3), pads=[1, 1])
        return self.op("Transpose", self.op("Tanh", result), perm=[0, 2, 1])

    def overflow(self, x: str) -> str:
        """Return x by way of 2¹⁷ x."""
        return self.op("Mul", self.op("Mul", x, 2.0**17), 2.0**-17)

    def square(self, x: str) -> str:
        """Return x over its root mean square, where x² leaves the range."""
        large = self.op("Mul", x, 1024.0)
        mean = self.op("ReduceMean", self.op("Pow", large, 2.0), axes=[-1])
        return self.op("Div", large, self.op("Sqrt", mean))

    def eps(self, x: str) -> str:
        """Return small x over its root mean square, where x² vanishes beside an eps as tiny.

        Every other channel is negated: along x itself, the next LayerNorm would undo the loss.
        """
        small = self.op("Mul", x, 2.0**-16)
        mean = self.op("ReduceMean", self.op("Mul", small, small), axes=[-1])
        normal = self.op("Div", small, self.op("Sqrt", self.op("Add", mean, 1e-12)))
        return self.op("Mul", normal, np.resize([1.0, -1.0], WIDTH))

    def cancellation(self, x: str) -> str:
        """Return x by way of x + 4096, where FP16 has a spacing of 4."""
        return self.op("Sub", self.op("Add", x, 4096.0), 4096.0)


def model(nodes: int, faults: int, seed: int = 0) -> onnx.ModelProto:
    """Return a model of at least `nodes` nodes, of opset 17, input "x" and output "y".

    Args:
        nodes: How many nodes; the last block is completed.
        faults: How many faults, evenly spread, of each kind in turn. Nodes of the i-th are named
            "fault_<i>_<kind>/…", those of blocks "block_<i>/…".
        seed: Of the weights.
    """
    sketch = _Sketch(np.random.default_rng(seed))
    blocks = cycle((sketch.attention, sketch.perceptron, sketch.convolution))
    x, planted, made = "x", 0, 0
    while len(sketch.nodes) < nodes or planted < faults:
        if len(sketch.nodes) * faults >= nodes * (planted + 0.5):
            kind = FAULTS[planted % len(FAULTS)]
            sketch.block, scale = f"fault_{planted}_{kind}", DETOUR
            branch = getattr(sketch, kind)(sketch.layer_norm(x))
            planted += 1
        else:
            sketch.block, scale = f"block_{made}", BRANCH
            branch, made = next(blocks)(x), made + 1
        x = sketch.op("Add", x, sketch.op("Mul", branch, scale))
    sketch.block = "head"
    sketch.layer_norm(x)
    sketch.nodes[-1].output[0] = "y"
    value = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", TOKENS, WIDTH]) for n in "xy"
    ]
    graph = helper.make_graph(sketch.nodes, "blocks", value[:1], value[1:], sketch.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def samples(count: int, seed: int = 1) -> NDArray[np.float32]:
    """Return standard normal samples for it, f32[count, 1, TOKENS, WIDTH]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 1, TOKENS, WIDTH)).astype(np.float32)
