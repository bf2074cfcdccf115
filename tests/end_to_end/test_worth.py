"""A plan that passes but gains nothing says so first, and fails where a gain is asked for."""

import numpy as np
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
    assert told.startswith("PASSED in emulation")
    assert (
        "but it gains nothing: it is predicted to save 0 % of what everything in FP16 would" in told
    )
    worth = ended.record["worth"]
    assert worth["cost"] == pytest.approx(worth["fp32"])
    assert worth["fp32"] > 1.5


def test_where_fp32_costs_least_it_is_advised(fix):
    """Two of three products overflow; with Casts at all ends FP32 itself costs less."""
    s = Sketch()
    x, eye = s.input("x", [256, 8]), np.eye(8, dtype=np.float32)
    back = s.op("MatMul", s.op("MatMul", x, eye * 1e5, name="large"), eye * 1e-5, name="back")
    proto = s.proto(back, s.op("MatMul", x, eye, name="beside"))
    ended = fix(models.Ill(proto, {"x": models.signals(256, 8, seed=9)}), "--no-repair")
    assert ended.code == 0
    assert ended.record["worth"]["fp32"] < 1
    told = " ".join(ended.out.split())
    assert "use the FP32 model" in told


@pytest.mark.parametrize("io", ["fp16", "fp32"])
def test_what_keeps_nothing_is_everything_low(fix, io):
    """A state that moves from an input to an output is FP32 whatever is kept, where these are."""
    s = Sketch()
    x, state = s.input("x", [1, 64]), s.input("state", [1, 4096])
    y = s.op("Relu", x, name="relu")
    moved = s.op("Concat", state, s.op("Transpose", state, name="turned", perm=[0, 1]), axis=1)
    ill = models.Ill(
        s.proto(y, moved),
        {"x": models.signals(1, 64, seed=9), "state": models.signals(1, 4096, seed=8)},
    )
    ended = fix(ill, "--lower", "relu", "--io", io)
    assert ended.record["plan"]["keep"] == []
    assert bool(ended.record["plan"]["data_movement"]) is (io == "fp32")
    assert ended.record["worth"]["cost"] == 1


def test_a_mixed_candidate_has_its_worth_too(call, saved, fix):
    ill = models.layer_norm()
    fixed = fix(ill, "--no-repair")
    model, inputs = saved(ill)
    arguments = ("verify", model, fixed.model, "--inputs", inputs)
    ended = call(*arguments, "-o", "judged", folder="judged")
    assert ended.code == 0
    assert ended.record["worth"]["cost"] == pytest.approx(fixed.record["worth"]["cost"])


def test_a_model_that_only_moves_data_has_no_cost(fix):
    s = Sketch()
    x = s.input("x", [1, 4, 6])
    moved = s.op("Reshape", x, [1, 6, 4], name="turn")
    ended = fix(models.Ill(s.proto(moved), {"x": models.signals(1, 4, 6, seed=9)}))
    assert ended.code == 0
    assert ended.record["worth"] is None
