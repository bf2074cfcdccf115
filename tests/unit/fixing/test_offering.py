from pathlib import Path

from halfwise.fixing.offering import choosing, exceeding, gaining
from halfwise.records import Criterion, NearPlan, Worth
from halfwise.reporting.steps import steps_told
from halfwise.reporting.worth import nothing_gained
from tests.unit.records.curves import curve, point
from tests.unit.reporting.runs import run, verdict
from tests.unit.reporting.test_curve import LOW, MADE, ONE, PLAN


def test_the_recommended_plan_is_taken_by_a_command():
    (step,) = choosing(MADE, Path("my run"), verdict(), Criterion())
    assert step.command == ("halfwise", "choose", "my run", "-o", "my run.chosen")
    assert steps_told((step,)) == (
        "Take the cheaper plan that keeps top1 (1 node kept at 1.2 ×; 3.04 × what rel max ≤ 0.01 "
        "allows): halfwise choose 'my run' -o 'my run.chosen'",
    )
    off = ONE.model_copy(update={"error": 0.9, "heldout": 1.5})
    (step,) = choosing(curve(off, PLAN, plan=1, recommended=0), None, verdict(), Criterion())
    assert step.numbers["error"] == 1.5
    itself = MADE.model_copy(update={"recommended": 2})
    assert choosing(itself, None, verdict(), Criterion()) == ()


def test_a_known_plan_that_passes_and_gains_is_taken_where_this_one_costs_more_than_fp32():
    other = point("0-1", 1.4812, 0.2, casts=2)
    near = NearPlan(kept=2, cost=1.4812, error=0.2, passes=True)
    worth = Worth(cost=1.7, fp32=1.64, nearest=near)
    (step,) = gaining(curve(LOW, other), worth, Path("run"))
    assert steps_told((step,)) == (
        "Take a plan that passes and costs less (2 nodes kept at 1.48 ×): "
        "halfwise choose run -o run.chosen --worth 1.482",
    )
    failing = worth.model_copy(update={"nearest": near.model_copy(update={"passes": False})})
    bound = other.model_copy(update={"is_bound": True})
    for points, known in ((other, failing), (bound, worth), (other, None)):
        assert gaining(curve(LOW, points), known, Path("run")) == ()
    told = nothing_gained(run(worth=worth, next_step=(step,)))
    assert told == (
        ", but it is predicted to cost 1.04 × FP32; another plan that passes keeps 2 nodes and "
        "costs 1.48 × everything low (see Next)"
    )
    untaken = nothing_gained(run(worth=worth))
    assert untaken.endswith("keeps 2 nodes, costs 1.48 × everything low, and passes")


def test_a_plan_that_costs_less_and_is_no_less_exact_is_offered():
    """Lowering one more node added pairs that cost more than it saved."""
    own, other = point("0", 0.97, 0.35, heldout=0.8), point("0-1", 0.887, 0.26, heldout=0.85)
    worth = Worth(cost=0.97, fp32=1.6)
    (step,) = exceeding(curve(own, other, plan=0, rung="int8"), worth, Path("run"))
    assert steps_told((step,)) == (
        "Take a plan that passes and costs less (2 nodes left out of INT8 at 0.887 ×): "
        "halfwise choose run -o run.chosen --worth 0.887",
    )
    for change in (
        {"error": 0.36},
        {"cost": 0.965},
        {"cost": None},
        {"is_bound": True},
        {"heldout": 1.1},
        {"heldout": None},
        {"nonfinite": True},
        {"infinite_inside": True},
    ):
        worse = other.model_copy(update=change)
        assert exceeding(curve(own, worse, plan=0, rung="int8"), worth, Path("run")) == ()
    assert exceeding(curve(own, other), worth, Path("run")) == ()
    assert exceeding(curve(own, other, plan=0), None, Path("run")) == ()
    full = curve(own, other, plan=0, rung="int8")
    everything = full.model_copy(update={"nodes": full.nodes[: other.count]})
    assert exceeding(everything, worth, Path("run")) == ()


def test_the_fp32_model_is_not_offered_as_another_plan():
    own, fp32 = point("0", 2.14, 0.03, heldout=0.03), point("0-2", 2.0, 0.0, heldout=0.0)
    worth = Worth(cost=2.14, fp32=2.0)
    assert exceeding(curve(own, fp32, plan=0), worth, Path("run")) == ()
    cheap = point("0-1", 1.2, 0.02, heldout=0.02)
    (step,) = exceeding(curve(own, fp32, cheap, plan=0), worth, Path("run"))
    assert step.numbers["kept"] == 2


def test_a_folder_that_begins_with_a_hyphen_is_no_option():
    (step,) = choosing(MADE, Path("-x"), verdict(), Criterion())
    assert step.command == ("halfwise", "choose", "./-x", "-o", "./-x.chosen")


def test_no_plan_is_taken_where_this_one_failed_by_its_task_or_on_noise():
    itself, failed = MADE.model_copy(update={"plan": 1}), verdict(passed=False)
    task = Criterion(metric="top1", metric_drop=0.01)
    assert choosing(itself, None, failed, Criterion())
    noise = failed.model_copy(update={"on_real_data": False})
    for judged, criterion in ((failed, task), (noise, Criterion())):
        assert choosing(itself, None, judged, criterion) == ()
