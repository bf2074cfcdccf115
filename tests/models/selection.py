"""Choices that rounding flips: between scores that differ by less than FP16's spacing."""

import numpy as np
from onnx import TensorProto

from tests.models.illness import COUNT, Ill, illness, signals, weights
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
    inputs = {"x": f32(1 + 0.3 * np.random.default_rng(105).normal(size=(COUNT, 1, 8)))}
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


def detector() -> Ill:
    """Two stages: what scores above a threshold goes on. With infinite norms nothing does, and the
    second stage cannot reshape nothing. Not among the classes: no run of it in FP16 ends.
    """
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    squares = sketch.op("Mul", x, x, name="square")
    energy = sketch.op("ReduceSum", squares, [-1], name="energy", keepdims=1)
    scores = sketch.op("Div", x, sketch.op("Sqrt", energy, name="norm"), name="scores")
    found = sketch.op("Greater", scores, f32(0.25), name="found")
    places = sketch.op("Transpose", sketch.op("NonZero", found, name="at"), perm=[1, 0])
    picked = sketch.op("GatherND", scores, places, name="pick")
    column = sketch.op("Unsqueeze", picked, [-1], name="column")
    rows = sketch.op("Reshape", column, [0, -1], name="rows")
    y = sketch.op("MatMul", rows, f32([[1, 2, -1]]), name="head")
    inputs = 300 * (0.5 + np.abs(signals(4, 16, seed=3)))
    return Ill(sketch.proto(y), {"x": f32(inputs)})


@illness(FAMILY)
def position_bucket() -> Ill:
    """T5's position buckets: 2.0 with each step rounded, and 1.9994 where steps are fused."""
    s = Sketch()
    far = s.op("Cast", s.input("x", [1, 24], TensorProto.INT64), name="far", to=TensorProto.FLOAT)
    log = s.op("Log", s.op("Div", far, f32(8.0), name="part"), name="log")
    spread = s.op(
        "Mul", s.op("Div", log, f32(np.log(16)), name="quotient"), f32(8.0), name="spread"
    )
    bucket = s.op("Cast", spread, name="bucket", to=TensorProto.INT64)
    table = weights(9, 4, seed=151, scale=1.0)
    y = s.op("Mul", s.op("Gather", table, bucket, name="bias"), f32(0.5), name="half")
    distances = np.random.default_rng(152).integers(8, 128, (COUNT, 1, 24))
    distances[..., :3] = 16, 32, 64
    return Ill(s.proto(y), {"x": distances}, {"quotient"}, {"decision"})
