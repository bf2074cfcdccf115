"""The band of errors that low precision explains."""

from math import inf, isclose

from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import Band

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


def test_it_is_stored_with_infinity():
    band = Band(least=1.0, most=inf)
    assert Band.model_validate_json(band.model_dump_json()) == band
