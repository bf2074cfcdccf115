"""Decisions near a threshold: no product or kernel is blamed for them."""

import numpy as np

from halfwise.emulation.ort import Session
from halfwise.graph.loading import network_from_proto
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.command import fp32_engine, precision, tf32
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, WEIGHTS

NEAR = 2.0**-14
"""Relative distance to a threshold: less than FP16 and TF32 round by, more than FP32 does."""


def chosen(margin=NEAR, weight=4.0, scale=1.0):
    """Scores of which every one of the first sample is near its threshold, and what passes it."""
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    scores = sketch.op("MatMul", x, f32(scale * WEIGHTS[0]), name="scores")
    ends = sketch.proto(scores)
    (near,) = Session(network_from_proto(ends).model).run({"x": DATA[0]}).values()
    sides = np.where(np.indices(near.shape).sum(axis=0) % 2, 1, -1)
    over = sketch.op("Greater", scores, f32(near * (1 + margin * sides)), name="over")
    kept = sketch.op("Cast", over, name="kept", to=1)
    weighed = sketch.op("Mul", kept, f32(weight), name="weighed")
    y = sketch.op("Add", weighed, scores, name="y")
    return network_from_proto(sketch.proto(y))


def test_fp16_that_flips_a_decision(subject):
    rung = precision(subject(model=chosen()))
    assert rung.passed is False
    assert "scores" in rung.nodes


def test_tf32_that_does_blames_no_node(subject):
    rung = tf32(subject(model=chosen()))
    assert (rung.passed, rung.nodes) == (False, ())
    assert "--noTF32" in " ".join(steps_told(rung.advice))


def test_an_overflow_that_flips_decisions_is_the_cause(subject):
    rung = precision(subject(model=chosen(scale=1e5)))
    assert rung.passed is False
    assert "scores" in rung.nodes


def test_kernels_that_round_differently_are_not_at_fault(subject):
    rung = fp32_engine(subject(model=chosen(margin=1e-7), fake={"broken": {"scores": 1 + 1e-6}}))
    assert (rung.passed, rung.nodes) == (False, ())


def test_a_wrong_kernel_before_a_decision_is_at_fault(subject):
    rung = fp32_engine(subject(model=chosen(), fake={"broken": {"scores": 1.01}}))
    assert rung.passed is False
    assert rung.nodes == ("scores",)
