"""How a candidate's detections agree with the reference's: F1, and COCO's mean average precision.

The truth is what the reference detects (see `boxes`), not labels. A box is found if a candidate's
box of its class overlaps it by the required IoU. In order of falling score, each of the candidate's
boxes matches the unmatched box that it overlaps most.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.boxes import NOTHING, SCORE, Detections, Floats, detect, overlaps
from halfwise.metrics.measures import Outputs
from halfwise.records import Boxes

_MATCH = 0.5
"""Smallest IoU of a match, as in PASCAL VOC."""
_IOUS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0, 1, 101)
_GUESS = 0.05
"""Smallest score of a candidate's box that average precision ranks. The truth starts at 0.3, so a
box is not lost because its score is just below that; boxes ranked after all true ones change
nothing."""


def f1(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], names: Sequence[str], how: Boxes
) -> float:
    """Return the F1 of the candidate's boxes, pooled over all images, in [0, 1].

    2 · found / (boxes of the reference + boxes of the candidate), matched at an IoU of 0.5; 1 if
    neither has any. NaN and other shapes detect nothing.

    Args:
        reference: Outputs of each sample.
        candidate: Likewise.
        names: Outputs with the boxes; see `detect`.
        how: How to read them.
    """
    matched = boxes = 0
    for truth, found in _images(reference, candidate, names, how):
        matched += int(_matches(truth, found, np.array([_MATCH])).sum())
        boxes += len(truth) + len(found)
    return 2 * matched / boxes if boxes else 1.0


def mean_ap(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], names: Sequence[str], how: Boxes
) -> float:
    """Return the mean average precision of the candidate's boxes, in [0, 1].

    As COCO defines it (Lin et al., "Microsoft COCO: Common Objects in Context", 2014, and its
    evaluation code): precision, made monotone, is averaged over the recalls 0, 0.01 … 1, then over
    IoUs of 0.5, 0.55 … 0.95 and the classes that the reference detects; 1 if it detects nothing.
    Among boxes of equal score, wrong ones rank first. Arguments as for `f1`.
    """
    truths: list[NDArray[np.int64]] = []
    scores: list[Floats] = []
    classes: list[NDArray[np.int64]] = []
    hits: list[NDArray[np.bool_]] = []
    for truth, found in _images(reference, candidate, names, how, _GUESS):
        truths.append(truth.classes)
        scores.append(found.scores)
        classes.append(found.classes)
        hits.append(_matches(truth, found, _IOUS))
    if not truths:
        return 1.0
    present, counts = np.unique(np.concatenate(truths), return_counts=True)
    if not present.size:
        return 1.0
    kinds, every, right = np.concatenate(classes), np.concatenate(scores), np.concatenate(hits, 1)
    precisions = [
        _average_precision(every[kinds == kind], hit[kinds == kind], int(total))
        for kind, total in zip(present, counts, strict=True)
        for hit in right
    ]
    return float(np.mean(precisions))


def finds_nothing(reference: Sequence[Outputs], names: Sequence[str], how: Boxes) -> bool:
    """Return whether no image has any box."""
    return not any(len(d) for outputs in reference for d in detect(outputs, names, how))


def _images(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    names: Sequence[str],
    how: Boxes,
    least: float = SCORE,
) -> Iterator[tuple[Detections, Detections]]:
    """Yield both detections of each image, the candidate's from the score `least` on."""
    for expected, outputs in zip(reference, candidate, strict=True):
        truth = detect(expected, names, how)
        found = detect(outputs, names, how, least)
        yield from zip_longest(truth, found, fillvalue=NOTHING)


def _matches(truth: Detections, found: Detections, ious: Floats) -> NDArray[np.bool_]:
    """Return whether each found box matches a true one: [IoUs, boxes]."""
    hits = np.zeros((len(ious), len(found)), bool)
    if not len(truth):
        return hits
    shares = overlaps(found.boxes, truth.boxes)
    shares[found.classes[:, None] != truth.classes] = 0
    open_ones = np.ones((len(ious), len(truth)), bool)
    each = np.arange(len(ious))
    for box in range(len(found)):
        fits = np.where(open_ones & (shares[box] >= ious[:, None]), shares[box], 0)
        nearest = fits.argmax(axis=1)
        hits[:, box] = fits[each, nearest] > 0
        open_ones[each, nearest] &= ~hits[:, box]
    return hits


def _average_precision(scores: Floats, hits: NDArray[np.bool_], total: int) -> float:
    order = np.lexsort((hits, -scores))
    found = np.cumsum(hits[order])
    precision = found / np.arange(1, len(found) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    # One extra entry: a recall that is never reached has a precision of 0.
    reached = np.searchsorted(found / total, _RECALLS, side="left")
    return float(np.append(best, 0.0)[reached].mean())
