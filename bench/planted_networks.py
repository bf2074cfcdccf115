"""Networks of 50 to 500 nodes to plant faults in: random weights, small tensors, no other faults.

Each has the requested depth; nodes have names like an exporter's, and the result of every node
reaches an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from tests.unit.graph.sketch import Sketch, f32

Sample = dict[str, np.ndarray]
CHANNELS, SIZE = 8, 8
WIDTH, TOKENS, HEADS = 16, 6, 2
STEPS = 12


@dataclass(frozen=True)
class Drawn:
    """A network and its samples.

    Attributes:
        proto: The model; the first axis of its inputs is open.
        samples: Inputs by name, each of a batch of its own size.
    """

    proto: onnx.ModelProto
    samples: list[Sample]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.proto.graph.node)


class _Layers(Sketch):
    """Adds layers; all weights follow from the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(17)
        self.rng = np.random.default_rng(seed)

    def weights(self, *shape: int, fan_in: int) -> np.ndarray:
        return f32(self.rng.normal(0, fan_in**-0.5, shape))

    def vector(self, size: int, low: float = 0.6, high: float = 1.4) -> np.ndarray:
        return f32(self.rng.uniform(low, high, size))

    def conv(self, x: str, name: str, inside: int = CHANNELS, kernel: int = 3) -> str:
        w = self.weights(CHANNELS, inside, kernel, kernel, fan_in=inside * kernel**2)
        pad = [kernel // 2] * 4
        return self.op("Conv", x, w, self.vector(CHANNELS, -0.1, 0.1), name=name, pads=pad)

    def batch_norm(self, x: str, name: str) -> str:
        rows = (self.vector(CHANNELS), self.vector(CHANNELS, -0.2, 0.2))
        seen = (self.vector(CHANNELS, -0.2, 0.2), self.vector(CHANNELS))
        return self.op("BatchNormalization", x, *rows, *seen, name=name)

    def linear(self, x: str, name: str, inside: int = WIDTH, outside: int = WIDTH) -> str:
        w = self.weights(inside, outside, fan_in=inside)
        product = self.op("MatMul", x, w, name=f"{name}/MatMul")
        return self.op("Add", product, self.vector(outside, -0.1, 0.1), name=f"{name}/Add")

    def layer_norm(self, x: str, name: str) -> str:
        """Add a LayerNorm, written out."""
        mean = self.op("ReduceMean", x, name=f"{name}/ReduceMean", axes=[-1])
        centred = self.op("Sub", x, mean, name=f"{name}/Sub")
        square = self.op("Mul", centred, centred, name=f"{name}/Mul")
        variance = self.op("ReduceMean", square, name=f"{name}/ReduceMean_1", axes=[-1])
        shifted = self.op("Add", variance, f32(1e-5), name=f"{name}/Add")
        root = self.op("Sqrt", shifted, name=f"{name}/Sqrt")
        normal = self.op("Div", centred, root, name=f"{name}/Div")
        scaled = self.op("Mul", normal, self.vector(WIDTH), name=f"{name}/Mul_1")
        return self.op("Add", scaled, self.vector(WIDTH, -0.2, 0.2), name=f"{name}/Add_1")

    def heads(self, x: str, name: str, perm: list[int]) -> str:
        split = [0, TOKENS, HEADS, WIDTH // HEADS]
        apart = self.op("Reshape", self.linear(x, name), split, name=f"{name}/Reshape")
        return self.op("Transpose", apart, name=f"{name}/Transpose", perm=perm)

    def attention(self, x: str, name: str) -> str:
        query = self.heads(x, f"{name}/query", [0, 2, 1, 3])
        key = self.heads(x, f"{name}/key", [0, 2, 3, 1])
        value = self.heads(x, f"{name}/value", [0, 2, 1, 3])
        scores = self.op("MatMul", query, key, name=f"{name}/MatMul")
        scaled = self.op("Mul", scores, f32((WIDTH / HEADS) ** -0.5), name=f"{name}/Mul")
        shares = self.op("Softmax", scaled, name=f"{name}/Softmax", axis=-1)
        mixed = self.op("MatMul", shares, value, name=f"{name}/MatMul_1")
        back = self.op("Transpose", mixed, name=f"{name}/Transpose", perm=[0, 2, 1, 3])
        flat = self.op("Reshape", back, [0, TOKENS, WIDTH], name=f"{name}/Reshape")
        return self.linear(flat, f"{name}/output")

    def gelu(self, x: str, name: str) -> str:
        scaled = self.op("Div", x, f32(2**0.5), name=f"{name}/Div")
        erf = self.op("Erf", scaled, name=f"{name}/Erf")
        one = self.op("Add", erf, f32(1.0), name=f"{name}/Add")
        product = self.op("Mul", x, one, name=f"{name}/Mul")
        return self.op("Mul", product, f32(0.5), name=f"{name}/Mul_1")

    def recurrent(self, x: str, name: str) -> str:
        """Add a GRU over f32[steps, n, WIDTH]; return as much."""
        rows = 3 * WIDTH
        w, r = (self.weights(1, rows, WIDTH, fan_in=WIDTH) for _ in range(2))
        bias = self.vector(2 * rows, -0.1, 0.1)[None]
        how = {"hidden_size": WIDTH, "linear_before_reset": 1}
        y = self.op("GRU", x, w, r, bias, name=f"{name}/GRU", **how)
        return self.op("Squeeze", y, [1], name=f"{name}/Squeeze")

    def drawn(self, outputs: list[str], shape: tuple[int, ...], batches: list[int]) -> Drawn:
        """Return the network; each sample is smooth along its last axis, of another size each."""
        samples = []
        for batch in batches:
            steps = self.rng.normal(size=(batch, *shape))
            samples.append({"x": f32(np.cumsum(steps, axis=-1) / shape[-1] ** 0.5)})
        return Drawn(self.proto(*outputs), samples)


def convolutions(blocks: int, seed: int, batches: list[int]) -> Drawn:
    """Return a residual network of 7 nodes for each block, one for each fourth, and 6 more."""
    s = _Layers(seed)
    x = s.input("x", ["n", 3, SIZE, SIZE])
    x = s.op("Relu", s.conv(x, "stem/Conv", inside=3), name="stem/Relu")
    for i in range(blocks):
        at = f"layer{i}"
        inner = s.batch_norm(s.conv(x, f"{at}/conv1/Conv"), f"{at}/bn1/BatchNormalization")
        inner = s.op("Relu", inner, name=f"{at}/Relu")
        inner = s.batch_norm(s.conv(inner, f"{at}/conv2/Conv"), f"{at}/bn2/BatchNormalization")
        x = s.op("Relu", s.op("Add", x, inner, name=f"{at}/Add"), name=f"{at}/Relu_1")
        if i % 4 == 3:
            x = s.op("Mul", x, f32(0.5), name=f"{at}/Mul")
    pooled = s.op("GlobalAveragePool", x, name="head/GlobalAveragePool")
    flat = s.op("Reshape", pooled, [0, CHANNELS], name="head/Reshape")
    y = s.linear(flat, "head", CHANNELS, 10)
    return s.drawn([y], (3, SIZE, SIZE), batches)


def transformer(blocks: int, seed: int, batches: list[int]) -> Drawn:
    """Return an encoder of 49 nodes for each block, norms and GELUs written out, and 11 more."""
    s = _Layers(seed)
    x = s.input("x", ["n", TOKENS, WIDTH])
    x = s.linear(x, "embed")
    for i in range(blocks):
        at = f"blocks.{i}"
        mixed = s.attention(s.layer_norm(x, f"{at}/norm1"), f"{at}/attn")
        x = s.op("Add", x, mixed, name=f"{at}/Add")
        wide = s.linear(s.layer_norm(x, f"{at}/norm2"), f"{at}/mlp/fc1", WIDTH, 2 * WIDTH)
        narrow = s.linear(s.gelu(wide, f"{at}/mlp/act"), f"{at}/mlp/fc2", 2 * WIDTH)
        x = s.op("Add", x, narrow, name=f"{at}/Add_1")
    y = s.layer_norm(x, "norm")
    return s.drawn([y], (TOKENS, WIDTH), batches)


def recurrent(blocks: int, seed: int, batches: list[int]) -> Drawn:
    """Return GRUs over time between dense layers: 9 nodes for each block and 7 more."""
    s = _Layers(seed)
    x = s.input("x", ["n", STEPS, WIDTH])
    x = s.op("Tanh", s.linear(x, "encoder"), name="encoder/Tanh")
    for i in range(blocks):
        at = f"gru{i}"
        turned = s.op("Transpose", x, name=f"{at}/Transpose", perm=[1, 0, 2])
        states = s.recurrent(turned, at)
        back = s.op("Transpose", states, name=f"{at}/Transpose_1", perm=[1, 0, 2])
        dense = s.linear(back, f"{at}/dense")
        gate = s.op("Sigmoid", dense, name=f"{at}/Sigmoid")
        x = s.op("Add", x, s.op("Mul", dense, gate, name=f"{at}/Mul"), name=f"{at}/Add")
    mask = s.op("Sigmoid", s.linear(x, "decoder"), name="decoder/Sigmoid")
    y = s.op("Mul", x, mask, name="decoder/Mul")
    return s.drawn([y], (STEPS, WIDTH), batches)


def branches(blocks: int, seed: int, batches: list[int]) -> Drawn:
    """Return an inception-like network of 14 nodes for each block and 7 more; two outputs."""
    s = _Layers(seed)
    x = s.input("x", ["n", 3, SIZE, SIZE])
    x = s.op("Relu", s.conv(x, "stem/Conv", inside=3), name="stem/Relu")
    middle = x
    for i in range(blocks):
        at = f"mixed{i}"
        one = s.op("Relu", s.conv(x, f"{at}/b1/Conv", kernel=1), name=f"{at}/b1/Relu")
        two = s.op("LeakyRelu", s.conv(x, f"{at}/b2/Conv"), name=f"{at}/b2/LeakyRelu", alpha=0.1)
        two = s.op("Sigmoid", s.conv(two, f"{at}/b2/Conv_1"), name=f"{at}/b2/Sigmoid")
        mean = s.op("ReduceMean", x, name=f"{at}/b3/ReduceMean", axes=[2, 3])
        three = s.op("Sub", x, mean, name=f"{at}/b3/Sub")
        three = s.op("Tanh", s.conv(three, f"{at}/b3/Conv", kernel=1), name=f"{at}/b3/Tanh")
        joined = s.op("Concat", one, two, three, name=f"{at}/Concat", axis=1)
        joined = s.conv(joined, f"{at}/Conv", inside=3 * CHANNELS, kernel=1)
        joined = s.batch_norm(joined, f"{at}/BatchNormalization")
        x = s.op("Add", x, joined, name=f"{at}/Add")
        middle = x if i == blocks // 2 else middle
    pooled = s.op("GlobalAveragePool", x, name="head/GlobalAveragePool")
    y = s.linear(s.op("Reshape", pooled, [0, CHANNELS], name="head/Reshape"), "head", CHANNELS, 10)
    return s.drawn([y, s.conv(middle, "aux/Conv")], (3, SIZE, SIZE), batches)


FAMILIES: dict[str, Callable[[int, int, list[int]], Drawn]] = {
    "convolutions": convolutions,
    "transformer": transformer,
    "recurrent": recurrent,
    "branches": branches,
}
