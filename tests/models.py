"""Tiny models with one illness each, and inputs that bring it out.

Node names are known, so that a test can say which ones must stay in FP32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from tests.unit.graph.sketch import Sketch, f32

COUNT = 8
"""Samples of each model; every fourth is held out."""


@dataclass(frozen=True)
class Ill:
    """A model and its inputs.

    Attributes:
        proto: The model.
        inputs: Input name → [samples, *shape].
        kept: Compute nodes that must stay in FP32, none of which can be spared.
    """

    proto: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    kept: frozenset[str] = frozenset()

    def sample(self, index: int) -> dict[str, NDArray[Any]]:
        """Return one sample."""
        return {name: array[index] for name, array in self.inputs.items()}


def signals(*shape: int, seed: int, peak: float = 1.0, count: int = COUNT) -> NDArray[np.float32]:
    """Return f32[count, *shape]: random walks along the last axis, each with max |x| = `peak`."""
    steps = np.random.default_rng(seed).normal(size=(count, *shape))
    walks = np.cumsum(steps, axis=-1).reshape(count, -1)
    walks *= peak / np.abs(walks).max(axis=1, keepdims=True)
    return f32(walks.reshape(count, *shape))


def weights(*shape: int, seed: int, scale: float) -> NDArray[np.float32]:
    """Return f32[*shape]: |w| within a factor of 2 of `scale`, signs mixed."""
    generator = np.random.default_rng(seed)
    size = generator.uniform(0.75, 1.5, shape) * scale
    return f32(size * generator.choice([-1, 1], shape))


def conv_chain() -> Ill:
    """The second of three convolutions gives 1e6, which the third brings back."""
    s = Sketch()
    x = s.input("x", [1, 2, 8, 8])
    a = s.op("Conv", x, weights(4, 2, 3, 3, seed=1, scale=0.2), name="conv_a", pads=[1] * 4)
    b = s.op("Conv", a, weights(4, 4, 3, 3, seed=2, scale=1e5), name="conv_b", pads=[1] * 4)
    r = s.op("Relu", b, name="relu")
    c = s.op("Conv", r, weights(2, 4, 3, 3, seed=3, scale=1e-4), name="conv_c", pads=[1] * 4)
    inputs = {"x": signals(1, 2, 8, 8, seed=4)}
    return Ill(s.proto(c), inputs, frozenset({"conv_b", "relu", "conv_c"}))


def layer_norm(peak: float = 5e3) -> Ill:
    """A written-out LayerNorm whose squares leave the range, and come back after the root."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    mean = s.op("ReduceMean", x, name="mean", axes=[-1])
    centred = s.op("Sub", x, mean, name="centre")
    square = s.op("Pow", centred, f32(2.0), name="square")
    variance = s.op("ReduceMean", square, name="variance", axes=[-1])
    shifted = s.op("Add", variance, f32(1e-5), name="eps")
    root = s.op("Sqrt", shifted, name="root")
    y = s.op("Div", centred, root, name="divide")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 32)), name="gamma")
    inputs = {"x": signals(1, 4, 32, seed=5, peak=peak)}
    return Ill(s.proto(y), inputs, frozenset({"square", "variance", "eps", "root"}))


def logarithm() -> Ill:
    """log(x² + 1e-10): the square and the eps become zero."""
    s = Sketch()
    x = s.input("x", [1, 64])
    square = s.op("Mul", x, x, name="square")
    y = s.op("Log", s.op("Add", square, f32(1e-10), name="eps"), name="log")
    walk = signals(1, 64, seed=6)
    return Ill(s.proto(y), {"x": f32(walk * 2e-4)}, frozenset({"square", "eps", "log"}))


def cancellation() -> Ill:
    """E[x²] - E[x]², two numbers near 100 that differ by 0.01."""
    s = Sketch()
    x = s.input("x", [1, 256])
    square = s.op("Mul", x, x, name="square")
    of_squares = s.op("ReduceMean", square, name="mean_of_squares", axes=[-1])
    mean = s.op("ReduceMean", x, name="mean", axes=[-1])
    squared = s.op("Mul", mean, mean, name="square_of_mean")
    y = s.op("Sub", of_squares, squared, name="variance")
    walk = signals(1, 256, seed=7)
    return Ill(
        s.proto(y),
        {"x": f32(10 + 0.2 * walk)},
        frozenset({"square", "mean_of_squares", "mean", "square_of_mean", "variance"}),
    )


def rotary() -> Ill:
    """Sines and cosines of positions up to 5000 times frequencies."""
    s = Sketch()
    positions = s.input("positions", [1, 16], TensorProto.INT64)
    column = s.op("Unsqueeze", positions, [-1], name="column")
    counted = s.op("Cast", column, name="count", to=TensorProto.FLOAT)
    angle = s.op("Mul", counted, f32([1.0, 0.3, 0.1, 0.03]), name="angle")
    sine, cosine = s.op("Sin", angle, name="sine"), s.op("Cos", angle, name="cosine")
    starts = np.arange(COUNT)[:, None, None] * 600
    inputs = {"positions": (starts + np.arange(16) * 11).astype(np.int64)}
    return Ill(s.proto(sine, cosine), inputs, frozenset({"angle", "sine", "cosine"}))


def mask() -> Ill:
    """Attention scores plus (1 - mask) · -3.4e38: the constant saturates, and that is enough."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    allowed = s.input("allowed", [1, 1, 8])
    hidden = s.op("Sub", f32(1.0), allowed, name="hidden")
    lowest = s.constant(f32(np.finfo(np.float32).min), "lowest")
    added = s.op("Add", scores, s.op("Mul", hidden, lowest, name="fill"), name="add")
    y = s.op("Softmax", added, name="softmax", axis=-1)
    lengths = 1 + np.arange(COUNT) % 8
    allowed_values = f32(np.arange(8) < lengths[:, None])[:, None, None]
    return Ill(s.proto(y), {"scores": signals(1, 8, 8, seed=8, peak=6), "allowed": allowed_values})


def tiny_weights() -> Ill:
    """Weights of 1e-8 become zero."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("Tanh", x, name="tanh")
    y = s.op("MatMul", hidden, weights(16, 4, seed=9, scale=1e-8), name="matmul")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=10, peak=2)}, frozenset({"matmul"}))


def huge_weights() -> Ill:
    """Weights of 1e6 saturate at 65504, although their products with small inputs would fit."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("Mul", x, f32(1e-3), name="small")
    y = s.op("MatMul", hidden, weights(16, 4, seed=11, scale=1e6), name="matmul")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=12)}, frozenset({"matmul"}))


def batch_norm() -> Ill:
    """A BatchNormalization with variances of 1e10."""
    s = Sketch()
    x = s.input("x", [1, 3, 8])
    large = s.op("Mul", x, f32(1e4), name="enlarge")
    ones, zeros = np.ones(3), np.zeros(3)
    y = s.op(
        *("BatchNormalization", large, f32(ones), f32(zeros), f32(zeros)),
        f32([1e10, 2e10, 4e10]),
        name="norm",
    )
    return Ill(s.proto(y), {"x": signals(1, 3, 8, seed=13)}, frozenset({"norm"}))


def arg_max() -> Ill:
    """The class with the largest of ten scores that differ by less than FP16's spacing."""
    s = Sketch()
    x = s.input("x", [1, 64, 8])
    basis = np.random.default_rng(14).normal(size=(8, 10))
    basis -= basis.mean(axis=0)
    scores = s.op("MatMul", x, f32(12.5 + 0.004 * basis), name="scores")
    y = s.op("ArgMax", scores, name="choose", axis=-1, keepdims=0)
    generator = np.random.default_rng(15)
    inputs = {"x": f32(1 + 0.3 * generator.normal(size=(COUNT, 1, 64, 8)))}
    return Ill(s.proto(y), inputs, frozenset({"scores", "choose"}))


def saturating() -> Ill:
    """tanh(x³) with x³ up to 1e6: infinity where it does no harm."""
    s = Sketch()
    x = s.input("x", [1, 64])
    y = s.op("Tanh", s.op("Pow", x, f32(3.0), name="cube"), name="tanh")
    return Ill(s.proto(y), {"x": signals(1, 64, seed=16, peak=100)})


def near_the_edge(peak: float = 40_000) -> Ill:
    """A hidden tensor that reaches `peak`, which fits, and would matter if it did not."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, f32(np.eye(16) * peak), name="enlarge")
    y = s.op("MatMul", hidden, f32(np.eye(16) / 4096), name="reduce")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=17)}, frozenset({"enlarge", "reduce"}))


def two_readers() -> Ill:
    """A tensor that overflows has two readers: one scales it back, the other is a tanh."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, f32(np.eye(16) * 2e5), name="enlarge")
    scaled = s.op("MatMul", hidden, f32(np.eye(16) / 4096), name="reduce")
    y = s.op("Add", scaled, s.op("Tanh", hidden, name="tanh"), name="add")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=23)}, frozenset({"enlarge", "reduce"}))


def root_mean_square() -> Ill:
    """Squares of values up to 50 fit; sample 3 is twenty times as large, and its squares do not."""
    s = Sketch()
    x = s.input("x", [1, 2, 16])
    square = s.op("Mul", x, x, name="square")
    mean = s.op("ReduceMean", square, name="mean", axes=[-1])
    inputs = {"x": signals(1, 2, 16, seed=18, peak=50)}
    inputs["x"][3] *= 20
    y = s.op("Sqrt", mean, name="root")
    return Ill(s.proto(y), inputs, frozenset({"square", "mean", "root"}))


def deep(layers: int = 10) -> Ill:
    """Rotations one after the other: no rounding is large, and all of them add up."""
    s = Sketch()
    value = s.input("x", [1, 8, 16])
    generator = np.random.default_rng(19)
    for i in range(layers):
        rotation, _ = np.linalg.qr(generator.normal(size=(16, 16)))
        value = s.op("MatMul", value, f32(rotation), name=f"rotate_{i}")
    return Ill(s.proto(value), {"x": signals(1, 8, 16, seed=20)})


def small() -> Ill:
    """A model that FP16 does not break: one layer of a perceptron."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, weights(16, 8, seed=21, scale=0.3), name="matmul")
    y = s.op("Relu", s.op("Add", hidden, f32(np.linspace(-1, 1, 8)), name="bias"), name="relu")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=22)})


def large_weights() -> Ill:
    """Three layers with weights beyond a kilobyte, of which the first two overflow together."""
    s = Sketch()
    x = s.input("x", [1, 8, 64])
    scaled = s.op("Mul", x, s.constant(2.0, "scale"), name="scale_it")
    up = s.constant(weights(64, 64, seed=21, scale=1e5), "up_w")
    down = s.constant(weights(64, 64, seed=22, scale=1e-6), "down_w")
    out = s.constant(weights(64, 64, seed=23, scale=0.1), "out_w")
    hidden = s.op("Relu", s.op("MatMul", scaled, up, name="up"), name="relu")
    y = s.op("MatMul", s.op("MatMul", hidden, down, name="down"), out, name="out")
    inputs = {"x": signals(1, 8, 64, seed=24)}
    return Ill(s.proto(y), inputs, frozenset({"up", "relu", "down"}))


def saved_beside(ill: Ill, folder: Path) -> Path:
    """Save a model with its weights in a file of their own; return its path."""
    proto = onnx.ModelProto()
    proto.CopyFrom(ill.proto)
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def two_bodies() -> Ill:
    """An If whose bodies multiply by a matrix of threes and one of twos."""
    ends = [onnx.helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 8, 64])]
    bodies = {}
    for branch, value in (("then_branch", 3), ("else_branch", 2)):
        weight = onnx.numpy_helper.from_array(f32(np.full((64, 64), value)), "weight")
        node = onnx.helper.make_node("MatMul", ["x", "weight"], ["out"], branch)
        bodies[branch] = onnx.helper.make_graph([node], branch, [], ends, [weight])
    s = Sketch()
    s.input("x", [1, 8, 64])
    flag = s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(onnx.helper.make_node("If", [flag], ["y"], "choose", **bodies))
    inputs = {"x": signals(1, 8, 64, seed=25), "flag": np.arange(COUNT) % 2 == 0}
    return Ill(s.proto("y"), inputs)
