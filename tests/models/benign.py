"""Infinities and zeros that do no harm, and what FP16 does not break."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Harmless"


@illness(FAMILY)
def saturating() -> Ill:
    """tanh(x³) with x³ up to 1e6: infinity where it does no harm."""
    s = Sketch()
    x = s.input("x", [1, 64])
    y = s.op("Tanh", s.op("Pow", x, f32(3.0), name="cube"), name="tanh")
    return Ill(s.proto(y), {"x": signals(1, 64, seed=16, peak=100)})


@illness(FAMILY)
def reciprocal() -> Ill:
    """1 / (1 + x²) with x² up to 1e6: zero instead of a millionth."""
    s = Sketch()
    x = s.input("x", [1, 64])
    one = s.op("Add", s.op("Mul", x, x, name="square"), f32(1.0), name="one")
    y = s.op("Reciprocal", one, name="reciprocal")
    inputs = {"x": signals(1, 64, seed=140, peak=1e3)}
    inputs["x"][..., ::8] = 0
    return Ill(s.proto(y), inputs)


@illness(FAMILY)
def clipped() -> Ill:
    """ReLU6 of values up to 1e6."""
    s = Sketch()
    x = s.input("x", [1, 64])
    y = s.op("Clip", s.op("Mul", x, f32(1e4), name="enlarge"), f32(0.0), f32(6.0), name="clip")
    return Ill(s.proto(y), {"x": signals(1, 64, seed=141, peak=100)})


@illness(FAMILY)
def small() -> Ill:
    """A model that FP16 does not break: one layer of a perceptron."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, weights(16, 8, seed=21, scale=0.3), name="matmul")
    y = s.op("Relu", s.op("Add", hidden, f32(np.linspace(-1, 1, 8)), name="bias"), name="relu")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=22)})
