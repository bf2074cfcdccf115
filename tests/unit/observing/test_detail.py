"""Counting on bits must agree with rounding every element by the format itself."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.formats import BF16, FP16, Format
from halfwise.observing.detail import DetailCounter
from halfwise.records import Detail

anything = hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))


def detail(fmt: Format, *arrays: np.ndarray) -> Detail:
    counter = DetailCounter(fmt)
    for array in arrays:
        counter.add(array)
    return counter.detail(len(arrays))


def neighbours(*values: float) -> np.ndarray:
    centre = np.array(values, np.float32)
    return np.concatenate(
        [
            np.nextafter(centre, np.float32(0)),
            centre,
            np.nextafter(centre, np.float32(np.inf)),
        ]
    )


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@given(x=anything)
@example(neighbours(65504, 65519.996, 65520, 2.0**-14, 2.0**-14 - 2.0**-25))
@example(neighbours(2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-126, 2.0**-149, 0))
@example(neighbours(BF16.overflow_threshold, BF16.max, BF16.flush_threshold))
@example(neighbours(BF16.smallest_normal - BF16.smallest_subnormal / 2))
def test_fractions_are_exact(fmt, x):
    found = detail(fmt, x)
    rounded, finite = np.abs(fmt.round(x)), np.isfinite(x)
    nonzero = finite & (x != 0)
    becomes_subnormal = (rounded > 0) & (rounded < fmt.smallest_normal)
    assert found.overflow == (finite & np.isinf(rounded)).sum() / max(x.size, 1)
    assert found.flush == (nonzero & (rounded == 0)).sum() / max(nonzero.sum(), 1)
    assert found.subnormal == becomes_subnormal.sum() / max(x.size, 1)
    assert found.smallest_nonzero == np.abs(x[nonzero]).min(initial=np.inf)


@given(anything)
def test_histogram_counts_every_finite_element_once(x):
    histogram = detail(FP16, x).histogram
    magnitudes = np.abs(x[np.isfinite(x)].astype(np.float64))
    exponents = np.frexp(magnitudes[magnitudes > 0])[1] - 1
    expected = {int(e): int((exponents == e).sum()) for e in exponents}
    found = {histogram.first + i: c for i, c in enumerate(histogram.counts) if c}
    assert found == expected
    assert histogram.zeros == (magnitudes == 0).sum()
    assert not histogram.counts or (histogram.counts[0] and histogram.counts[-1])


@given(anything, anything)
def test_merging_samples_equals_one_large_sample(x, y):
    apart, together = detail(FP16, x, y), detail(FP16, np.concatenate([x, y]))
    assert apart.model_copy(update={"samples": 1}) == together
    assert apart.samples == 2


def test_many_blocks_and_any_memory_order():
    x = np.random.default_rng(0).lognormal(0, 8, (300, 700)).astype(np.float32)
    found = detail(FP16, x)
    assert found == detail(FP16, np.asfortranarray(x)) == detail(FP16, x.T)
    assert found.overflow == np.isinf(FP16.round(x)).mean()
    assert sum(found.histogram.counts) == x.size


def test_no_elements():
    found = detail(FP16, np.zeros((0, 3), np.float32))
    assert found.smallest_nonzero == math.inf
    assert (found.overflow, found.flush, found.subnormal) == (0, 0, 0)
    assert (found.histogram.first, found.histogram.counts, found.histogram.zeros) == (0, (), 0)


def test_scalar():
    assert detail(FP16, np.array(-3, np.float32)).histogram.first == 1
