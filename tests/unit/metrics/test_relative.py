from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.metrics.relative import (
    RelativeError,
    energies,
    finite_relative_rms,
    relative_error,
    relative_rms,
)


def array(*values, dtype=np.float32):
    return np.array(values, dtype)


def test_it_is_the_noise_over_the_signal():
    assert relative_rms(array(3, 4), array(3, 5)) == pytest.approx(0.2)
    assert relative_rms(array(3, 4), array(3, 4)) == 0
    assert relative_rms(array(), array()) == 0


def test_what_only_one_side_has_is_infinite():
    nan, infinite = array(np.nan, 1), array(np.inf, 1)
    assert relative_rms(nan, nan) == 0
    assert relative_rms(infinite, infinite) == 0
    assert relative_rms(infinite, -infinite) == inf
    assert relative_rms(infinite, array(1, 1)) == inf
    assert relative_rms(array(1, 1), nan) == inf
    assert relative_rms(array(0, 0), array(0, 1e-9)) == inf
    assert relative_rms(array(1, 1), array(1)) == inf


def test_elements_that_are_the_same_infinity_count_for_nothing():
    assert relative_rms(array(np.inf, 3, 4), array(np.inf, 3, 5)) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", [np.int64, np.bool_])
def test_whole_numbers_count_what_is_unequal(kind):
    right, wrong = array(1, 0, 1, 1, dtype=kind), array(1, 0, 1, 0, dtype=kind)
    assert relative_rms(right, wrong) == pytest.approx(sqrt(1 / 4))


def test_small_tensors_are_as_large_as_others():
    tiny = np.float32(1e-30) * array(3, 4)
    assert relative_rms(tiny, tiny * np.float32(1.5)) == pytest.approx(0.5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(1e-3, 1e3))
def test_it_does_not_depend_on_scale(values, scale):
    right = np.array(values)
    wrong = right + 1
    signal, noise = energies(right, wrong)
    assert noise == pytest.approx(len(values), rel=1e-6)
    if signal > 1:
        expected = relative_rms(right, wrong)
        assert relative_rms(right * scale, wrong * scale) == pytest.approx(expected, rel=1e-6)


def test_samples_are_pooled_and_the_worst_is_known():
    error = RelativeError()
    assert error.add(array(3, 4), array(3, 4), 0) == 0
    assert error.add(array(0, 5), array(0, 6), 1) == pytest.approx(0.2)
    assert error.add(array(5, 0), array(5, 0), 2) == 0
    assert error.value == pytest.approx(sqrt(1 / 75))
    assert error.worst_sample == 1


def test_relative_error():
    one = np.array([1.0, -2.0], np.float32)
    assert relative_error(one, one) == 0
    assert relative_error(one, one + np.float32(0.5)) == 0.25
    assert relative_error(one, one[:1]) == np.inf
    assert relative_error(one, np.array([1.0, np.nan], np.float32)) == np.inf
    assert relative_error(np.array([np.inf]), np.array([np.inf])) == 0
    assert relative_error(np.array([1]), np.array([2])) == np.inf
    assert relative_error(np.zeros(2), np.ones(2)) == np.inf
    assert relative_error(np.zeros(0), np.zeros(0)) == 0


def test_the_finite_relative_rms_error():
    assert finite_relative_rms(array(3, 4), array(3, 4)) == 0
    assert finite_relative_rms(array(3, 4), array(3, 4.5)) == pytest.approx(0.1)
    assert finite_relative_rms(array(3, 4, inf), array(3, 4.5, 0)) == pytest.approx(0.1)
    assert finite_relative_rms(array(3, 4), array(3, np.nan)) == inf
    assert finite_relative_rms(array(3, 4), array(3)) == inf
    assert finite_relative_rms(array(0), array(1)) == inf
    assert finite_relative_rms(array(), array()) == 0
