"""Builds, engines and what low precision explains."""

from math import inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import (
    Band,
    BuildConfig,
    WorkerInfo,
)


def test_without_wishes_the_builder_decides_and_tf32_is_off():
    plain = BuildConfig(model_sha256="0", typing="weak")
    assert (plain.low, plain.tf32, plain.keep) == (None, False, ())
    assert (plain.workspace_bytes, plain.optimization_level, plain.tactic_sources) == (None,) * 3


@pytest.mark.parametrize(
    ("value", "told"), [("0", "disables TF32 in every engine"), ("1", "may enable TF32 in every")]
)
def test_what_an_override_of_tf32_means(value, told):
    info = WorkerInfo(name="w", command=("python3",))
    assert info.tf32_remark == ""
    assert told in info.model_copy(update={"tf32_override": value}).tf32_remark


ERRORS = st.floats(0.0, 1e6) | st.just(inf)


@given(ERRORS, ERRORS, ERRORS)
def test_what_is_inside_is_explained_and_what_is_larger_is_not(one, other, measured):
    band = Band(least=min(one, other), most=max(one, other))
    assert band.holds(one)
    assert band.holds(other)
    assert band.explains(measured) == (measured <= band.most)
    assert band.holds(measured) == (band.least <= measured <= band.most)
    assert band.decibels >= 0


def test_a_band_that_may_overflow_holds_infinity_alone_beyond_its_end():
    band = Band(least=0.25, most=0.5, may_overflow=True)
    assert band.holds(inf)
    assert not band.holds(0.6)
    assert isclose(band.decibels, 6.0206, rel_tol=1e-4)


def test_the_width_of_what_has_no_ratio():
    assert Band(least=0.0, most=0.0).decibels == Band(least=inf, most=inf).decibels == 0
    assert Band(least=0.0, most=1.0).decibels == Band(least=1.0, most=inf).decibels == inf
