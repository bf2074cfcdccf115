"""Pairs of elements: widening, exact integers, non-finite rules, chunks."""

import math
import os
import subprocess
import sys
from math import inf, sqrt
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.formats import CHUNK
from halfwise.metrics.difference import (
    Rare,
    RelativeError,
    Spread,
    chunks,
    common_value,
    compare,
    is_close,
    is_discrete,
    rare_in,
    relative_rms,
)


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)


def i64(values: Any) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def test_every_pairing_of_special_values() -> None:
    values = [0.0, 1.0, math.nan, math.inf, -math.inf]
    for left in values:
        for right in values:
            found = compare(f32([left]), f32([right]), cosine=True)
            same = left == right or (math.isnan(left) and math.isnan(right))
            both_finite = math.isfinite(left) and math.isfinite(right)
            assert found.nonfinite == int(not same and not both_finite), (left, right)
            expected = abs(left - right) if both_finite else (0.0 if same else math.inf)
            assert found.max_abs == expected, (left, right)
            assert found.noise == expected**2, (left, right)


def test_equal_nonfinite_pairs_leave_the_finite_sums_alone() -> None:
    reference = f32([3, np.nan, np.inf, 4])
    candidate = f32([3, np.nan, np.inf, 5])
    found = compare(reference, candidate, cosine=True)
    assert (found.max_abs, found.noise, found.nonfinite) == (1.0, 1.0, 0)
    assert (found.product, found.reference_energy, found.candidate_energy) == (29.0, 25.0, 34.0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_low_precision_is_widened_before_it_is_subtracted(dtype: type) -> None:
    reference = f32([60000.0, 0.25])
    candidate: NDArray[Any] = np.asarray([-60000.0, 0.5], dtype=dtype)
    found = compare(reference, candidate, cosine=False)
    assert found.max_abs == 60000.0 - float(candidate[0])
    assert found.max_abs > 119000


def test_integers_are_subtracted_exactly() -> None:
    big = i64([2**62, -(2**63), 7])
    found = compare(big, i64([2**62 + 1, 2**63 - 1, 7]), cosine=False)
    assert (found.discrete, found.mismatched) == (True, 2)
    assert found.max_abs == float(2**64 - 1)
    assert compare(np.array([0], np.uint8), np.array([255], np.uint8), cosine=False).max_abs == 255
    assert compare(np.array([-128], np.int8), np.array([127], np.int8), cosine=False).max_abs == 255


def test_booleans_and_strings_are_zero_and_one() -> None:
    found = compare(np.array([True, False]), np.array([False, False]), cosine=False)
    assert (found.mismatched, found.max_abs, found.discrete) == (1, 1.0, True)
    for dtype in (object, np.str_):
        words = np.array(["a", "b", "c"], dtype=dtype)
        other = np.array(["a", "x", "c"], dtype=dtype)
        found = compare(words, other, cosine=False)
        assert (found.mismatched, found.max_abs, found.elements) == (1, 1.0, 3)


def test_which_types_are_discrete() -> None:
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        assert not is_discrete(dtype)
    for dtype in (np.bool_, np.int8, np.uint64, ml_dtypes.int4, ml_dtypes.uint4, np.str_, object):
        assert is_discrete(dtype)
    with pytest.raises(CaseError):
        is_discrete(np.complex64)


def test_a_float_candidate_for_an_integer_reference() -> None:
    found = compare(i64([1, 2, 3]), f32([1, np.nan, 4]), cosine=False)
    assert (found.mismatched, found.nonfinite) == (2, 1)


def test_another_shape_is_misshapen_even_for_as_many_elements() -> None:
    found = compare(np.zeros((2, 3)), np.zeros((3, 2)), cosine=True)
    assert (found.misshapen, found.elements) == (1, 0)
    assert math.isnan(found.cosine)


def test_chunks_cover_arrays_of_any_layout_once() -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((3, CHUNK)).astype(np.float32).T
    candidate = np.asfortranarray(reference + np.float32(1e-3))
    parts = list(chunks(reference, candidate))
    assert len(parts) == 3
    error = np.concatenate([part.error for part in parts])
    expected = np.abs(reference.astype(np.float64) - candidate).ravel()
    np.testing.assert_array_equal(error, expected)


def test_empty_and_scalar_arrays() -> None:
    assert list(chunks(np.zeros((0, 4)), np.zeros((0, 4)))) == []
    assert compare(f32(2), f32(3), cosine=False).max_abs == 1


def test_spread_looks_at_finite_elements_only() -> None:
    spread = Spread()
    spread.add(f32([np.nan, -2, np.inf]))
    spread.add(f32([-np.inf]))
    spread.add(f32([]))
    assert (spread.count, spread.absmax, spread.energy) == (1, 2.0, 4.0)
    assert Spread().absmax == 0.0


_SUMS = """
import numpy as np
from halfwise.metrics.difference import Spread, compare
x = np.random.default_rng(0).standard_normal(60_000)
found, spread = compare(x, x * 1.001, cosine=True), Spread()
spread.add(x)
print(found.noise.hex(), found.product.hex(), spread.energy.hex())
"""


def test_sums_are_the_same_however_many_threads_blas_has() -> None:
    def sums(threads: int) -> bytes:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        return subprocess.check_output([sys.executable, "-c", _SUMS], env=environment)

    assert sums(1) == sums(2)


classes = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def counted(pairs, common):
    rare = Rare()
    for reference, candidate in pairs:
        rare = rare.merged(rare_in(np.array(reference), np.array(candidate), common))
    return rare


@pytest.mark.parametrize(
    ("arrays", "value"),
    [
        ([[0, 0, 0, 1]], (0, 1)),
        ([[7, 7], [7, 1, 2]], (7, 2)),
        ([[0, 1], [0, 1]], None),
        ([[True, True, False]], (1, 1)),
        ([[1.0, 1.0]], None),
        ([["a", "a"]], None),
        ([[]], None),
        ([], None),
    ],
)
def test_the_value_of_more_than_half(arrays, value):
    found = [np.array(a, None if a else int) for a in arrays]
    assert common_value(found) == value


def test_few_positives_that_are_lost_agree_nowhere():
    reference = np.zeros(1000, bool)
    reference[:6] = True
    rare = counted([(reference, np.zeros(1000, bool))], 0)
    assert rare.agreement(6) == 0
    assert counted([(reference, reference)], 0).agreement(6) == 1
    flooded = np.arange(1000) < 12
    assert counted([(reference, flooded)], 0).agreement(6) == pytest.approx(12 / 18)


@given(classes, classes)
def test_of_two_values_it_is_the_dice_coefficient(one, other):
    count = min(len(one), len(other))
    left, right = (np.array(a[:count]) > 1 for a in (one, other))
    both = left.sum() + right.sum()
    dice = 2 * (left & right).sum() / both if both else 1.0
    assert counted([(left, right)], 0).agreement(int(left.sum())) == pytest.approx(dice)


@given(st.lists(st.tuples(classes, st.randoms()), min_size=1, max_size=4))
def test_it_never_rises_as_samples_come(samples):
    pairs = [(c, [v if r.random() < 0.7 else r.randrange(4) for v in c]) for c, r in samples]
    total = sum(int(np.count_nonzero(reference)) for reference, _ in pairs)
    rare, before = Rare(), 1.0
    for reference, candidate in pairs:
        rare = rare.merged(counted([(reference, candidate)], 0))
        assert rare.agreement(total) <= before
        before = rare.agreement(total)


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
    found = compare(right, wrong, cosine=True)
    assert found.noise == pytest.approx(len(values), rel=1e-6)
    if found.reference_energy > 1:
        expected = relative_rms(right, wrong)
        assert relative_rms(right * scale, wrong * scale) == pytest.approx(expected, rel=1e-6)


def test_samples_are_pooled_and_the_worst_is_known():
    error = RelativeError()
    assert error.add(array(3, 4), array(3, 4), 0) == 0
    assert error.add(array(0, 5), array(0, 6), 1) == pytest.approx(0.2)
    assert error.add(array(5, 0), array(5, 0), 2) == 0
    assert error.value == pytest.approx(sqrt(1 / 75))
    assert error.worst_sample == 1


def test_what_is_close():
    one = np.array([1.0, -2.0], np.float32)
    assert is_close(one, one, 0)
    assert is_close(one + np.float32(0.5), one, 0.25)
    assert not is_close(one + np.float32(0.5), one, 0.24)
    assert not is_close(one[:1], one, 1)
    assert not is_close(np.array([1.0, np.nan], np.float32), one, 1)
    assert is_close(np.array([np.inf]), np.array([np.inf]), 0)
    assert not is_close(np.array([2]), np.array([1]), 1)
    assert not is_close(np.ones(2), np.zeros(2), 1)
    assert is_close(np.zeros(0), np.zeros(0), 0)
