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


def one_channel(layers: int = 8) -> Ill:
    """Rotations, then a channel in which they cancel to 1/50: it is off by far more than others."""
    s = Sketch()
    value = s.input("x", [1, 8, 16])
    generator = np.random.default_rng(19)
    direction = np.eye(16)[3]
    rotations = [np.linalg.qr(generator.normal(size=(16, 16)))[0] for _ in range(layers)]
    for i, rotation in enumerate(rotations):
        value = s.op("MatMul", value, f32(rotation), name=f"rotate_{i}")
    for rotation in reversed(rotations):
        direction = rotation @ direction
    mix = generator.normal(0, 0.25, (16, 16))
    mix[:, 5] = 50 * np.eye(16)[3]
    value = s.op("MatMul", value, f32(mix), name="mix")
    value = s.op("MatMul", value, f32(generator.uniform(0.5, 1.5, (16, 4))), name="end")
    x = signals(1, 8, 16, seed=20)
    x -= 0.98 * f32((x @ f32(direction))[..., None] * direction)
    return Ill(s.proto(value), {"x": x})


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
