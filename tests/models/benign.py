"""benign."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32


@illness("Harmless")
def saturating() -> Ill:
    """tanh(x³) with x³ up to 1e6: infinity where it does no harm."""
    s = Sketch()
    x = s.input("x", [1, 64])
    y = s.op("Tanh", s.op("Pow", x, f32(3.0), name="cube"), name="tanh")
    return Ill(s.proto(y), {"x": signals(1, 64, seed=16, peak=100)})


@illness("Harmless")
def small() -> Ill:
    """A model that FP16 does not break: one layer of a perceptron."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("MatMul", x, weights(16, 8, seed=21, scale=0.3), name="matmul")
    y = s.op("Relu", s.op("Add", hidden, f32(np.linspace(-1, 1, 8)), name="bias"), name="relu")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=22)})
