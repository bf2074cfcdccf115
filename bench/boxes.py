"""A detection metric for YOLOX: how many boxes of the FP32 model does a candidate find again?

Use it as `halfwise fix … --metric bench/boxes.py:f1 --metric-drop 0.01`. Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Detections = tuple[Floats, Floats, Integers]
"""Boxes f64[n, 4] as x0, y0, x1, y1 in pixels, scores f64[n] (descending), classes i64[n]."""

IMAGE, STRIDES = 416, (8, 16, 32)
SCORE, SUPPRESS, MATCH = 0.3, 0.45, 0.5


def f1(
    reference: Sequence[Mapping[str, NDArray[Any]]],
    candidate: Sequence[Mapping[str, NDArray[Any]]],
    labels: Sequence[Any] | None,
) -> float:
    """Return the F1 of the candidate's boxes against the reference's, pooled over all images.

    A box is found where a candidate box of the same class overlaps it by an IoU of 0.5; each is
    matched once, higher scores first. 1 where neither side has a box. NaN is no detection.

    Args:
        reference: Per sample the one output f32[images, 3549, 85] of YOLOX for 416 × 416 pixels.
        candidate: The same.
        labels: Not used: the truth is what the reference detects.
    """
    del labels
    matched = expected = found = 0
    for reference_outputs, candidate_outputs in zip(reference, candidate, strict=True):
        (raw_reference,), (raw_candidate,) = reference_outputs.values(), candidate_outputs.values()
        for truth, guess in zip(raw_reference, raw_candidate, strict=True):
            true, guessed = detect(truth), detect(guess)
            matched += matches(true, guessed)
            expected += len(true[1])
            found += len(guessed[1])
    return 2 * matched / (expected + found) if expected + found else 1.0


def detect(raw: NDArray[Any], image: int = IMAGE) -> Detections:
    """Return what one image's raw output f[anchors, 5 + classes] detects, after suppression."""
    boxes, scores, classes = decode(np.asarray(raw, np.float64), image)
    order = np.argsort(-scores, kind="stable")
    boxes, scores, classes = boxes[order], scores[order], classes[order]
    kept: list[int] = []
    for i in range(len(scores)):
        rivals = [k for k in kept if classes[k] == classes[i]]
        if not rivals or overlaps(boxes[i], boxes[rivals]).max() <= SUPPRESS:
            kept.append(i)
    return boxes[kept], scores[kept], classes[kept]


def decode(raw: Floats, image: int = IMAGE) -> Detections:
    """Return the boxes whose objectness times best class probability is at least 0.3."""
    cells, strides = grid(image)
    with np.errstate(invalid="ignore", over="ignore"):
        probabilities = raw[:, 4:5] * raw[:, 5:]
        centres = (raw[:, :2] + cells) * strides
        sizes = np.exp(raw[:, 2:4]) * strides
        boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    scores = probabilities.max(axis=1)
    # A comparison with NaN is false, so an anchor that went wrong detects nothing.
    good = (scores >= SCORE) & np.isfinite(boxes).all(axis=1)
    return boxes[good], scores[good], probabilities[good].argmax(axis=1)


def grid(image: int = IMAGE) -> tuple[Floats, Floats]:
    """Return every anchor's cell f64[anchors, 2] as column, row, and its stride f64[anchors, 1]."""
    cells, strides = [], []
    for stride in STRIDES:
        side = image // stride
        row, column = np.divmod(np.arange(side * side), side)
        cells.append(np.stack([column, row], axis=1))
        strides.append(np.full((side * side, 1), stride))
    return np.concatenate(cells).astype(np.float64), np.concatenate(strides).astype(np.float64)


def overlaps(box: Floats, others: Floats) -> Floats:
    """Return the IoU of one box with each of f64[n, 4]; 0 for boxes without area."""
    corner = np.maximum(box[:2], others[:, :2])
    opposite = np.minimum(box[2:], others[:, 2:])
    common = np.clip(opposite - corner, 0, None).prod(axis=1)
    union = np.prod(box[2:] - box[:2]) + (others[:, 2:] - others[:, :2]).prod(axis=1) - common
    shares: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares


def matches(true: Detections, guessed: Detections) -> int:
    """Return how many true boxes are found, each by a guess of its own."""
    (true_boxes, _, true_classes), (boxes, _, classes) = true, guessed
    open_boxes = list(range(len(true_boxes)))
    for box, cls in zip(boxes, classes, strict=True):
        rivals = [i for i in open_boxes if true_classes[i] == cls]
        if rivals:
            shares = overlaps(box, true_boxes[rivals])
            if shares.max() >= MATCH:
                open_boxes.remove(rivals[int(shares.argmax())])
    return len(true_boxes) - len(open_boxes)
