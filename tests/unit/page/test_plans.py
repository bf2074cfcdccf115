from base64 import b64decode
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from halfwise.page.data import script_json
from halfwise.page.plans import Names, groups, packed, values
from halfwise.records import Criterion, Failure, LadderRung, NodeName, Run, Worth
from halfwise.records.run import places, runs
from halfwise.reporting.remarks import reasons
from tests.unit.records.curves import curve, point, score
from tests.unit.reporting.engine_runs import engine_round, engines, result
from tests.unit.reporting.runs import run, verdict


def of(found: Run) -> tuple[list[Any], list[NodeName]]:
    names = Names()
    return list(groups(found, names)), names.all


def test_plans_are_points_with_their_nodes() -> None:
    plans = curve(
        point("", 1.0, inf),
        point("0 2", 1.3, 0.5, scores=(score(passed=False),), heldout=0.6),
        point("0-2", 1.9, 0.2, is_bound=True),
        plan=1,
        front=(1,),
    )
    (group, full), names = of(run(curve=plans, worth=Worth(cost=1.3, fp32=2.0)))
    bare, own, whole = group["points"]
    assert (group["name"], group["nodes"], names) == ("FP16 plans", "0-2", ["a", "b", "c"])
    assert (bare["error"], bare["nodes"], "chosen" in bare) == (inf, "", False)
    assert (own["chosen"], own["front"], own["nodes"]) == (True, True, "0 2")
    assert (own["scores"], own["failed"]) == ({"top1": 0.5}, ["top1"])
    assert (whole["bound"], "heldout" in whole) == (True, False)
    assert [p["name"] for p in full["points"]] == ["FP32"]
    assert full["points"][0]["error"] == 0
    script_json([group, full])


def test_plans_fail_by_what_decides_and_the_own_one_by_its_verdict() -> None:
    plans = curve(
        point("", 1.0, 0.5, scores=(score(passed=False),)),
        point("0", 1.1, 0.5),
        point("1", 1.2, 0.5, heldout=1.5),
        point("2", 1.3, 0.0, is_bound=True),
        plan=1,
    )
    failed = verdict(passed=False, reasons=("y is wrong",))

    def failing(criterion: Criterion) -> list[int]:
        (group, *_), _ = of(run(curve=plans, criterion=criterion, verdict=failed))
        assert group["points"][1]["why"] == reasons(failed.failures)
        return [i for i, one in enumerate(group["points"]) if "fails" in one]

    assert failing(Criterion(rel_max=0.01)) == [1, 2, 3]
    assert failing(Criterion(metric="top1", metric_drop=0.01)) == [0, 1, 2, 3]


def test_a_rung_that_failed_is_no_pass_where_its_error_is_small() -> None:
    other = curve(point("1", 0.7, 0.5), plan=0, rung="int8")
    plans = curve(point("", 1.0, 0.5), plan=0, rung="fp16", beside=other)
    rung = LadderRung(rung="int8", passed=False, failures=(Failure(kind="seen"),))
    (own, int8), _ = of(run(curve=plans, rungs=(rung,)))
    assert "fails" not in own["points"][0]
    assert (int8["points"][0]["found"], int8["points"][0]["fails"]) == (True, True)
    assert int8["points"][0]["why"] == reasons(rung.failures)


def test_plans_without_repairs_and_of_the_other_rung_are_apart() -> None:
    other = curve(point("1", 0.7, 3.0), rung="int8").model_copy(
        update={"nodes": (NodeName("z"), NodeName("b"))}
    )
    bare = curve(point("0", 1.1, 2.0))
    plans = curve(point("", 1.0, 0.5), rung="fp16", beside=other, unrepaired=bare)
    found, names = of(run(curve=plans))
    assert [group["name"] for group in found] == [
        "FP16 plans",
        "FP16 plans without repairs",
        "INT8 plans",
    ]
    assert [group["nodes"] for group in found] == ["0-2", "0-2", "3 1"]
    assert names == ["a", "b", "c", "z"]
    assert (found[2]["left"], found[2]["points"][0]["nodes"]) == ("not in INT8", "1")


def test_rungs_without_a_plan_are_points_and_those_with_engines_are_engines() -> None:
    rungs = tuple(
        LadderRung.model_validate({"rung": name, "passed": True, "error": error, "cost": 2.0})
        for name, error in (("fp32", None), ("tf32", 4.0))
    )
    (full,), _ = of(run(rungs=rungs))
    assert [(p["name"], p["error"]) for p in full["points"]] == [("FP32", 0.0), ("TF32", 4.0)]


def test_engines_are_told_over_what_is_allowed_once_for_each_build() -> None:
    keep = tuple(map(NodeName, ("b", "a")))
    rounds = (
        engine_round(2, keep=keep, measured=1.6, median_ms=1.1),
        engine_round(3, keep=keep[:1], measured=9.0),
        engine_round(4, measured=None, median_ms=None, keep=()),
    )
    rows = (result("FP32, TF32 off", 1, 4.0, rung="fp32"), result("mixed", 3, 1.0, excess=0.5))
    made = engines(rounds=rounds, results=rows)
    found = run(engines=made, further=(made,))
    assert found.search is not None
    (group, second), names = of(found)
    first, tried, mixed, failed = group["points"]
    assert group["name"] == "engines on local" == second["name"]
    assert (first["name"], first["ms"], "nodes" in first) == ("FP32 without TF32", 4.0, False)
    factor = found.search.tolerance_factor
    assert (tried["error"], tried["ms"]) == (1.6 * factor, 1.1)
    assert (names, tried["nodes"], tried["count"]) == (["a", "b"], "0-1", 2)
    assert (mixed["error"], mixed["ms"], mixed["nodes"]) == (0.5 * factor, 1.0, "1")
    assert (failed["build"], "error" in failed, "ms" in failed) == (4, False, False)


def test_of_outputs_with_one_metric_the_nearest_to_fail_counts() -> None:
    scores = (score(passed=True, value=0.999), score(passed=True, value=0.99))
    assert values(scores) == {"top1": 0.99}
    assert values((*scores, score(passed=False, value=1.0))) == {"top1": 1.0}
    assert values(()) == {}


@given(st.sets(st.integers(0, 300)))
def test_places_come_back_from_the_shorter_of_two_forms(found: set[int]) -> None:
    text = packed(sorted(found))
    assert len(text) <= len(runs(sorted(found)))
    if text.startswith("~"):
        bits = int.from_bytes(b64decode(text[1:]), "little")
        assert found == {place for place in range(8 * len(text)) if bits >> place & 1}
    else:
        assert sorted(found) == [*places(text)]
