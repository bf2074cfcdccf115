"""How the metrics of several outputs are told."""

import pytest

from halfwise.records import Criterion, MetricResult, Recognised, TaskScore
from halfwise.reporting.verdict import (
    allowed_together,
    figures,
    heading_of,
    metrics_of,
    part_lines,
    rests_on,
    values_of,
)

MASK = Recognised(
    kind="mask", metric="mask-iou", outputs=("m",), required=0.99, shape=(1,), evidence=()
)
FLOW = MASK.model_copy(update={"metric": "epe", "outputs": ("a", "b"), "required": -0.1})


def both(iou: float, error: float) -> MetricResult:
    """Return a result of which nothing else than the parts may be told."""
    return result(iou, error).model_copy(update={"candidate": 0.967})


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


def test_what_is_allowed_names_each_output() -> None:
    told = allowed_together(Criterion(metric="auto", recognised=(MASK, FLOW)))
    assert told == ("mask-iou of m ≥ 0.99, epe of a, b ≤ 0.1, default tolerance for other outputs")


def test_what_a_score_rests_on_is_told_in_its_unit() -> None:
    score = result(1, 0).parts[0]
    assert rests_on(score) == ""
    counted = [score.model_copy(update={"evidence": n, "unit": "boxes"}) for n in (1, 3)]
    assert list(map(rests_on, counted)) == ["on 1 box", "on 3 boxes"]
    rows = score.model_copy(update={"evidence": 1, "unit": "mask pixels"})
    assert rests_on(rows) == "on 1 mask pixel"


def test_several_metrics_are_told_by_their_parts_and_never_as_one_number() -> None:
    given = both(0.995, 0.003)
    assert figures(given) == "mask-iou of m 0.995, largest error of h 0.003"
    assert metrics_of(given) == "mask-iou and the largest error of other outputs"
    assert (heading_of(given), list(values_of(given))) == ("mask-iou; rel-max", ["0.995", "0.003"])
    alone = MetricResult(name="epe", reference=0, candidate=-0.2, allowed_drop=0.1, passed=False)
    assert (figures(alone), metrics_of(alone)) == ("epe 0.2", "epe")
    assert (heading_of(alone), list(values_of(alone))) == ("epe", ["0.2"])


def test_a_line_tells_what_its_value_rests_on() -> None:
    part = result(1, 0).parts[0].model_copy(update={"evidence": 1, "unit": "mask pixels"})
    one = result(1, 0).model_copy(update={"parts": (part,)})
    assert list(part_lines({"mixed": one})) == ["mask-iou of m: 1 mixed, on 1 mask pixel; ≥ 0.99."]


@pytest.mark.parametrize(("required", "told"), [(0.9999, "0.9999"), (0.99, "0.99"), (1.0, "1")])
def test_a_requirement_near_one_is_not_rounded_to_it(required, told):
    near = MASK.model_copy(update={"required": required})
    assert f"mask-iou of m ≥ {told}," in allowed_together(Criterion(recognised=(near,)))
