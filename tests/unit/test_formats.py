"""Rounding against NumPy and ml_dtypes, and the constants of IEEE 754."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.formats import BF16, FP16, FP32, Format

LOW = pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
arrays = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=8), elements=floats)


def bits(array):
    return array.astype(np.float32).view(np.uint32)


def as_array(*values):
    return np.array(values, np.float32)


@LOW
def test_constants_are_those_of_the_dtype(fmt):
    info = ml_dtypes.finfo(fmt.dtype)
    assert fmt.max == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.precision == info.nmant + 1


def test_thresholds_of_fp16():
    assert FP16.overflow_threshold == 65520
    assert FP16.flush_threshold == 2.0**-25
    assert FP16.largest_exact_integer == 2048
    assert BF16.largest_exact_integer == 256


@LOW
@pytest.mark.parametrize("factor", [0.0, 0.25, 1.0, 1.5, 2.0, 1024.0])
def test_ulp_is_the_distance_to_the_number_above(fmt, factor):
    low = np.array([fmt.smallest_normal * factor]).astype(fmt.dtype)
    above = (low.view(np.uint16) + np.uint16(1)).view(fmt.dtype)
    assert fmt.ulp(float(low[0])) == float(above[0]) - float(low[0])


@given(st.floats(min_value=0, max_value=float(np.finfo(np.float32).max) / 2, width=32))
def test_ulp_of_fp32_is_numpys_spacing(value):
    assert FP32.ulp(value) == float(np.spacing(np.float32(value)))


def test_ulp_at_the_end_of_the_range():
    assert FP16.ulp(FP16.max) == 32
    assert FP16.overflow_threshold == FP16.max + FP16.ulp(FP16.max) / 2


@LOW
@given(arrays)
def test_rounding_is_that_of_the_dtype(fmt, array):
    with np.errstate(all="ignore"):
        expected = array.astype(fmt.dtype).astype(np.float32)
    np.testing.assert_array_equal(fmt.round(array), expected)
    assert fmt.round(array).dtype == np.float32
    assert fmt.round(array).shape == array.shape


@given(floats)
def test_rounding_to_fp16_is_to_the_nearest_and_ties_to_even(value):
    """By definition: no other FP16 number is closer, and of two equally close ones it is even."""
    rounded = float(FP16.round(as_array(value))[0])
    if np.isnan(value):
        assert np.isnan(rounded)
    elif abs(value) >= 65520:
        assert rounded == np.copysign(np.inf, value)
    else:
        code = int(np.float16(rounded).view(np.uint16))
        around = [np.uint16(code + d).view(np.float16) for d in (-1, 1) if 0 <= code + d < 65536]
        finite = [float(n) for n in around if np.isfinite(n)]
        distances = [abs(n - value) for n in finite]
        own = abs(rounded - value)
        assert all(own <= d for d in distances)
        if own in distances:
            assert code % 2 == 0


@LOW
@given(arrays)
def test_rounding_twice_changes_nothing(fmt, array):
    once = fmt.round(array)
    np.testing.assert_array_equal(fmt.round(once), once)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (65504.0, 65504.0),
        (np.nextafter(np.float32(65520), np.float32(0)), 65504.0),
        (65520.0, np.inf),
        (-65520.0, -np.inf),
        (2.0**-25, 0.0),
        (np.nextafter(np.float32(2.0**-25), np.float32(1)), 2.0**-24),
        (-(2.0**-25), -0.0),
        (3 * 2.0**-25, 2.0**-23),
        (2049.0, 2048.0),
        (2051.0, 2052.0),
        (-0.0, -0.0),
        (np.inf, np.inf),
        (np.nan, np.nan),
    ],
)
def test_edges_of_fp16(value, expected):
    rounded = FP16.round(as_array(value))
    np.testing.assert_array_equal(rounded, as_array(expected))
    assert np.signbit(rounded[0]) == np.signbit(expected)


@LOW
@given(arrays)
def test_saturation_differs_from_rounding_only_beyond_the_range(fmt, array):
    saturated, rounded = fmt.saturate(array), fmt.round(array)
    beyond = np.isfinite(array) & np.isinf(rounded)
    np.testing.assert_array_equal(saturated[~beyond], rounded[~beyond])
    np.testing.assert_array_equal(saturated[beyond], np.copysign(fmt.max, array[beyond]))
    with np.errstate(invalid="ignore"):
        assert (np.signbit(saturated) == np.signbit(array)).all()


def test_saturation_keeps_nan_infinities_and_zeros():
    array = as_array(np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45)
    expected = as_array(np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 65504, -65504, 0.0, -0.0)
    saturated = FP16.saturate(array)
    np.testing.assert_array_equal(saturated, expected)
    assert (np.signbit(saturated) == np.signbit(array)).all()


@LOW
def test_rounding_is_monotonic_across_every_binade(fmt: Format):
    array = np.sort(
        np.concatenate(
            [
                as_array(fmt.max, fmt.overflow_threshold, fmt.smallest_normal),
                np.geomspace(1e-10, 1e38, 4001, dtype=np.float32),
            ]
        )
    )
    assert (np.diff(np.minimum(fmt.round(array), 1e38)) >= 0).all()


def test_fp32_rounds_nothing():
    array = as_array(np.pi, 1e-45, 3.4e38, -0.0)
    np.testing.assert_array_equal(bits(FP32.round(array)), bits(array))
