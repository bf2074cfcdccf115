"""Plans that engines of the run speak against are not offered for the engine."""

import pytest

from halfwise.records import Criterion, EngineRound, Engines, NodeName, Point
from halfwise.reporting.plan import curve_table
from halfwise.reporting.verdict import Against, against, offered
from tests.unit.reporting.engine_runs import build, engines, failed
from tests.unit.reporting.runs import run, verdict
from tests.unit.reporting.test_curve import MADE, ONE

A = NodeName("a")
JUDGED = verdict(level="engine")


def tried(
    number: int, measured: float | None = None, *, predicted: float | None = None
) -> EngineRound:
    return EngineRound(
        step="",
        build=number,
        keep=(A,),
        measured=measured,
        passed=measured is not None and measured <= 1,
        predicted=predicted,
    )


def shown(*rounds: EngineRound, status: str = "failed") -> Engines:
    """Return engines of these rounds; those without a measured error have no engine."""
    builds = [
        failed(r.build, status=status) if r.measured is None else build(r.build, "") for r in rounds
    ]
    return engines(rounds=rounds, builds=tuple(builds))


def of(found: Engines, criterion: Criterion | None = None) -> Point | None:
    return offered(MADE, JUDGED, criterion or Criterion(), (found,))


def mark(found: Engines) -> str:
    table = curve_table(run(curve=MADE, verdict=JUDGED, engines=found))
    assert table is not None
    return table.rows[1][-1]


def test_a_plan_that_the_builder_refused_is_not_recommended():
    refused = shown(tried(3), tried(5))
    assert against(MADE, ONE, (refused,)) == Against(3)
    assert of(refused) is None
    assert mark(refused) == "refused in build 3"
    # Refused once, and built on other terms: what the engine shows counts.
    assert of(shown(tried(3), tried(5, 0.4))) == ONE
    assert mark(shown(tried(3), tried(5, 0.4))) == "recommended"


def test_of_a_build_that_was_lost_or_of_another_plan_nothing_is_known():
    for status in ("lost", "interrupted"):
        assert against(MADE, ONE, (shown(tried(3), status=status),)) is None
    other = tried(3).model_copy(update={"keep": (A, NodeName("b"))})
    assert offered(MADE, JUDGED, Criterion(), (shown(other),)) == ONE


def test_an_engine_that_is_off_as_foreseen_is_offered_and_one_that_is_off_more_is_not_offered():
    assert of(shown(tried(3, 3.68, predicted=2.0))) == ONE
    assert of(shown(tried(3, 9.0, predicted=2.0))) is None
    assert mark(shown(tried(3, 9.0, predicted=2.0))) == "off in build 3"
    assert of(shown(tried(3, 3.68, predicted=2.0)), Criterion(metric="top1")) is None


def test_one_device_that_refuses_it_is_enough():
    fine, refuses = shown(tried(3, 0.5)), shown(tried(3))
    assert offered(MADE, JUDGED, Criterion(), (fine, refuses)) is None


@pytest.mark.parametrize("measured", [None, 3.68])
def test_this_plan_will_not_do_where_its_engine_failed(measured):
    itself = MADE.model_copy(update={"plan": 1})
    broken = verdict(level="engine", passed=False)
    found = shown(tried(3, measured))
    assert offered(itself, broken, Criterion(), (found,)) is None
    assert offered(itself, broken, Criterion()) == ONE
