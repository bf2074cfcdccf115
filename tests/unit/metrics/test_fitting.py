"""Which metric fits outputs, and which outputs bring a hint."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.kinds import recognise
from halfwise.metrics.recognised import untested_part
from tests.unit.metrics.looked import DISC, IMAGE, PICTURE, RNG, normal, softmax, unit_rows
from tests.unit.metrics.test_evidence import FALLING, ranked


def fitting(**outputs: NDArray[Any]) -> str | None:
    return metric_of([outputs, outputs], IMAGE)


def metric_of(references: list[Any], inputs: Any) -> str | None:
    for one in recognise(references, inputs):
        if "absent" not in [unjudged.kind for unjudged in untested_part(one, references, None)]:
            return one.metric
    return None


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (softmax(normal(1, 1000)), "top1"),
        (softmax(normal(4, 2)).astype(np.float16), "top1"),
        (softmax(normal(2, 7, 30)), "token-agreement"),
        (normal(1, 1000, 1, 1), "top1"),
        (DISC, "mask-iou"),
        (PICTURE, "psnr"),
        (unit_rows(3, 500), "cosine"),
        (normal(1, 5), None),  # its shape alone
        (8 * normal(1, 2, 16, 16), None),
        (RNG.random((1, 1, 16, 16)), None),
        (np.full((1, 3), np.nan, np.float32), None),
        (np.zeros((0, 1000), np.float32), None),
        (np.float32(1), None),
    ],
)
def test_a_recognised_output_has_its_metric(array: NDArray[Any], expected: str | None) -> None:
    assert fitting(y=array) == expected


def test_boxes_are_judged_by_their_metric_where_something_is_detected() -> None:
    inputs = {"image": (1, 3, 64, 128)}
    rows = {"y": ranked(FALLING)}
    assert metric_of([rows], inputs) is None
    rows["y"][0, :9, 4] = 0.9
    assert metric_of([rows], inputs) == "detection-f1"


def test_what_may_be_boxes_is_of_no_other_kind() -> None:
    scores = softmax(normal(1, 50, 21))
    assert fitting(boxes=normal(1, 50, 4), scores=scores) is None
    assert fitting(scores=scores)
