from dataclasses import replace

import pytest

from halfwise.fixing.engines.attempts import Candidate
from halfwise.fixing.engines.speed import FUTILE, NEAR, SLOW, futile, near, slow, tf32_note
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
