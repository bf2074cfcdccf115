"""Error that only accumulates."""

import numpy as np

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32


@illness("Error that accumulates", "NVIDIA/TensorRT#2942")
def deep(layers: int = 10) -> Ill:
    """Rotations one after the other: no rounding is large, and all of them add up."""
    s = Sketch()
    value = s.input("x", [1, 8, 16])
    generator = np.random.default_rng(19)
    for i in range(layers):
        rotation, _ = np.linalg.qr(generator.normal(size=(16, 16)))
        value = s.op("MatMul", value, f32(rotation), name=f"rotate_{i}")
    inputs = {"x": signals(1, 8, 16, seed=20)}
    return Ill(s.proto(value), inputs, guards={None}, size=9, options=("--rel-max", "5e-4"))
