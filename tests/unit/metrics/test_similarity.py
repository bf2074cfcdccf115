"""Cosine and SI-SDR: by their definitions, and what the worst vector does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from halfwise.errors import CaseError
from halfwise.metrics.similarity import cosine, cosine_and_length, si_sdr, snr

RNG = np.random.default_rng(4)
VECTORS = arrays(np.float64, (3, 5), elements=st.floats(-10, 10)).filter(
    lambda a: bool((np.linalg.norm(a, axis=1) > 1e-3).all())
)
METRICS = pytest.mark.parametrize(("metric", "best"), [(cosine, 1), (si_sdr, 100)])


def brute(name, target, found):
    values = []
    for s, c in zip(target, found, strict=True):
        if name == "cosine":
            values.append(s @ c / np.sqrt(s @ s * (c @ c)))
        else:
            part = c @ s / (s @ s) * s
            values.append(10 * np.log10(part @ part / ((part - c) @ (part - c))))
    return min(values)


@given(VECTORS, VECTORS)
def test_the_worst_vector_is_that_of_the_definition(target, found):
    assert cosine([{"y": target}], [{"y": found}], None) == pytest.approx(
        brute("cosine", target, found), abs=1e-12
    )
    noisy = target + 0.1 * np.abs(target).max() * np.sign(found + 0.5)
    with np.errstate(divide="ignore"):
        expected = min(brute("si-sdr", target, noisy), 100)
    assert si_sdr([{"y": target}], [{"y": noisy}], None) == pytest.approx(expected, abs=1e-6)


@METRICS
@given(target=VECTORS, scale=st.floats(0.1, 10))
def test_equal_vectors_are_best_whatever_their_scale(metric, best, target, scale):
    assert metric([{"y": target}], [{"y": target}], None) == pytest.approx(best)
    assert metric([{"y": target}], [{"y": scale * target}], None) == pytest.approx(best)


@METRICS
def test_one_broken_vector_among_many_counts(metric, best):
    target = RNG.standard_normal((40, 16))
    found = target.copy()
    found[7] = found[8]
    assert metric([{"y": target}], [{"y": found}], None) < 0.9 * best
    worse = metric([{"y": target}] * 2, [{"y": target}, {"y": found}], None)
    assert worse == metric([{"y": target}], [{"y": found}], None)


@pytest.mark.parametrize("metric", [cosine, si_sdr])
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_or_misshapen_is_lowest(metric, value):
    target = RNG.standard_normal((2, 16))
    found = target.copy()
    found[1, 3] = value
    assert metric([{"y": target}], [{"y": found}], None) == -np.inf
    assert metric([{"y": target}], [{"y": target[:, :9]}], None) == -np.inf


@pytest.mark.filterwarnings("error")
def test_silence_has_no_direction():
    target = np.stack([np.zeros(8), np.arange(8.0)])
    found = np.stack([np.full(8, 3.0), np.arange(8.0)])
    assert cosine([{"y": target}], [{"y": found}], None) == pytest.approx(1)
    assert cosine([{"y": target}], [{"y": 0 * target}], None) == 0
    assert si_sdr([{"y": target}], [{"y": 0 * target}], None) == -np.inf
    for metric in (cosine, si_sdr):
        with pytest.raises(CaseError, match="nothing to compare"):
            metric([{"y": 0 * target}], [{"y": target}], None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e-30, 1e30])
def test_neither_overflows(scale):
    target = RNG.standard_normal((2, 16))
    for metric, best in ((cosine, 1), (si_sdr, 100)):
        found = [{"y": scale * target}]
        assert metric(found, found, None) == pytest.approx(best)


def test_labels_are_the_target():
    target, found = RNG.standard_normal((2, 1, 16))
    value = cosine([{"y": found}], [{"y": found}], [target])
    assert value == cosine([{"y": target}], [{"y": found}], None) < 1


def test_trailing_axes_of_one_are_no_vectors():
    target = RNG.standard_normal((2, 16))
    found = target + 0.1
    flat = cosine([{"y": target}], [{"y": found}], None)
    assert cosine([{"y": target[..., None, None]}], [{"y": found[..., None, None]}], None) == flat


@given(VECTORS, VECTORS)
def test_snr_is_the_definition_with_faint_signals_60_db_below(target, found):
    noisy = target + 0.1 * np.abs(target).max() * np.sign(found + 0.5)
    noise, power = ((part**2).sum(axis=1) for part in (target - noisy, target))
    expected = (10 * np.log10(np.maximum(power, 1e-6 * power.max()) / noise)).min()
    assert snr([{"y": target}], [{"y": noisy}], None) == pytest.approx(expected, abs=1e-6)
    assert snr([{"y": target}], [{"y": target}], None) == 100
    assert cosine_and_length([{"y": target}], [{"y": target}], None) == pytest.approx(1)


@pytest.mark.parametrize("scale", [0.01, 0.9, 1.1, 20])
def test_loudness_and_length_count_where_they_are_asked_for(scale):
    target = RNG.standard_normal((2, 16))
    given, found = [{"y": target}], [{"y": scale * target}]
    assert cosine(given, found, None) == pytest.approx(1)
    assert cosine_and_length(given, found, None) == pytest.approx(1 - (1 - scale) ** 2 / 2)
    assert snr(given, found, None) == pytest.approx(-20 * np.log10(abs(1 - scale)), abs=1e-6)


@given(VECTORS, VECTORS)
def test_of_vectors_of_one_length_it_is_the_cosine(target, found):
    found = found * np.linalg.norm(target, axis=1)[:, None] / np.linalg.norm(found, axis=1)[:, None]
    one, both = (f([{"y": target}], [{"y": found}], None) for f in (cosine, cosine_and_length))
    assert both == pytest.approx(one, abs=1e-9)


def test_quiet_signals_count_and_faint_ones_as_if_60_db_below():
    loud, quiet = np.ones((1, 4, 8)), np.full((1, 4, 8), 0.05)
    given = [{"y": loud}, {"y": quiet}, {"y": 0 * quiet}]
    assert snr(given, [given[0], {"y": 0 * quiet}, given[2]], None) == pytest.approx(0)
    faint = [given[0], given[1], {"y": 0 * quiet + 1e-5}]
    assert snr(given, faint, None) == pytest.approx(40)
    assert snr(given, [*given[:2], {"y": loud}], None) == pytest.approx(-60)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_or_misshapen_has_no_snr(value):
    target = RNG.standard_normal((2, 16))
    found = target.copy()
    found[1, 3] = value
    for metric in (snr, cosine_and_length):
        assert metric([{"y": target}], [{"y": found}], None) == -np.inf
        assert metric([{"y": target}], [{"y": target[:, :9]}], None) == -np.inf
        assert np.isfinite(metric([{"y": 1e200 * target}], [{"y": 1e200 * target}], None))
        with pytest.raises(CaseError, match="nothing to compare"):
            metric([{"y": 0 * target}], [{"y": target}], None)
