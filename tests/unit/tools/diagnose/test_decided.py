"""Decisions near a threshold: told as the cause, and no product or kernel blamed for them."""

import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.loading import network_from_proto
from halfwise.records import Criterion
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.kernels import fp32_engine
from halfwise.tools.diagnose.precision import precision, tf32
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


def told(rung):
    assert rung.passed is False
    assert rung.nodes == ("over",)
    assert rung.decided.left <= 1 < rung.decided.error
    assert rung.decided.samples == 3
    (flip,) = rung.decided.flips
    assert (flip.node, flip.of) == ("over", 192)
    assert 0 < flip.elements < 64
    text = f"over decides {flip.elements} of 192 values differently on 3 samples, reading floats"
    assert text in rung.cause
    assert f"Greater decides {flip.elements} of 192 values" in rung.evidence[0].text
    return " ".join(steps_told(rung.advice))


def test_tf32_that_flips_a_decision(subject):
    rung = tf32(subject(model=chosen()))
    advice = told(rung)
    assert rung.cause.startswith("TF32 changes a decision: over")
    assert "--noTF32" in advice
    assert "leads to these decisions: scores." in advice
    assert "--metric file.py:function." in advice  # numbers that `auto` does not recognise


def test_an_engine_that_does(subject):
    rung = tf32(subject(model=chosen(), fake={}))
    assert rung.how == "measured"
    told(rung)


def near_choice(op):
    """Scores that TF32 takes across a threshold or in another order, and what follows from that."""
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    weights = WEIGHTS[0].copy()
    weights[:, 1::2] = weights[:, ::2]  # two equal scores each, but for an offset
    scores = sketch.op("MatMul", x, weights, name="scores")
    (found,) = Session(sketch.network(scores).model).run({"x": DATA[0]}).values()
    if op == "Round":
        sides = np.where(np.arange(16) % 2, NEAR, -NEAR)
        shifted = sketch.op("Sub", scores, f32(found * (1 + sides) - 0.5), name="shifted")
        y = sketch.op("Mul", sketch.op("Round", shifted, name="choose"), f32(3), name="y")
        return sketch.network(y)
    away = sketch.op("MatMul", x, f32(WEIGHTS[0] * (np.arange(16) % 2)), name="away")
    both = sketch.op("Sub", sketch.op("Add", scores, away, name="sum"), away, name="both")
    sketch.op("TopK", both, [8], name="choose", axis=-1)
    sketch.nodes[-1].output.append("chosen")
    table = sketch.op("Gather", f32(np.random.default_rng(3).normal(size=16)), "chosen", name="y")
    return sketch.network(table)


@pytest.mark.parametrize("op", ["Round", "TopK"])
def test_decisions_of_other_operators_in_an_engine(subject, op):
    rung = tf32(subject(model=near_choice(op), fake={}))
    assert (rung.passed, rung.how, rung.nodes) == (False, "measured", ("choose",))
    assert rung.decided is not None
    assert rung.decided.flips[0].op == op
    assert rung.decided.left <= 1 < rung.decided.error


def test_fp16_that_flips_a_decision(subject):
    rung = precision(subject(model=chosen()))
    told(rung)
    assert rung.cause.startswith("FP16 changes a decision: over")


def test_an_error_that_the_true_decisions_leave_is_blamed_as_before(subject):
    whole = tf32(subject(model=chosen())).decided
    assert whole is not None
    left = whole.left
    rung = tf32(subject(model=chosen(), criterion=Criterion(rel_max=0.01 * left / 2)))
    assert (rung.passed, rung.nodes) == (False, ())
    assert rung.cause.startswith("TF32 alone puts the outputs out of tolerance")
    assert rung.decided is not None
    assert rung.decided.left == pytest.approx(2)
    part = rung.evidence[0]
    assert part.severity == "warning"
    assert part.text.startswith("Part of the error comes from decisions: over decides")


def test_decisions_that_matter_little_are_not_told(subject):
    rung = tf32(subject(model=chosen(weight=1e-6), criterion=Criterion(rel_max=1e-4)))
    assert rung.passed is False
    assert rung.decided is None


def test_an_overflow_that_flips_decisions_is_the_cause(subject):
    rung = precision(subject(model=chosen(scale=1e5)))
    assert rung.passed is False
    assert rung.decided is None
    assert "scores" in rung.nodes


def test_kernels_that_round_differently_are_not_at_fault(subject):
    rung = fp32_engine(subject(model=chosen(margin=1e-7), fake={"broken": {"scores": 1 + 1e-6}}))
    assert (rung.passed, rung.nodes) == (False, ())


def test_a_wrong_kernel_before_a_decision_is_at_fault(subject):
    rung = fp32_engine(subject(model=chosen(), fake={"broken": {"scores": 1.01}}))
    assert rung.passed is False
    assert rung.decided is None
    assert rung.nodes == ("scores",)
