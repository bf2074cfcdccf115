"""overflow."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32


@illness("Overflow on the way")
def conv_chain() -> Ill:
    """The second of three convolutions gives 1e6, which the third brings back."""
    s = Sketch()
    x = s.input("x", [1, 2, 8, 8])
    a = s.op("Conv", x, weights(4, 2, 3, 3, seed=1, scale=0.2), name="conv_a", pads=[1] * 4)
    b = s.op("Conv", a, weights(4, 4, 3, 3, seed=2, scale=1e5), name="conv_b", pads=[1] * 4)
    r = s.op("Relu", b, name="relu")
    c = s.op("Conv", r, weights(2, 4, 3, 3, seed=3, scale=1e-4), name="conv_c", pads=[1] * 4)
    inputs = {"x": signals(1, 2, 8, 8, seed=4)}
    return Ill(
        s.proto(c),
        inputs,
        frozenset({"conv_b", "relu", "conv_c"}),
        frozenset({"overflow"}),
    )


@illness("Overflow on the way")
def two_readers() -> Ill:
    """A tensor that overflows has two readers: one scales it back, the other is a tanh."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, f32(np.eye(16) * 2e5), name="enlarge")
    scaled = s.op("MatMul", hidden, f32(np.eye(16) / 4096), name="reduce")
    y = s.op("Add", scaled, s.op("Tanh", hidden, name="tanh"), name="add")
    return Ill(
        s.proto(y),
        {"x": signals(1, 16, seed=23)},
        frozenset({"enlarge", "reduce"}),
        frozenset({"overflow"}),
    )


@illness("Beyond the calibrated range")
def near_the_edge(peak: float = 40_000) -> Ill:
    """A hidden tensor that reaches `peak`, which fits, and would matter if it did not."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, f32(np.eye(16) * peak), name="enlarge")
    y = s.op("MatMul", hidden, f32(np.eye(16) / 4096), name="reduce")
    return Ill(
        s.proto(y),
        {"x": signals(1, 16, seed=17)},
        frozenset({"enlarge", "reduce"}),
        frozenset({"headroom"}),
    )


@illness("Overflow on the way")
def root_mean_square() -> Ill:
    """Squares of values up to 50 fit; sample 3 is twenty times as large, and its squares do not."""
    s = Sketch()
    x = s.input("x", [1, 2, 16])
    square = s.op("Mul", x, x, name="square")
    mean = s.op("ReduceMean", square, name="mean", axes=[-1])
    inputs = {"x": signals(1, 2, 16, seed=18, peak=50)}
    inputs["x"][3] *= 20
    y = s.op("Sqrt", mean, name="root")
    return Ill(
        s.proto(y),
        inputs,
        frozenset({"square", "mean", "root"}),
        frozenset({"square"}),
    )
