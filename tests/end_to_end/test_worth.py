"""A plan that passes but gains nothing says so first, and fails where a gain is asked for."""

import pytest

from tests import models
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def all_kept():
    """A model of which each node adds its part to an error that is far from what is allowed."""
    s = Sketch()
    x = s.input("x", [1, 64])
    for i in range(3):
        x = s.op("MatMul", x, models.weights(64, 64, seed=i, scale=0.2), name=f"product{i}")
    return models.Ill(
        s.proto(s.op("Sigmoid", x, name="mask")), {"x": models.signals(1, 64, seed=9)}
    )


def test_nothing_is_gained(fix, all_kept):
    ended = fix(all_kept, "--rel-max", "1e-7")
    assert ended.code == 0
    told = " ".join(ended.out.split())
    assert told.startswith("PASSED (emulated)")
    assert (
        "but it gains nothing: it is predicted to save 0 % of what everything in FP16 would" in told
    )
    worth = ended.record["worth"]
    assert worth["cost"] == pytest.approx(worth["fp32"])
    assert worth["fp32"] > 1.5
    assert worth["nearest"]["kept"] < 4
    assert worth["nearest"]["error"] > 1
    assert f"keeps {worth['nearest']['kept']} node" in told


def test_a_plan_without_a_finite_error_is_not_worth_naming(fix):
    """Two of three nodes overflow; with Casts around them FP32 itself costs less."""
    s = Sketch()
    x = s.input("x", [1, 64])
    back = s.op("Mul", s.op("Mul", x, 1e5, name="large"), 1e-5, name="back")
    ill = models.Ill(s.proto(s.op("Relu", back, name="last")), {"x": models.signals(1, 64, seed=9)})
    ended = fix(ill)
    assert ended.code == 0
    assert ended.record["worth"]["fp32"] < 1
    assert ended.record["worth"]["nearest"] is None
    told = " ".join(ended.out.split())
    assert "but it gains nothing: FP32 is predicted to cost 0." in told


def test_a_plan_that_is_not_worth_enough_fails(fix, all_kept):
    ended = fix(all_kept, "--rel-max", "1e-7", "--require-worth", "1.5")
    assert ended.code == 10
    (reason,) = ended.record["verdict"]["reasons"]
    assert "1.5 × is required" in reason
    assert fix(models.small(), "--require-worth", "1.5", "-o", "other").code == 0


def test_a_mixed_candidate_has_its_worth_too(call, saved, fix):
    ill = models.layer_norm()
    fixed = fix(ill)
    model, inputs = saved(ill)
    arguments = ("verify", model, fixed.model, "--inputs", inputs)
    ended = call(*arguments, "-o", "judged", folder="judged")
    assert ended.code == 0
    assert ended.record["worth"]["cost"] == pytest.approx(fixed.record["worth"]["cost"])
    refused = call(*arguments, "--require-worth", "0.5", "-o", "again", folder="again")
    assert refused.code == 10
