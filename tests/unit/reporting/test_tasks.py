"""How the metrics of several outputs are told."""

from halfwise.records import Criterion, MetricResult, Recognised, TaskScore
from halfwise.reporting.tasks import allowed_together, part_lines, rests_on, wrong_parts

MASK = Recognised(
    kind="mask", metric="mask-iou", outputs=("m",), required=0.99, shape=(1,), evidence=()
)
FLOW = MASK.model_copy(update={"metric": "epe", "outputs": ("a", "b"), "required": -0.1})


def result(iou: float, error: float) -> MetricResult:
    parts = (
        TaskScore(metric="mask-iou", outputs=("m",), value=iou, required=0.99, passed=iou >= 0.99),
        TaskScore(metric="rel-max", outputs=("h",), value=-error, required=-0.01, passed=True),
    )
    return MetricResult(
        name="auto", reference=1, candidate=0.5, allowed_drop=1, passed=True, parts=parts
    )


def test_each_part_has_a_line_with_every_model() -> None:
    assert list(part_lines({"all FP16": result(0.5, 0.2), "mixed": result(0.995, 0.003)})) == [
        "mask-iou of m: 0.5 all FP16, 0.995 mixed; ≥ 0.99.",
        "Largest error of h: 0.2 all FP16, 0.003 mixed; ≤ 0.01.",
    ]


def test_what_fails_is_told_with_its_limit() -> None:
    assert list(wrong_parts(result(0.5, 0.003))) == [
        "mask-iou of m is 0.5; ≥ 0.99 is allowed.",
    ]


def test_what_is_allowed_names_each_output() -> None:
    told = allowed_together(Criterion(metric="auto", recognised=(MASK, FLOW)))
    assert told == (
        "mask-iou of m ≥ 0.99, epe of a, b ≤ 0.1, other outputs by the default tolerance"
    )


def test_what_a_score_rests_on_is_told_in_its_unit() -> None:
    score = result(1, 0).parts[0]
    assert rests_on(score) == ""
    counted = [score.model_copy(update={"evidence": n, "unit": "boxes"}) for n in (1, 3)]
    assert list(map(rests_on, counted)) == ["on 1 box", "on 3 boxes"]
    rows = score.model_copy(update={"evidence": 1, "unit": "mask pixels"})
    assert rests_on(rows) == "on 1 mask pixel"
