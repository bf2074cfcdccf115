"""Choices that rounding flips: between scores that differ by less than FP16's spacing."""

import numpy as np

from tests.models.illness import COUNT, Ill, illness
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Near choices"


@illness(FAMILY)
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
    return Ill(s.proto(y), inputs, {"scores", "choose"}, {"margin"})


@illness(FAMILY, "ultralytics/ultralytics#25755")
def top_k() -> Ill:
    """The three best of 32 queries whose scores lie close together."""
    s = Sketch()
    x = s.input("x", [1, 8])
    basis = np.random.default_rng(100).normal(size=(8, 32))
    scores = s.op("MatMul", x, f32(12.5 + 0.004 * basis), name="scores")
    values = s.op("TopK", scores, [3], name="choose", axis=-1)
    s.nodes[-1].output.append("chosen")
    y = s.op("Relu", values, name="relu")
    inputs = {"x": f32(1 + 0.3 * np.random.default_rng(101).normal(size=(COUNT, 1, 8)))}
    return Ill(s.proto("chosen", y), inputs, {"scores", "choose"}, {"margin"})


@illness(FAMILY)
def non_max_suppression() -> Ill:
    """Boxes that overlap, with scores so close that another one survives."""
    s = Sketch()
    boxes = s.input("boxes", [1, 16, 4])
    x = s.input("x", [1, 1, 8])
    basis = np.random.default_rng(102).normal(size=(8, 16))
    scores = s.op("MatMul", x, f32(1 / 8 + 4e-5 * basis), name="scores")
    y = s.op(
        *("NonMaxSuppression", boxes, scores, [16], f32([0.5]), f32([0.1])),
        name="choose",
    )
    generator = np.random.default_rng(103)
    corners = np.repeat(np.arange(4)[:, None] * [2.0, 0, 2, 0] + [0, 0, 1, 1], 4, axis=0)
    shifts = generator.uniform(0, 0.1, (COUNT, 1, 16, 4))
    inputs = {
        "boxes": f32(corners + shifts),
        "x": f32(1 + 0.3 * generator.normal(size=(COUNT, 1, 1, 8))),
    }
    return Ill(s.proto(y), inputs, {"scores"}, {"margin"})
