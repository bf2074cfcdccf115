"""Error that only accumulates."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
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
    return Ill(s.proto(value), inputs, guards={None}, size=9, options=("--rel-max", "5.5e-4"))


def residual(layers: int = 12) -> Ill:
    """A stream from 1 to 1.9, to which every layer adds 0.0025: below half of BF16's spacing."""
    s = Sketch()
    stream = s.input("x", [1, 16])
    for i in range(layers):
        weight = weights(16, 16, seed=30 + i, scale=0.02)
        hidden = s.op("MatMul", stream, weight, name=f"matmul_{i}")
        branch = s.op("Mul", s.op("Sigmoid", hidden, name=f"gate_{i}"), 5e-3, name=f"scale_{i}")
        stream = s.op("Add", stream, branch, name=f"add_{i}")
    inputs = {"x": f32(1.45 + signals(1, 16, seed=29, peak=0.45))}
    return Ill(s.proto(stream), inputs)
