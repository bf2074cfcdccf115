from dataclasses import replace

import pytest

from halfwise.fixing.engines.attempts import Candidate
from halfwise.fixing.engines.proposals import (
    FUTILE,
    NEAR,
    SLOW,
    futile,
    near,
    slow,
    tf32_note,
    without_futile,
)
from halfwise.records import ProvenEngine
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import build, latency

FULL = ProvenEngine(build=2, seconds=9.0, median_ms=0.57)


def candidate(milliseconds: float, *kept: str, number: int = 4) -> Candidate:
    return Candidate(names(*kept), "", build(number, ""), 0.5, latency(milliseconds))


def test_a_plan_that_can_gain_no_speed_is_not_looked_for():
    first = candidate(0.7, "log", number=3)
    found = futile(first, candidate(0.614), FULL)
    assert found is not None
    assert (found.kind, found.build, found.full) == ("slower", 4, 2)
    assert (found.median_ms, found.full_ms) == (0.614, 0.57)


@pytest.mark.parametrize(
    ("first", "plain", "full"),
    [
        (candidate(0.7, "log"), candidate(0.99 * FUTILE * 0.57), FULL),
        (candidate(0.57, "log"), candidate(0.614), FULL),
        (candidate(0.7, "log"), replace(candidate(0.614), latency=None), FULL),
        (candidate(0.7, "log"), candidate(0.614), None),
        (candidate(0.7, "log"), candidate(0.614), FULL.model_copy(update={"median_ms": None})),
    ],
)
def test_one_that_may_is(first, plain, full):
    assert futile(first, plain, full) is None


def test_with_tf32_too_it_may_be_the_fastest():
    """Low kernels that lack speed where TF32 has it: what decides is all kernels together."""
    first, plain = candidate(0.7, "log", number=3), candidate(0.614)
    tried = []

    def attempt(keep, step, terms):
        tried.append((keep, terms.tf32))
        return replace(free if not keep else first, terms=terms, step=step)

    free = candidate(0.65, number=5)
    assert without_futile(first, plain, FULL, attempt)[1] is not None
    assert tried == [(frozenset(), True)]
    free = candidate(0.5, number=5)
    found, spared = without_futile(first, plain, FULL, attempt)
    assert (found.milliseconds, found.terms.tf32, spared) == (0.5, True, None)
    free = replace(free, excess=9.0)
    found, spared = without_futile(first, plain, FULL, attempt)
    assert (found.keep, found.terms.tf32, spared) == (names("log"), True, None)
    assert without_futile(plain, plain, FULL, attempt)[0].keep == frozenset()
    assert without_futile(first, candidate(0.5), FULL, attempt) == (first, None)


def test_in_strong_typing_nothing_is_foretold():
    config = build(1, "").config.model_copy(update={"typing": "strong"})
    plain = replace(candidate(0.614), build=build(4, "", config=config))
    assert futile(candidate(0.7, "log"), plain, FULL) is None


def test_what_may_be_faster_takes_turns():
    best = candidate(1.0)
    assert near(candidate(0.99 * NEAR), best)
    assert not near(candidate(1.01 * NEAR), best)
    assert not near(replace(best, latency=None), best)
    assert not near(best, replace(best, latency=None))


def test_slow_is_what_is_kept():
    plain = candidate(1.0)
    assert slow(candidate(1.01 * SLOW, "a"), plain)
    assert not slow(candidate(0.99 * SLOW, "a"), plain)
    assert not slow(candidate(2.0), plain)
    assert not slow(replace(candidate(2.0, "a"), latency=None), plain)
    assert "1 ms with it and 2 ms without" in tf32_note(plain, candidate(2.0, "a"))
