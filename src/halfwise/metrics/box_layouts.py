"""How outputs encode boxes, judging by shapes, values, and a YOLO's cells at the input's size.

A layout is shown if the values fit no other reading: as many rows as a YOLO has cells for this
input, whole numbers as classes, or ordered corners in all rows that a name calls boxes or that lie
in the image (`box_places`). Heads that need anchors or priors are not shown: widths are negative,
or rows are not boxes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.box_places import Places, in_order
from halfwise.metrics.boxes import STRIDES, cells
from halfwise.metrics.evidence import (
    SUM_SLACK,
    Arrays,
    Inputs,
    Look,
    image_sizes,
    is_against,
    is_decision,
    is_share_of,
    whole_numbers,
    within_unit,
)
from halfwise.records import Boxes, Evidence

_ANCHORS = 3
"""Boxes per cell in YOLOv3 to v7; later versions have one."""
_FOUR_MAPS = (*STRIDES, 64)
"""Strides of models for 1280-pixel images."""
_FEWEST_CELLS = 84
"""Cells of a 64-pixel image; the row count of a smaller one proves nothing."""
_ALONG = 0.9
"""Least correlation of the rows' centres with the positions of their cells."""
_BOTH_WAYS = (20, 80)
"""Numbers of classes in VOC and COCO: four columns before them are more likely than five before one
class fewer."""
_RAW_LARGEST = 16.0
"""Largest offset, in strides, or logarithm of a size: e^16 pixels is not a size."""
_FEWEST_ROWS = 8
"""Fewest rows with ordered corners: 8 rows of uniform values all have them with chance 2^-16."""
_QUERIES = 1000
"""Most rows of a set prediction, which needs no suppression: DETR has 100, DINO 900. Models with a
box per cell have more."""
_VISIBLE = 0.05
"""Least score of rows whose corners count: others may be padding."""


def boxes_in(
    floats: Mapping[str, Arrays], discrete: Mapping[str, Sequence[NDArray[Any]]], inputs: Inputs
) -> Look | None:
    """Return the first outputs that look like boxes, preferring those with a shown layout.

    Args:
        floats: Float outputs of several samples, f64.
        discrete: Integer outputs.
        inputs: Shapes of the inputs; without them no layout that needs the image size is shown.
    """
    floats = {name: arrays for name, arrays in floats.items() if not is_against("boxes", name)}
    found = [*_in_one(floats, inputs), *_in_several(floats, discrete, inputs)]
    return min(found, key=lambda look: not look.shown, default=None)


def _in_one(floats: Mapping[str, Arrays], inputs: Inputs) -> Iterator[Look]:
    for name, arrays in floats.items():
        if final := _final(name, arrays, inputs):
            yield _look(
                (name,), arrays, ("joined-with-scores", "whole-classes", *final[1]), final[0]
            )
        elif how := _cellwise(arrays, inputs):
            yield _look((name,), arrays, ("joined-with-scores", "row-per-cell"), how)
        elif all(map(_is_boxes_with_scores, arrays)):
            yield _look((name,), arrays, ("joined-with-scores",), None)


def _in_several(
    floats: Mapping[str, Arrays], discrete: Mapping[str, Sequence[NDArray[Any]]], inputs: Inputs
) -> Iterator[Look]:
    for name, boxes in floats.items():
        if is_decision(name):
            continue
        for other, scores in floats.items():
            if other == name or len(scores) != len(boxes):
                continue
            if not all(map(_are_boxes_and_scores, boxes, scores)):
                continue
            places = Places(name, inputs)
            if boxes[0].ndim > scores[0].ndim:
                yield _listed((name, other), places, floats, discrete)
            else:
                how, evidence = _per_class(boxes, scores, places)
                yield _look((name, other), boxes, ("beside-scores", *evidence), how)


def _look(
    outputs: tuple[str, ...], first: Arrays, evidence: tuple[Evidence, ...], how: Boxes | None
) -> Look:
    """Return outputs that look like boxes: boxes, scores and classes, as `how` reads them."""
    return Look("boxes", outputs, first[0].shape, evidence, how is not None, how)


def _cellwise(arrays: Arrays, inputs: Inputs) -> Boxes | None:
    """Return how to read a YOLO's rows, one or three per cell of its maps."""
    if any(array.ndim != 3 or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        return None
    length, width = arrays[0].shape[1:]
    for image in image_sizes(inputs):
        for strides in (STRIDES, _FOUR_MAPS):
            count = sum((image[0] // stride) * (image[1] // stride) for stride in strides)
            if count < _FEWEST_CELLS:
                continue
            if (
                length in (count, _ANCHORS * count)
                and width > 5
                and all(within_unit(a[..., 4:]) for a in arrays)
            ):
                if _follows_cells([array[..., :4] for array in arrays], image, strides):
                    return None if width - 4 in _BOTH_WAYS else Boxes(layout="joined")
                raw = (length, strides) == (count, STRIDES) and all(map(_is_raw, arrays))
                return Boxes(layout="raw", image=image) if raw else None
            if width == count and length > 4 and all(within_unit(a[:, 4:]) for a in arrays):
                places = [array[:, :4].swapaxes(1, 2) for array in arrays]
                fits = _follows_cells(places, image, strides)
                return Boxes(layout="transposed") if fits else None
    return None


def _follows_cells(boxes: Arrays, image: tuple[int, int], strides: Sequence[int]) -> bool:
    """Return whether these are centres and sizes: sizes are ≥ 0, and centres follow the cells.

    Rows are ordered by cell, then anchor, or by anchor, then cell.
    """
    if any((box[..., 2:] < 0).any() for box in boxes):
        return False
    one = np.concatenate([cells(image, [s])[0] * s for s in strides])
    by_cell = np.repeat(one, _ANCHORS, axis=0)
    by_map = np.concatenate([np.tile(cells(image, [s])[0] * s, (_ANCHORS, 1)) for s in strides])
    orders = [places for places in (one, by_cell, by_map) if len(places) == boxes[0].shape[1]]
    found = np.concatenate(boxes)[..., :2].mean(axis=0)
    return any(_correlation(found, places) >= _ALONG for places in orders)


def _correlation(found: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Return the smaller of both axes' correlations, of [rows, 2] with [rows, 2]."""
    if not (np.isfinite(found).all() and np.ptp(found, axis=0).all()):
        return 0.0
    return min(float(np.corrcoef(found[:, axis], expected[:, axis])[0, 1]) for axis in (0, 1))


def _is_raw(array: NDArray[np.float64]) -> bool:
    place = array[..., :4]
    return bool((place[..., 2:] < 0).any()) and float(np.abs(place).max()) <= _RAW_LARGEST


_ORDERS = {6: ((0, 4, 5),), 7: ((1, 6, 5), (3, 2, 1))}
"""First column of the box, columns of the score and the class, by the number of columns."""


def _final(name: str, arrays: Arrays, inputs: Inputs) -> tuple[Boxes, tuple[Evidence, ...]] | None:
    """Return how to read rows of corners, score and class, in one of three orders.

    Six columns as in YOLOv10 and RT-DETR; seven, the image's number first, as in YOLOv7; seven as
    in SSD's DetectionOutput. Where no row has a score that counts, all do if their scores fall from
    row to row, as a TopK gives them: padding has equal ones.
    """
    width = arrays[0].shape[-1] if arrays[0].ndim else 0
    if any(array.ndim < 2 or array.shape[-1] != width for array in arrays):
        return None
    rows = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
    for box, score, kind in _ORDERS.get(width, ()):
        seen, fewest = rows[rows[:, score] >= _VISIBLE], 1
        if not len(seen) and _is_ranked([array[..., score] for array in arrays]):
            seen, fewest = rows, _FEWEST_ROWS
        whole = whole_numbers([rows[:, kind]])
        if not (len(seen) and whole and within_unit(rows[:, score])):
            continue
        fractions = bool(np.any(seen[:, score] != np.rint(seen[:, score])))
        evidence = Places(name, inputs).shown(seen[:, box : box + 4], fewest=fewest, shares=True)
        if fractions and evidence and seen[:, kind].min() >= 0:
            columns = (box, score, kind)
            how = Boxes(layout="final", corners=True, columns=columns, suppress=False)
            return how, evidence
    return None


def _is_ranked(scores: Arrays) -> bool:
    steps = [np.diff(array, axis=-1) for array in scores]
    return all(bool(np.all(step <= 0)) for step in steps) and any(map(np.any, steps))


def _listed(
    names: tuple[str, str],
    places: Places,
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
) -> Look:
    """Return boxes with one score each, and the output with their classes, if any."""
    boxes, scores = (floats[name] for name in names)
    seen = np.concatenate([b[s >= _VISIBLE] for b, s in zip(boxes, scores, strict=True)])
    placed = places.shown(seen, fewest=_FEWEST_ROWS)
    if not (placed and all(map(within_unit, scores)) and not whole_numbers(scores)):
        return _look(names, boxes, ("beside-scores",), None)
    shapes = [array.shape for array in scores]
    classes = [
        n
        for n, arrays in (*discrete.items(), *floats.items())
        if n not in names and [array.shape for array in arrays] == shapes and whole_numbers(arrays)
    ]
    how = Boxes(layout="listed", corners=True, suppress=False)
    evidence: tuple[Evidence, ...] = ("beside-scores", *placed)
    if not classes:
        return _look(names, boxes, evidence, how)
    return _look((*names, classes[0]), boxes, (*evidence, "whole-classes"), how)


def _per_class(
    boxes: Arrays, scores: Arrays, places: Places
) -> tuple[Boxes | None, tuple[Evidence, ...]]:
    """Return how to read boxes with a score for each class, and the evidence.

    Unless named, four fractions that are not corners may be anything, even probabilities.
    """
    rows = np.concatenate([array.reshape(-1, 4) for array in boxes])
    corners, sums = in_order(rows), rows.sum(axis=1)
    evidence = places.shown(rows, fewest=_FEWEST_ROWS)
    if not evidence and places.named and np.all(rows[:, 2:] >= 0):
        evidence = ("by-name",)
    if len(rows) < _FEWEST_ROWS or not evidence or np.all(np.abs(sums - 1) <= SUM_SLACK):
        return None, ()
    each = np.concatenate([array.reshape(-1, array.shape[-1]) for array in scores])
    # Logits accompany boxes in DETR's family, whose boxes are fractions.
    how = _of_scores(each, shares=not corners and bool(np.all(np.abs(rows - 0.5) <= 1)))
    suppress = boxes[0].shape[-2] > _QUERIES
    if how is None:
        return None, ()
    return how.model_copy(update={"corners": corners, "suppress": suppress}), evidence


def _of_scores(scores: NDArray[np.float64], *, shares: bool) -> Boxes | None:
    """Return what turns scores [rows, classes] into probabilities; None if unclear."""
    if within_unit(scores):
        if scores.shape[1] < 2 or not np.all(np.abs(scores.sum(axis=1) - 1) <= SUM_SLACK):
            return Boxes(layout="per-class")
        background = _mostly(scores)
        return None if background is None else Boxes(layout="per-class", background=background)
    if not shares:
        return None
    if scores.shape[1] > 1 and _mostly(scores) == -1:
        return Boxes(layout="per-class", activation="softmax", background=-1)
    quiet = float((scores.max(axis=1) < 0).mean()) >= 0.5
    return Boxes(layout="per-class", activation="sigmoid") if quiet else None


def _mostly(scores: NDArray[np.float64]) -> Literal[0, -1] | None:
    """Return the background class, 0 or -1 (last), if most rows have it; None for any other."""
    best = scores.argmax(axis=1)
    if float((best == scores.shape[1] - 1).mean()) > 0.5:
        return -1
    return 0 if float((best == 0).mean()) > 0.5 else None


def _is_boxes_with_scores(array: NDArray[np.float64]) -> bool:
    """Recognise [B, N, 5 + C] and [B, 4 + C, N] of the YOLO family: pixels first, then a score."""
    if array.ndim != 3:
        return False
    if array.shape[-1] > array.shape[-2]:
        array = array.swapaxes(-1, -2)
    if array.shape[-1] < 5:
        return False
    # In x, y, w, h and in x, y, x, y the last two are never negative, unlike in feature vectors.
    in_pixels = bool(np.all(array[..., 2:4] >= 0)) and float(array[..., :4].min(axis=-1).max()) > 2
    return in_pixels and within_unit(array[..., 4])


def _are_boxes_and_scores(boxes: NDArray[np.float64], scores: NDArray[np.float64]) -> bool:
    """Recognise [*, N, 4] with [*, N] or [B, N, C]: scores in [0, 1], or logits and boxes in it.

    Four logits and their probabilities are no boxes.
    """
    if boxes.ndim < 2 or boxes.shape[-1] != 4:
        return False
    rows = boxes.shape[:-1]
    one_score = scores.shape == rows
    per_class = boxes.ndim == scores.ndim == 3 and scores.shape[:-1] == rows
    plausible = within_unit(scores) or within_unit(boxes)
    same = is_share_of(boxes, scores) or is_share_of(scores, boxes)
    return (one_score or per_class) and plausible and not same
