"""A channel as the carrier of an error: shown by giving the low model that of the reference."""

import numpy as np
import pytest

from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.following import computed, errors_of
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.judging.channel import Channels, dominant
from halfwise.judging.deciding import Deciding, given_to
from halfwise.records import Channel, TensorName
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.graph.sketch import Sketch, f32

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


def cause(ill: models.Ill) -> tuple[Channel | None, float]:
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
    found, error = cause(one_channel_cancels(50.0))
    assert found is not None
    assert (found.tensor, found.axis, found.index, found.size) == ("mix_out", 2, 5, WIDTH)
    assert found.nodes == ("up", "act", "bias", "mix")
    assert found.left <= error / 2
    assert found.rest < 0.01 < found.error


def test_no_channel_carries_an_error_that_all_have():
    assert cause(one_channel_cancels(0.25))[0] is None


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
