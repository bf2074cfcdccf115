from pathlib import Path

from halfwise.fixing.offering import choosing
from halfwise.records import Criterion
from halfwise.reporting.steps import steps_told
from tests.unit.records.curves import curve
from tests.unit.reporting.runs import verdict
from tests.unit.reporting.test_curve import MADE, ONE, PLAN


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


def test_little_evidence_is_told_where_the_plan_is_to_be_taken():
    few = ONE.scores[0].model_copy(update={"evidence": 1, "unit": "boxes"})
    made = curve(ONE.model_copy(update={"scores": (few,)}), PLAN, plan=1, recommended=0)
    (told,) = steps_told(choosing(made, None, verdict(), Criterion()))
    assert "; on 1 box only, so judge it on more inputs)" in told
