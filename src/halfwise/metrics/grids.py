"""A detector's cells: what is judged where boxes cannot be decoded without its anchors.

A cell has four box numbers, an objectness and C class scores. What turns the numbers into pixels
(anchors, exponentials, a tanh) is not in the outputs, so boxes are not guessed: a cell that a user
would see must keep its scores and its numbers, whatever is made of them.

- Visible: an objectness of at least `boxes.SCORE`, in FP32 or in the candidate. Where a detection's
  score is the product of objectness and class probability, it is no larger than its objectness.
- Scores (objectness and each class) may change by 0.1, as scores of boxes.
- Box numbers may change by 1 % of the largest, as by default: x and y of the largest x or y, width
  and height likewise.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.boxes import FOUR_MAPS, SAME_SCORE, SCORE
from halfwise.metrics.evidence import (
    Arrays,
    Inputs,
    image_sizes,
    is_against,
    of_kind,
    within_unit,
)
from halfwise.metrics.layouts import ANCHORS, FEWEST_CELLS, RAW_LARGEST
from halfwise.metrics.measures import DEFAULT_REL_MAX, Outputs
from halfwise.metrics.slices import MOSTLY
from halfwise.metrics.targets import Score, sigmoid
from halfwise.records import Cells, Evidence, Recognised

_NARROWEST = 6
"""Columns of a row with one class."""
_BOX, _SCORES, _CLASSES = slice(0, 4), slice(4, None), slice(5, None)
"""Columns of a table."""
_WHY: tuple[Evidence, ...] = ("cells-of-image", "joined-with-scores", "few-objects")
Floats = NDArray[np.float64]


def cells_in(floats: Mapping[str, Arrays], inputs: Inputs) -> list[Recognised]:
    """Return the outputs that are a detector's cells; its maps of several strides are one.

    Args:
        floats: Float outputs of several samples, f64.
        inputs: Shapes of the inputs; without an image nothing is recognised.
    """
    groups: dict[tuple[Cells, int], dict[str, Arrays]] = {}
    for name, arrays in floats.items():
        shape = arrays[0].shape
        if is_against("cells", name) or any(a.shape[1:] != shape[1:] for a in arrays):
            continue
        fitting = (how for how in _readings(shape, inputs) if _fits(arrays, how))
        if how := next(fitting, None):
            key = how, _table(arrays[0], how).shape[-1]
            groups.setdefault(key, {})[name] = arrays
    return [
        of_kind("cells", tuple(maps), _WHY, cells=how)
        for (how, _), maps in groups.items()
        if _are_of_one_detector(maps, how)
    ]


def agreement(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], names: Sequence[str], how: Cells
) -> float:
    """Return the share of visible cells that agree, averaged over images, in [0, 1].

    Images without a visible cell are left out; 1 if all are. NaN and other shapes agree nowhere.

    Args:
        reference: Outputs of each sample.
        candidate: Likewise.
        names: The outputs with the cells.
        how: How to read them.
    """
    rooms = {name: _room([outputs[name] for outputs in reference], how) for name in names}
    shares, count = list[float](), 0
    for expected, outputs in zip(reference, candidate, strict=True):
        each = [_by_image(expected[name], outputs[name], how, rooms[name]) for name in names]
        for agreeing, visible in np.sum(each, axis=0):
            shares += [float(agreeing / visible)] if visible else []
            count += int(visible)
    return Score(fsum(shares) / len(shares) if shares else 1.0, count)


def _readings(shape: tuple[int, ...], inputs: Inputs) -> Iterator[Cells]:
    """Yield how an output of a shape may be read: as rows, or as maps of one or more anchors."""
    sizes = image_sizes(inputs)
    if len(shape) == 3 and shape[1] >= FEWEST_CELLS and shape[2] >= _NARROWEST:
        if shape[1] in set(_lengths(sizes)):
            yield Cells(layout="rows", logits=True)
    elif len(shape) == 5 and shape[1] == ANCHORS and shape[4] >= _NARROWEST:
        if _is_grid(shape[2:4], sizes):
            yield Cells(layout="rows", logits=True)
            yield Cells(layout="rows")
    elif len(shape) == 4 and shape[1] >= _NARROWEST and _is_grid(shape[2:], sizes):
        yield Cells(layout="maps")
        yield Cells(layout="maps", objectness=0)
        if shape[1] >= ANCHORS * _NARROWEST and not shape[1] % ANCHORS:
            yield Cells(layout="maps", anchors=ANCHORS)
            yield Cells(layout="maps", anchors=ANCHORS, logits=True)


def _lengths(sizes: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield how many rows three or four maps of one or several anchors have."""
    for height, width in sizes:
        counts = [(height // stride) * (width // stride) for stride in FOUR_MAPS]
        for maps in (3, 4):
            yield from (sum(counts[:maps]), ANCHORS * sum(counts[:maps]))


def _is_grid(shape: tuple[int, ...], sizes: Sequence[tuple[int, int]]) -> bool:
    return any(
        shape == (height // stride, width // stride)
        for height, width in sizes
        for stride in FOUR_MAPS
    )


def _fits(arrays: Arrays, how: Cells) -> bool:
    """Return whether objectness is low at nearly all cells of each anchor, and boxes are raw.

    Features have no four channels that differ so from all others. Scores in [0, 1] stand out by
    their range beside box numbers that leave it; among logits, offsets are above and below 0 alike
    where objectness is nearly always far below.
    """
    table = np.concatenate([_table(array, how) for array in arrays])
    boxes, scores = table[..., _BOX], table[..., _SCORES]
    raw = bool(np.isfinite(table).all()) and float(np.abs(boxes).max()) <= RAW_LARGEST
    if not raw or float(_visible(table, how).mean(axis=(0, 2)).max()) > 1 - MOSTLY:
        return False
    if not how.logits:
        outside = ((boxes < 0) | (boxes > 1)).any(axis=(0, 1, 2))
        return within_unit(scores) and bool(outside.all())
    offsets = (_probable(boxes[..., :2], how) >= SCORE).mean(axis=(0, 1, 2))
    return not within_unit(scores) and bool((offsets > 0.5).all())


def _are_of_one_detector(maps: Mapping[str, Arrays], how: Cells) -> bool:
    """Return whether visible cells mostly have a class, as those with an object do.

    If the first class were taken for objectness, its cells would have no other. Logits in a single
    map of anchors show too little.
    """
    if how.logits and how.layout == "maps" and len(maps) < 2:
        return False
    tables = [_table(array, how) for arrays in maps.values() for array in arrays]
    if sum(table[0, ..., 0].size for table in tables) < FEWEST_CELLS:
        return False
    seen = np.concatenate([table[_visible(table, how)] for table in tables])
    best = _probable(seen[:, _CLASSES], how).max(axis=1)
    return bool(best.size) and float((best >= SCORE).mean()) > 0.5


def _table(array: NDArray[Any], how: Cells) -> NDArray[Any]:
    """Return [images, anchors, cells, 5 + C], box numbers first, then objectness.

    No cells if the shape cannot be read.
    """
    shape, table = array.shape, np.zeros((0, how.anchors, 0, _NARROWEST))
    if how.layout == "rows" and array.ndim in (3, 5) and array.size:
        table = array.reshape(shape[0], shape[1] if array.ndim == 5 else 1, -1, shape[-1])
    elif how.layout == "maps" and array.ndim == 4 and array.size and not shape[1] % how.anchors:
        table = array.reshape(shape[0], how.anchors, shape[1] // how.anchors, -1).swapaxes(2, 3)
    if table.shape[-1] < _NARROWEST:
        return table[..., :0, :].repeat(_NARROWEST, axis=-1)
    if how.objectness == 0:
        return np.concatenate([table[..., 1:5], table[..., :1], table[..., 5:]], axis=-1)
    return table


def _visible(table: NDArray[Any], how: Cells) -> NDArray[np.bool_]:
    """Return bool[images, anchors, cells]; NaN is visible, so that it disagrees."""
    return np.asarray(~(_probable(table[..., 4], how) < SCORE))


def _probable(scores: NDArray[Any], how: Cells) -> Floats:
    scores = scores.astype(np.float64)
    return sigmoid(scores) if how.logits else scores


def _room(arrays: Sequence[NDArray[Any]], how: Cells) -> Floats:
    """Return how far each of four box numbers may be off: f64[4]."""
    boxes = (np.abs(_table(array, how)[..., _BOX].astype(np.float64)) for array in arrays)
    largest = [each.max(axis=(0, 1, 2), initial=0.0, where=np.isfinite(each)) for each in boxes]
    by_axis = np.max(largest, axis=0).reshape(2, 2).max(axis=1)
    return np.asarray(DEFAULT_REL_MAX * by_axis.repeat(2))


def _by_image(
    expected: NDArray[Any], actual: NDArray[Any], how: Cells, room: Floats
) -> NDArray[np.int64]:
    """Return i64[images, 2]: how many cells agree, and how many are visible on either side."""
    ours, theirs = _table(expected, how), _table(actual, how)
    seen = _visible(ours, how)
    if actual.shape != expected.shape:
        visible = seen.sum(axis=(1, 2))
        return np.stack([0 * visible, visible], axis=1)
    seen |= _visible(theirs, how)
    agree = np.zeros_like(seen)
    agree[seen] = _agree(ours[seen], theirs[seen], how, room)
    return np.stack([agree.sum(axis=(1, 2)), seen.sum(axis=(1, 2))], axis=1)


def _agree(ours: NDArray[Any], theirs: NDArray[Any], how: Cells, room: Floats) -> NDArray[np.bool_]:
    """Return which rows of [n, 5 + C] agree; NaN does not."""
    with np.errstate(invalid="ignore"):
        moved = np.abs(ours[:, _BOX].astype(np.float64) - theirs[:, _BOX]) <= room
        changed = np.abs(_probable(ours[:, _SCORES], how) - _probable(theirs[:, _SCORES], how))
        return np.asarray(moved.all(axis=1) & (changed <= SAME_SCORE).all(axis=1))
