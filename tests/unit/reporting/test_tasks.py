"""How the metrics of several outputs are told."""

import pytest

from halfwise.records import Criterion, MetricResult, Recognised, TaskScore, replace
from halfwise.reporting.plan import score_cell
from halfwise.reporting.verdict import allowed_together, figures, rests_on

MASK = Recognised(kind="mask", metric="mask-iou", outputs=("m",), required=0.99, evidence=())


def test_several_metrics_are_told_by_their_parts_and_never_as_one_number() -> None:
    parts = (
        TaskScore(metric="mask-iou", outputs=("m",), value=0.995, required=0.99, passed=True),
        TaskScore(metric="rel-max", outputs=("h",), value=-0.003, required=-0.01, passed=True),
    )
    alone = MetricResult(name="epe", reference=0, candidate=-0.2, allowed_drop=0.1, passed=False)
    both = replace(alone, name="auto", candidate=0.967, parts=parts)
    assert figures(both) == "mask-iou of m 0.995, largest error of h 0.003"
    assert figures(alone) == "epe 0.2"
    assert rests_on(parts[0]) == ""


@pytest.mark.parametrize(("required", "told"), [(0.9999, "0.9999"), (0.99, "0.99"), (1.0, "1")])
def test_a_requirement_near_one_is_not_rounded_to_it(required, told):
    near = replace(MASK, required=required)
    assert f" {told}," in allowed_together(Criterion(recognised=(near,)))


def test_a_score_without_units_is_no_failure():
    score = TaskScore(metric="map", outputs=("y",), value=1, required=0.99, passed=False)
    assert score_cell([score], "map").endswith("✗")
    assert score_cell([replace(score, evidence=0)], "map") == "–"
