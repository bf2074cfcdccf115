from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.fixing.engines.attempts import UNREPAIRED, Candidate, Chosen
from halfwise.fixing.engines.proposals import Budget
from halfwise.fixing.engines.run import build_beside, known_unrepaired
from halfwise.fixing.engines.search import EngineSearch
from halfwise.records import Curve, NodeName, Point, ProvenEngine, Spared
from tests.unit.reporting.engine_runs import build, latency

NODES = tuple(NodeName(f"n{i}") for i in range(4))


def point(kept: str, count: int, error: float, cost: float, *, is_bound: bool = False) -> Point:
    return Point(kept=kept, count=count, evaluation=1, cost=cost, error=error, is_bound=is_bound)


POINTS = (
    point("", 0, 9.0, 1.0),
    point("0", 1, 0.0, 1.1, is_bound=True),
    point("0-1", 2, 0.7, 1.3),
    point("1", 1, 0.8, 1.2),
    point("0-3", 4, 0.0, 1.1),
)


def found(*points: Point) -> Any:
    bare = Curve(nodes=NODES, points=points)
    curve = Curve(nodes=(), points=(), unrepaired=bare)
    return SimpleNamespace(curve=curve, planner=SimpleNamespace(original=object()))


def test_the_cheapest_that_passed_is_known_but_not_all_in_fp32():
    assert known_unrepaired(found(*POINTS)) == frozenset(NODES[1:2])
    assert known_unrepaired(found(POINTS[0], POINTS[-1])) is None
    without = found(*POINTS)
    without.curve = Curve(nodes=(), points=())
    assert known_unrepaired(without) is None


@pytest.mark.parametrize(
    ("milliseconds", "passes", "full", "built"),
    [
        (1.0, True, None, 3),
        (2.0, True, None, 1),  # slower than what is there: not confirmed
        (1.0, False, None, 1),
        (1.0, True, 0.99, 3),
        (1.0, True, 0.5, 1),  # no low engine would be the fastest
    ],
)
def test_it_is_confirmed_where_it_may_be_delivered(milliseconds, passes, full, built):
    steps = []

    def attempt(keep, step, terms):
        steps.append(step)
        excess = 0.5 if passes else 5.0
        return Candidate(keep, step, build(9, step), excess, latency(milliseconds), terms=terms)

    nothing: Any = None
    search = EngineSearch(nothing, nothing, NODES, Budget(1), 3)
    if full is not None:
        # The repaired model is slower than that with nothing kept, which says nothing of this one.
        search.full = ProvenEngine(build=1, seconds=1.0, median_ms=full)
        search.spared = [Spared(kind="slower", build=4, full=1)]
    best = Candidate(frozenset(), "plan", build(4, "plan"), 0.5, latency(1.0))
    chosen = Chosen(best, best, (0.5,), True, frozenset(), ())
    attempts: Any = SimpleNamespace(attempt=attempt)
    build_beside(found(*POINTS), attempts, search, chosen)
    assert len(steps) == built
    known = search.tried.get((frozenset((NODES[1],)), UNREPAIRED), [])
    assert [c.terms for c in known] == [UNREPAIRED] * built
    assert [spared.beside for spared in search.spared] == ([] if full is None else [9])
