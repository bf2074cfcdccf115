"""Which metric is asked of recognised outputs, and how a candidate does by it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.metrics import (
    AUTO,
    BUILT_IN,
    by_use,
    default_drop,
    has_to_see,
    settle,
    settled_metric,
    shortfall_of_one,
    task_scores,
    untested_task,
)
from halfwise.metrics.kinds import recognise
from halfwise.records import Criterion
from tests.unit.metrics import scenes
from tests.unit.metrics.looked import unit_rows

RNG = np.random.default_rng(5)
SCORES = np.exp(8 * np.eye(6, 10)).astype(np.float32)
SCORES /= SCORES.sum(axis=1, keepdims=True)
DISC = (np.hypot(*np.mgrid[-32:32, -32:32]) < 20).astype(np.float32)[None, None]
SAMPLES = [{"p": SCORES[i : i + 1], "m": np.roll(DISC, i, axis=-1)} for i in range(6)]


def test_each_recognised_output_has_its_metric_and_what_it_must_be() -> None:
    scores, mask = recognise(SAMPLES, {"x": (1, 3, 64, 64)})
    assert (scores.kind, scores.metric, scores.outputs) == ("class-scores", "top1", ("p",))
    assert (mask.kind, mask.metric, mask.outputs) == ("mask", "mask-iou", ("m",))
    assert scores.required == mask.required == 0.99
    assert mask.evidence == ("one-channel", "two-valued")
    assert recognise([], {}) == ()


def test_the_models_own_outputs_pass_and_others_fail() -> None:
    recognised = recognise(SAMPLES, {})
    assert all(score.passed for score in task_scores(recognised, SAMPLES, SAMPLES))
    scores = task_scores(recognised, SAMPLES, [*SAMPLES[1:], SAMPLES[0]])
    assert [score.passed for score in scores] == [False, False]
    assert scores[0].value == 0


def test_nan_does_not_pass() -> None:
    recognised = recognise(SAMPLES, {})
    worse = [{name: np.full_like(array, np.nan) for name, array in s.items()} for s in SAMPLES]
    assert not any(score.passed for score in task_scores(recognised, SAMPLES, worse))


def test_masks_that_are_empty_on_all_samples_test_nothing() -> None:
    recognised = recognise(SAMPLES, {})
    empty = [{"p": s["p"], "m": np.zeros_like(s["m"])} for s in SAMPLES]
    _, mask = task_scores(recognised, empty, empty)
    assert (mask.value, mask.passed) == (1, False)


def test_labels_are_the_truth_of_a_single_recognised_output() -> None:
    alone = [{"p": s["p"]} for s in SAMPLES]
    recognised = recognise(alone, {})
    (right,) = task_scores(recognised, alone, alone, [0, 1, 2, 0, 0, 0])
    assert right.value == 0.5
    assert right.required == pytest.approx(0.49)
    both = task_scores(recognise(SAMPLES, {}), SAMPLES, SAMPLES, [0, 1, 2, 0, 0, 0])
    assert both[0].value == 1


@given(st.permutations(range(6)))
def test_the_order_of_samples_does_not_matter(order: list[int]) -> None:
    recognised = recognise(SAMPLES, {})
    other = [SAMPLES[0], *SAMPLES[:-1]]
    first = task_scores(recognised, SAMPLES, other)
    again = task_scores(recognised, [SAMPLES[i] for i in order], [other[i] for i in order])
    assert first == again


@pytest.mark.parametrize("metric", BUILT_IN)
def test_every_metric_has_a_convention(metric: str) -> None:
    assert default_drop(metric, labelled=False) is not None


@pytest.mark.parametrize(
    ("name", "shape"),
    [("pooled", (2, 64)), ("last_hidden", (1, 9, 64))],
)
@pytest.mark.parametrize("scale", [0.01, 20])
def test_what_is_recognised_does_not_pass_too_long_or_too_short(name, shape, scale) -> None:
    samples = [{name: RNG.standard_normal(shape)} for _ in range(3)]
    recognised = recognise(samples, {"x": (1, 9)})
    (right,) = task_scores(recognised, samples, samples)
    (wrong,) = task_scores(recognised, samples, [{name: scale * s[name]} for s in samples])
    assert (right.passed, wrong.passed) == (True, False)


EYE = np.exp(8 * np.eye(6, 10))
AUTOMATIC_SCORES = (EYE / EYE.sum(axis=1, keepdims=True)).astype(np.float32)
CLASSES = [{"p": AUTOMATIC_SCORES[i : i + 1]} for i in range(6)]
BESIDE = [{**s, "h": RNG.standard_normal((1, 7)).astype(np.float32)} for s in CLASSES]
BOXES = [{"y": scenes.joined()}]
UNKNOWN = [{"h": s["h"]} for s in BESIDE]
ASKED = Criterion(metric=AUTO)


def settled(
    references: list[dict[str, NDArray[Any]]], criterion: Criterion = ASKED, *, labelled=False
) -> Criterion:
    return settle(criterion, references, scenes.INPUTS, labelled=labelled)


def asked_of(references: list[dict[str, NDArray[Any]]]) -> list[tuple[str, str]]:
    return [(o, one.metric) for one in settled(references).recognised for o in one.outputs]


def test_a_use_asks_for_its_metrics() -> None:
    assert asked_of(CLASSES) == [("p", "top1"), ("p", "confidence")]
    assert asked_of(BOXES) == [("y", "detection-f1"), ("y", "map"), ("y", "worst-detection-f1")]
    assert asked_of(BESIDE) == asked_of(CLASSES)
    of_mask = [("m", "mask-iou"), ("m", "places"), ("m", "worst-mask-iou")]
    assert asked_of(SAMPLES) == [("p", "top1"), ("p", "confidence"), *of_mask]
    least = {one.metric: one.required for one in by_use([*SAMPLES], scenes.INPUTS)}
    of_masks = {"mask-iou": 0.99, "places": 0.85, "worst-mask-iou": 0.5}
    assert least == {"top1": 0.99, "confidence": 0.9, **of_masks}


def test_what_is_not_recognised_or_not_tested_is_held_to_the_default_tolerance() -> None:
    assert settled(UNKNOWN) == Criterion()
    empty = [{"m": 0 * s["m"]} for s in SAMPLES]
    assert settled(empty) == Criterion()  # and of no kind: a constant
    beside = [{**s, **e} for s, e in zip(CLASSES, empty, strict=True)]
    assert asked_of(beside) == asked_of(CLASSES)
    assert settled(beside).metric == AUTO
    # All classes are as likely: no change of a probability would show.
    even = [{"p": np.full((1, 1000), 1e-3) + 1e-6 * np.eye(1, 1000, i)} for i in range(500, 506)]
    assert settled(even).metric is None
    assert [one.kind for one in settled(even).untested] == ["class-scores"]


def test_one_output_with_one_metric_is_judged_as_if_that_had_been_named() -> None:
    vectors = [{"v": unit_rows(3, 50)} for _ in range(4)]
    criterion = settled(vectors)
    assert (criterion.metric, criterion.metric_drop) == ("cosine", 0.001)
    assert "embedding" in criterion.drop_source
    assert criterion.recognised[0].evidence == ("unit-length",)
    assert not has_to_see(criterion)
    metric = settled_metric(criterion)
    assert metric is not None
    assert metric(vectors, vectors, None) == pytest.approx(1)


def test_of_class_scores_the_class_and_how_sure_it_is_count() -> None:
    criterion = settled(CLASSES, labelled=True)
    assert (criterion.metric, criterion.metric_drop) == (AUTO, 1)
    metric = settled_metric(criterion)
    assert metric is not None
    assert metric(CLASSES, CLASSES, [0, 1, 2, 0, 0, 0]) == pytest.approx(1)
    assert metric(CLASSES, CLASSES[::-1], None) == pytest.approx(-99)
    halved = [{"p": s["p"] / 2} for s in CLASSES]
    assert metric(CLASSES, halved, None) == pytest.approx(-4, abs=0.1)
    assert metric(CLASSES, halved, [0, 1, 2, 0, 0, 0]) == pytest.approx(-4, abs=0.1)


def test_one_sample_shows_what_it_uses_by_itself() -> None:
    recognised = by_use(SAMPLES, scenes.INPUTS)
    reference = SAMPLES[0]
    assert shortfall_of_one(recognised, reference, reference) == pytest.approx(0)
    halved = {**reference, "p": reference["p"] / 2}
    assert shortfall_of_one(recognised, reference, halved) == pytest.approx(5, rel=0.01)
    # A class may be another in one of many samples, where none is sure; no mask may be lost.
    lost = {**reference, "m": 0 * SAMPLES[1]["m"]}
    assert shortfall_of_one(recognised, reference, lost) == pytest.approx(1 / 0.15)
    assert shortfall_of_one(recognised, reference, {"m": reference["m"]}) == 0
    broken = {**reference, "p": np.nan * reference["p"]}
    assert shortfall_of_one(recognised, reference, broken) == pytest.approx(10)


def test_what_is_not_recognised_has_to_hold_the_default_tolerance() -> None:
    criterion = settled(BESIDE)
    assert (criterion.metric, criterion.metric_drop) == (AUTO, 1)
    metric = settled_metric(criterion)
    assert metric is not None
    assert metric(BESIDE, BESIDE, None) == pytest.approx(1)
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
        (CLASSES, Criterion(metric="map"), False, r"cannot read boxes.* p \(float32 \[1, 10\]\)"),
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
    assert untested_task(boxes, settled_metric(boxes), BOXES, None) == ()
    faint = [{"y": BOXES[0]["y"] * np.where(np.arange(8) == 4, np.float32(0.1), 1)}]
    absent = untested_task(boxes, settled_metric(boxes), faint, None)
    assert [(a.kind, a.name) for a in absent] == [("absent", "detection-f1"), ("absent", "map")]
    assert untested_task(Criterion(), None, BESIDE, None) == ()


def test_no_single_sample_may_be_lost_though_a_mean_would_hide_it() -> None:
    masks = [{"m": SAMPLES[i % len(SAMPLES)]["m"]} for i in range(128)]
    boxes = [BOXES[i % len(BOXES)] for i in range(128)]
    for samples, name in ((masks, "m"), (boxes, "y")):
        criterion = settled(samples)
        metric = settled_metric(criterion)
        assert metric is not None
        lost = [{name: 0 * samples[0][name]}, *samples[1:]]
        assert metric(samples, samples, None) == 1
        assert metric(samples, lost, None) < 1 - criterion.metric_drop


def test_boxes_keep_their_scores() -> None:
    criterion = settled(BOXES)
    metric = settled_metric(criterion)
    assert metric is not None
    scale = np.where(np.arange(8) == 4, np.float32(0.75), 1)
    fainter = [{"y": of["y"] * scale} for of in BOXES]
    assert metric(BOXES, fainter, None) < 1 - criterion.metric_drop
