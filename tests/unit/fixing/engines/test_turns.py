from collections.abc import Sequence
from itertools import count, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.measure import race
from halfwise.records import ROUNDS, TimeRatio, time_ratio

CONFIDENCE = 0.98


def known(one: Sequence[float], other: Sequence[float]) -> TimeRatio:
    ratio = time_ratio(one, other)
    assert ratio is not None
    return ratio


def test_of_two_equal_engines_the_interval_seldom_misses_one():
    """Of 7 rounds each may be above or below the median ratio, alike and apart."""
    missed = 0
    for above in product((False, True), repeat=ROUNDS):
        one = [1.1 if up else 0.9 for up in above]
        ratio = known(one, [1.0] * ROUNDS)
        missed += not ratio.low <= 1 <= ratio.high
    assert missed == 2
    assert missed / 2**ROUNDS <= 1 - CONFIDENCE
    assert time_ratio([1.0] * (ROUNDS - 1), [1.0] * ROUNDS) is None
    assert time_ratio([], []) is None


@given(st.integers(ROUNDS, 40), st.integers(0, 2**32 - 1))
def test_the_interval_holds_all_ratios(rounds, seed):
    drawn = np.random.default_rng(seed).lognormal(0, 0.1, (2, rounds))
    ratio = known(*drawn.tolist())
    ratios = (drawn[0] / drawn[1]).tolist()
    assert ratio.rounds == rounds
    assert (ratio.low, ratio.high) == (min(ratios), max(ratios))


@pytest.mark.parametrize("rounds", [7, 14, 28])
def test_as_many_intervals_hold_the_true_ratio_as_is_said(rounds):
    """Times that are far from normal, and a clock that both see: 2000 races by hand."""
    drawn = np.random.default_rng(rounds)
    held = 0
    for _ in range(2000):
        clock = drawn.uniform(1, 1.5, rounds)
        one = 2 * clock * drawn.exponential(1, rounds)
        other = clock * drawn.exponential(1, rounds)
        ratio = known(one.tolist(), other.tolist())
        held += ratio.low <= 2 <= ratio.high
    assert held / 2000 >= CONFIDENCE - 0.01


def laps(**times):
    """Return what runs engines, each with the times that are repeated, and what was run."""
    ran = {name: count() for name in times}

    def lap(name):
        i = next(ran[name])
        given = times[name]
        return given[i % len(given)]

    return lap


def test_each_runs_seven_rounds_in_turn():
    times = race({"a": "a", "b": "b"}, laps(a=[1.0], b=[1.2, 1.1]))
    assert times == {"a": (1.0,) * ROUNDS, "b": (1.2, 1.1, 1.2, 1.1, 1.2, 1.1, 1.2)}
    assert race({}, laps()) == {}


def test_one_that_fails_has_no_times():
    engines = dict.fromkeys("abc")
    times = race({n: n for n in engines}, laps(a=[1.0, 1.3, 0.8], b=[1.0, None], c=[1.0]))
    assert times["b"] == ()
    assert len(times["a"]) == ROUNDS
    assert race({"a": "a"}, laps(a=[None])) == {"a": ()}
