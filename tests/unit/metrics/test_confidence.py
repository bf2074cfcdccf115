"""Bounds on the share of inputs that fail."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from halfwise.metrics.confidence import CONFIDENCE, failure_bound, upper_bound

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("failing", "judged", "bound"), [(0, 10, 0.2589), (0, 59, 0.0495), (3, 3, 1), (0, 1, 0.95)]
)
def test_known_bounds(failing, judged, bound):
    assert upper_bound(failing, judged) == pytest.approx(bound, abs=1e-4)


@given(COUNTS)
def test_it_is_that_of_clopper_and_pearson(counts):
    failing, judged = counts
    exact = binomtest(failing, judged, alternative="less").proportion_ci(CONFIDENCE, "exact")
    assert upper_bound(failing, judged) == pytest.approx(exact.high, rel=1e-6)


@given(st.floats(0, 1), st.integers(1, 60))
def test_it_holds_as_often_as_it_says(share, judged):
    missed = sum(
        binom.pmf(failing, judged, share)
        for failing in range(judged + 1)
        if upper_bound(failing, judged) < share
    )
    assert missed <= 1 - CONFIDENCE + 1e-9


@pytest.mark.parametrize("causes", [1, 5, 20, 100, 10_000])
def test_it_holds_where_a_search_learns_nothing_but_what_joined(causes):
    """Each failing input has one of equal causes; the samples that have it join, and it is gone."""
    rng, judged, rate = np.random.default_rng(causes), 60, 0.2
    missed = 0
    for _ in range(2000):
        hit = rng.integers(causes, size=rng.binomial(judged, rate))
        # One sample of each cause joins; others of it pass from then on.
        joined = len(set(hit.tolist()))
        true = rate * (1 - joined / causes)
        missed += failure_bound(0, judged - joined, joined).upper < true
    assert missed <= 0.05 * 2000


def test_samples_that_joined_raise_the_bound():
    bound = failure_bound(1, 20, 10)
    assert (bound.judged, bound.failing, bound.joined) == (20, 1, 10)
    assert bound.upper == upper_bound(11, 30) > upper_bound(1, 20)
