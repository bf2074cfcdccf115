"""Plans that engines of the run speak against are not offered for the engine."""

import pytest

from halfwise.records import Band, Criterion, EngineRound, Engines, NearPlan, NodeName, Worth
from halfwise.reporting.plan import curve_table, offer
from halfwise.reporting.steps import nothing_gained
from halfwise.reporting.verdict import Against, against, offered
from tests.unit.reporting.engine_runs import build, engines, failed
from tests.unit.reporting.runs import run, verdict
from tests.unit.reporting.test_curve import MADE, ONE

A = NodeName("a")
JUDGED = verdict(level="engine")


def tried(number: int, measured: float | None = None, *, band: Band | None = None) -> EngineRound:
    return EngineRound(
        step="",
        build=number,
        keep=(A,),
        measured=measured,
        passed=measured is not None and measured <= 1,
        band=band,
    )


def shown(*rounds: EngineRound, status: str = "failed") -> Engines:
    """Return engines of these rounds; those without a measured error have no engine."""
    builds = [
        failed(r.build, status=status) if r.measured is None else build(r.build, "") for r in rounds
    ]
    return engines(rounds=rounds, builds=tuple(builds))


def lines(found: Engines, **more) -> list[str]:
    given = run(curve=MADE, verdict=JUDGED, engines=found, **more)
    point = offered(MADE, JUDGED, given.criterion, given.devices)
    return [offer(given), *([] if point is None else [point.kept])]


def mark(found: Engines) -> str:
    table = curve_table(run(curve=MADE, verdict=JUDGED, engines=found))
    assert table is not None
    return table.rows[1][-1]


def test_a_plan_that_the_builder_refused_is_not_recommended():
    refused = shown(tried(3), tried(5))
    assert against(MADE, ONE, (refused,)) == Against(3)
    assert lines(refused) == [""]
    assert mark(refused) == "refused in build 3"
    # Refused once, and built on other terms: what the engine shows counts.
    assert lines(shown(tried(3), tried(5, 0.4)))[0].startswith("Judged by its task, a cheaper plan")
    assert mark(shown(tried(3), tried(5, 0.4))) == "recommended"


def test_of_a_build_that_was_lost_or_of_another_plan_nothing_is_known():
    for status in ("lost", "interrupted"):
        assert against(MADE, ONE, (shown(tried(3), status=status),)) is None
    other = tried(3).model_copy(update={"keep": (A, NodeName("b"))})
    assert offered(MADE, JUDGED, Criterion(), (shown(other),)) == ONE


def test_an_engine_that_is_off_as_foreseen_is_told_and_one_that_is_off_more_is_not_offered():
    band = Band(least=2.0, most=4.0)
    text, _ = lines(shown(tried(3, 3.68, band=band)))
    assert text.endswith(" Its engine has 3.68 times what is allowed (build 3).")
    assert lines(shown(tried(3, 9.0, band=band))) == [""]
    assert mark(shown(tried(3, 9.0, band=band))) == "off in build 3"
    by_task = Criterion(metric="top1")
    assert lines(shown(tried(3, 3.68, band=band)), criterion=by_task) == [""]


def test_one_device_that_refuses_it_is_enough():
    fine, refuses = shown(tried(3, 0.5)), shown(tried(3))
    assert offered(MADE, JUDGED, Criterion(), (fine, refuses)) is None


@pytest.mark.parametrize("measured", [None, 3.68])
def test_this_plan_will_not_do_where_its_engine_failed(measured):
    itself = MADE.model_copy(update={"plan": 1})
    broken = verdict(level="engine", passed=False)
    found = shown(tried(3, measured))
    assert offer(run(curve=itself, verdict=broken, engines=found)) == ""
    assert offer(run(curve=itself, verdict=broken)).startswith(
        "Judged by its task, this plan is good enough"
    )


def test_no_metric_is_proposed_that_leads_to_a_plan_that_was_refused():
    worth = Worth(cost=2.0, fp32=2.05, metric="top1")
    refused = run(worth=worth, curve=MADE, verdict=JUDGED, engines=shown(tried(3)))
    assert "--metric" not in nothing_gained(refused)
    assert "--metric top1" in nothing_gained(run(worth=worth))


def test_what_costs_more_than_fp32_gives_way_to_the_plan_that_is_offered():
    near = NearPlan(kept=12, cost=1.2, error=0.8)
    worth = Worth(cost=3.0, fp32=2.0, nearest=near)
    told = nothing_gained(run(worth=worth, curve=MADE, verdict=JUDGED))
    kept = "a plan with 1 node in FP32 keeps top1 (see Next)"
    assert told == f", but it is predicted to cost 1.5 × FP32; {kept}"
    assert "use the FP32 model; the nearest plan" in nothing_gained(run(worth=worth))
