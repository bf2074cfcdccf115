"""What "auto" becomes, what it accepts, and what is left untested."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.metrics import AUTO, has_to_see, settle, settled_metric, untested_task
from halfwise.records import Criterion
from tests.unit.metrics import scenes

RNG = np.random.default_rng(5)
EYE = np.exp(8 * np.eye(6, 10))
SCORES = (EYE / EYE.sum(axis=1, keepdims=True)).astype(np.float32)
CLASSES = [{"p": SCORES[i : i + 1]} for i in range(6)]
BESIDE = [{**s, "h": RNG.standard_normal((1, 7)).astype(np.float32)} for s in CLASSES]
BOXES = [{"y": scenes.joined()}]
ASKED = Criterion(metric=AUTO)


def settled(
    references: list[dict[str, NDArray[Any]]], criterion: Criterion = ASKED, *, labelled=False
) -> Criterion:
    return settle(criterion, references, scenes.INPUTS, labelled=labelled)


def test_one_recognised_output_is_judged_as_if_its_metric_had_been_named() -> None:
    criterion = settled(CLASSES)
    assert (criterion.metric, criterion.metric_drop) == ("top1", 0.01)
    assert "MLPerf" in criterion.drop_source
    assert criterion.recognised[0].evidence == ("rows-sum",)
    assert not has_to_see(criterion)
    metric = settled_metric(criterion)
    assert metric is not None
    assert metric(CLASSES, CLASSES[::-1], None) == 0
    assert metric(CLASSES, CLASSES, [0, 1, 2, 0, 0, 0]) == 0.5


def test_what_is_not_recognised_has_to_hold_the_default_tolerance() -> None:
    criterion = settled(BESIDE)
    assert (criterion.metric, criterion.metric_drop) == (AUTO, 1)
    metric = settled_metric(criterion)
    assert metric is not None
    assert metric(BESIDE, BESIDE, None) == 1
    largest = max(float(np.abs(s["h"]).max()) for s in BESIDE)
    for error, passes in ((0.009, True), (0.011, False)):
        off = [{**s, "h": s["h"] + np.float32(error * largest)} for s in BESIDE]
        assert (metric(BESIDE, off, None) >= 0) is passes
    swapped = [{**s, "p": t["p"]} for s, t in zip(BESIDE, BESIDE[::-1], strict=True)]
    assert metric(BESIDE, swapped, None) == pytest.approx(1 - 1 / 0.01)
    broken = [{**s, "h": np.full_like(s["h"], np.nan)} for s in BESIDE]
    assert metric(BESIDE, broken, None) == -np.inf


def test_boxes_are_read_as_they_were_recognised() -> None:
    for name in ("detection-f1", "map"):
        criterion = settled(BOXES, Criterion(metric=name, metric_drop=0.25))
        assert criterion.metric_drop == 0.25
        assert criterion.recognised[0].metric == name
        metric = settled_metric(criterion)
        assert metric is not None
        assert metric(BOXES, BOXES, None) == 1
        assert metric(BOXES, [{"y": 0 * BOXES[0]["y"]}], None) == 0
        with pytest.raises(CaseError, match="'y'"):
            metric(BOXES, [{"z": BOXES[0]["y"]}], None)


@pytest.mark.parametrize(
    ("references", "criterion", "labelled", "told"),
    [
        ([{"h": RNG.random((1, 7))}], ASKED, False, r"h \(float64 \[1, 7\]\)"),
        (CLASSES, Criterion(metric="map"), False, "cannot read boxes"),
        (BOXES, ASKED, True, "no labels"),
        (BOXES, Criterion(metric="map"), True, "no labels"),
        ([{**CLASSES[0], **BOXES[0]}], ASKED, True, "labels fit only one"),
    ],
)
def test_what_cannot_be_meant_is_refused(references, criterion, labelled, told) -> None:
    with pytest.raises(UsageError, match=told):
        settled(references, criterion, labelled=labelled)


def test_what_no_sample_tests_is_told_of_each_part() -> None:
    criterion = settled(BESIDE)
    metric = settled_metric(criterion)
    assert untested_task(criterion, metric, BESIDE, None) == ()
    nothing = [{**s, "h": 0 * s["h"]} for s in BESIDE]
    (zeros,) = untested_task(criterion, metric, nothing, None)
    assert (zeros.kind, zeros.name) == ("zeros", "h")
    boxes = settled(BOXES)
    faint = [{"y": BOXES[0]["y"] * np.where(np.arange(8) == 4, np.float32(0.1), 1)}]
    assert untested_task(boxes, settled_metric(boxes), BOXES, None) == ()
    (absent,) = untested_task(boxes, settled_metric(boxes), faint, None)
    assert (absent.kind, absent.name) == ("absent", "detection-f1")
    assert untested_task(Criterion(), None, BESIDE, None) == ()
