"""Decisions as the cause of an error: shown by giving the low model those of the reference."""

from math import inf

import numpy as np
import pytest

from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.following import computed, errors_of
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.judging.deciding import Channels, Deciding, dominant, given_to
from halfwise.records import Channel, Decided, TensorName
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32


def near_a_threshold(op: str, weight: float) -> models.Ill:
    """Scores at most 1/4096 from a threshold, which FP16 rounds across; what they choose counts.

    Beside that, an offset of 1000 costs the output its low bits.
    """
    s = Sketch()
    score = s.op("Mul", s.input("x", [1, 64]), f32(2.0), name="score")
    chosen = s.op(op, score, *([f32(1.5)] if op == "Greater" else []), name="choose")
    as_float = s.op("Cast", chosen, name="float", to=1) if op == "Greater" else chosen
    weighed = s.op("Mul", as_float, f32(weight), name="weigh")
    shifted = s.op("Add", weighed, f32(1000.0), name="shift")
    y = s.op("Add", s.op("Sub", shifted, f32(1000.0), name="back"), score, name="end")
    x = 0.75 + np.random.default_rng(1).uniform(-1, 1, (2, 1, 64)) / 8192
    return models.Ill(s.proto(y), {"x": x.astype(np.float32)})


def cause(ill: models.Ill) -> Decided | None:
    prepared = prepare(ill)
    low = emulate_typed(rewrite(prepared.network, prepared.roles, names(), FP16).model)
    trials = prepared.trials()
    errors = errors_of(trials, names(), lambda _done, _of: None)
    look = Deciding(
        prepared.network,
        prepared.roles,
        lambda samples: ModelRunner(low, samples, partial=True),
        given_to(low, prepared.network),
        trials.error,
        trials.samples,
    )
    return look.cause(errors)


@pytest.mark.parametrize("op", ["Greater", "Round"])
def test_decisions_that_change_are_the_cause_if_the_true_ones_undo_the_error(op):
    found = cause(near_a_threshold(op, 4.0))
    assert found is not None
    (flip,) = found.flips
    assert (flip.node, flip.of, found.samples) == ("choose", 128, 2)
    assert 0 < flip.elements < 128
    assert set(found.nodes) == {"score", "choose"}
    assert found.left < 1 < found.error < inf


def decided_output(op: str, *, read: bool) -> models.Ill:
    """A decision near a threshold that the model outputs, and perhaps computes with."""
    s = Sketch()
    score = s.op("Mul", s.input("x", [1, 64]), f32(2.0), name="score")
    chosen = s.op(op, score, *([f32(1.5)] if op == "Greater" else []), name="choose")
    outputs = (chosen, s.op("Mul", chosen, f32(4.0), name="weigh")) if read else (chosen,)
    return models.Ill(s.proto(*outputs), {"x": near_a_threshold(op, 1.0).inputs["x"]})


@pytest.mark.parametrize(("op", "read"), [("Greater", False), ("Round", False), ("Round", True)])
def test_decisions_that_the_model_outputs_are_the_cause(op, read):
    found = cause(decided_output(op, read=read))
    assert found is not None
    assert [flip.node for flip in found.flips] == ["choose"]
    assert found.left == 0 < found.error


def test_decisions_that_change_are_no_cause_where_the_error_is_another():
    assert cause(near_a_threshold("Greater", 1e-6)) is None


def test_without_decisions_there_is_no_such_cause():
    assert cause(models.deep(layers=3)) is None


WIDTH = 16
T = TensorName("t")


def one_channel_cancels(gain: float) -> models.Ill:
    """Channel 5 of `mix` adds up terms of both signs, which nearly cancel, `gain` times the others.

    What follows reads all channels.
    """
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 0.25, (32, WIDTH))
    weights[:, 5] = gain * np.tile([1.0, -1.0], 16)
    first = np.repeat(rng.normal(0, 0.3, (WIDTH, 16)), 2, axis=1)
    s = Sketch()
    h = s.op("Tanh", s.op("MatMul", s.input("x", [1, 6, WIDTH]), f32(first), name="up"), name="act")
    h = s.op("Add", h, f32(rng.normal(0, 0.02, 32)), name="bias")
    t = s.op("MatMul", h, f32(weights), name="mix")
    y = s.op("MatMul", t, f32(rng.uniform(0.5, 1.5, (WIDTH, 4))), name="end")
    s.op("Relu", "x", name="beside")
    x = rng.normal(0, 1, (3, 1, 6, WIDTH)).astype(np.float32)
    return models.Ill(s.proto(y, "beside_out"), {"x": x})


def channel_cause(ill: models.Ill) -> tuple[Channel | None, float]:
    prepared = prepare(ill)
    low = emulate_typed(rewrite(prepared.network, prepared.roles, names(), FP16).model)
    trials = prepared.trials()
    errors = errors_of(trials, names(), lambda _done, _of: None)
    deciding = Deciding(
        prepared.network,
        prepared.roles,
        lambda some: ModelRunner(low, some),
        given_to(low, prepared.network),
        trials.error,
        trials.samples,
    )
    look = Channels(deciding, lambda patch: given_to(low, prepared.network, patch=patch))
    return look.cause(errors, computed(prepared.network, prepared.roles)), max(errors)


def test_a_channel_carries_the_error_if_its_true_values_undo_it():
    found, error = channel_cause(one_channel_cancels(50.0))
    assert found is not None
    assert (found.tensor, found.axis, found.index, found.size) == ("mix_out", 2, 5, WIDTH)
    assert found.nodes == ("up", "act", "bias", "mix")
    assert found.left <= error / 2
    assert found.rest < 0.01 < found.error


def test_no_channel_carries_an_error_that_all_have():
    assert channel_cause(one_channel_cancels(0.25))[0] is None


def test_the_channel_with_most_of_the_error():
    true = np.ones((1, 3, WIDTH))
    own = true + 0.001
    assert dominant(T, true, own) is None
    own[..., 2] = 1.5
    found = dominant(T, true, own)
    assert found is not None
    assert (found.axis, found.index) == (2, 2)
    assert (found.error, found.rest) == pytest.approx((0.5, 0.001))
    patched = found.patch(true, own)
    assert np.array_equal(patched[..., 2], true[..., 2])
    assert np.array_equal(patched[..., 3], own[..., 3])
    assert found.patch(true[:, :2], own) is own


def test_channels_of_images_are_on_axis_1():
    true = np.zeros((1, WIDTH, 3, 9))
    own = true.copy()
    own[:, 4] = 1
    found = dominant(T, true, own)
    assert found is not None
    assert (found.axis, found.index, found.rest) == (1, 4, 0.0)


@pytest.mark.parametrize("shape", [(WIDTH,), (4, 3, 5), (1, WIDTH)])
def test_too_few_numbers_have_no_channel(shape):
    own = np.zeros(shape)
    own[..., 0] = 1
    assert dominant(T, np.zeros(shape), own) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_errors_that_are_not_finite_have_no_channel(value):
    own = np.zeros((1, 3, WIDTH))
    own[0, 0, 0] = value
    assert dominant(T, np.zeros_like(own), own) is None
