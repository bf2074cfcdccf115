"""Which outputs are boxes, and in which layout: evidence from values, names and suppression.

`boxes` reads them. docs/metrics.md lists the layouts.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.metrics.boxes import FOUR_MAPS, STRIDES, VISIBLE, cells, map_of, shared
from halfwise.metrics.evidence import (
    SUM_SLACK,
    Arrays,
    Inputs,
    begins,
    correlation,
    image_sizes,
    is_against,
    is_decision,
    is_share_of,
    of_kind,
    whole_numbers,
    within_unit,
)
from halfwise.metrics.slices import FEWEST, MOSTLY
from halfwise.metrics.targets import softmax
from halfwise.records import Boxes, Evidence, Recognised, replace

ANCHORS = 3
"""Boxes per cell in YOLOv3 to v7; later versions have one."""
FEWEST_CELLS = 84
"""Cells of a 64-pixel image; the row count of a smaller one proves nothing."""
_BOTH_WAYS = (20, 80)
"""Numbers of classes in VOC and COCO: four columns before them are more likely than five before one
class fewer."""
RAW_LARGEST = 16.0
"""Largest offset, in strides, or logarithm of a size: e^16 pixels is not a size."""
_QUERIES = 1000
"""Most rows of a set prediction, which needs no suppression: DETR has 100, DINO 900. Models with a
box per cell have more."""


def boxes_in(
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
    inputs: Inputs,
    suppressed: Collection[str] = (),
) -> Recognised | None:
    """Return the first outputs that look like boxes, preferring those of a known layout.

    Those of no known layout have none: they are not recognised, and nothing else either.

    Args:
        floats: Float outputs of several samples, f64.
        discrete: Integer outputs.
        inputs: Shapes of the inputs; without them no layout that needs the image size is known.
        suppressed: Names of outputs with what a suppression of overlapping boxes chose.
    """
    floats = {n: [*map(shared, each)] for n, each in floats.items() if not is_against("boxes", n)}
    places = {name: Places(name, inputs, name in suppressed) for name in floats}
    several = (*_in_heads(floats, inputs), *_in_several(floats, discrete, places))
    candidates = [*_in_one(floats, discrete, places, inputs), *several]
    return min(candidates, key=lambda one: one.boxes is None, default=None)


def _in_one(
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
    places: Mapping[str, "Places"],
    inputs: Inputs,
) -> Iterator[Recognised]:
    for name, arrays in floats.items():
        if final := _final(arrays, places[name]):
            read, placed = final
            names: tuple[str, ...] = (name,)
            evidence: tuple[Evidence, ...] = ("joined-with-scores", *placed)
            if read.columns is not None and read.columns[2] is None:
                shapes = [array.shape[:-1] for array in arrays]
                names += _classes_beside(names, shapes, floats, discrete)
            else:
                evidence += ("whole-classes",)
            yield of_kind("boxes", names, evidence, read)
        elif how := _cellwise(arrays, inputs):
            yield of_kind("boxes", (name,), ("joined-with-scores", "row-per-cell"), how)
        elif all(map(_is_boxes_with_scores, arrays)):
            yield of_kind("boxes", (name,), ("joined-with-scores",), None)


_FEWEST_BINS = 4
"""Fewest bins of a distance's distribution; NanoDet and PicoDet have 8, YOLOv8 16."""


def _in_heads(floats: Mapping[str, Arrays], inputs: Inputs) -> Iterator[Recognised]:
    """Recognise two outputs for each map: scores, and distributions of distances to four sides."""
    for image in image_sizes(inputs):
        maps: dict[int, list[str]] = {}
        for name, arrays in floats.items():
            if all(a.ndim == 3 and a.shape[1:] == arrays[0].shape[1:] for a in arrays):
                maps.setdefault(arrays[0].shape[1], []).append(name)
        heads = {rows: both for rows, both in maps.items() if map_of(rows, image)}
        if len(heads) < 2 or any(len(both) != 2 for both in heads.values()):
            continue
        # Scores first, largest maps first.
        ordered = [
            sorted(both, key=lambda name: not all(map(within_unit, floats[name])))
            for _, both in sorted(heads.items(), reverse=True)
        ]
        widths = {tuple(floats[name][0].shape[2] for name in both) for both in ordered}
        scored = all(all(map(within_unit, floats[scores])) for scores, _ in ordered)
        drawn = not any(all(map(within_unit, floats[bins])) for _, bins in ordered)
        if len(widths) == 1 and scored and drawn:
            ((_, sides),) = widths
            fits = sides % 4 == 0 and sides // 4 >= _FEWEST_BINS
            if fits and _are_distances([(floats[name], floats[bins]) for name, bins in ordered]):
                names = tuple(name for both in ordered for name in both)
                how = Boxes(layout="heads", image=image)
                yield of_kind("boxes", names, ("beside-scores", "cells-of-image"), how)


def _are_distances(maps: Sequence[tuple[Arrays, Arrays]]) -> bool:
    """Return whether visible boxes have distributions with most of it in two neighbouring bins.

    That is what training asks of them, and not of mask coefficients or embeddings. True without
    visible boxes: then nothing is judged by them.
    """
    shares = [
        softmax(sides[scores.max(axis=-1) >= VISIBLE].reshape(-1, 4, sides.shape[-1] // 4))
        for of_samples in maps
        for scores, sides in zip(*of_samples, strict=True)
    ]
    near = np.concatenate([(one[..., 1:] + one[..., :-1]).max(axis=-1) for one in shares])
    return not near.size or bool(np.median(near) > 1 / 2)


def _in_several(
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
    places: Mapping[str, "Places"],
) -> Iterator[Recognised]:
    for name, boxes in floats.items():
        if is_decision(name):
            continue
        for other, scores in floats.items():
            if other == name or len(scores) != len(boxes):
                continue
            if not all(map(_are_boxes_and_scores, boxes, scores)):
                continue
            if boxes[0].ndim > scores[0].ndim:
                yield _listed((name, other), places[name], floats, discrete)
            else:
                how, evidence = _per_class(boxes, scores, places[name])
                yield of_kind("boxes", (name, other), ("beside-scores", *evidence), how)


def _cellwise(arrays: Arrays, inputs: Inputs) -> Boxes | None:
    """Return how to read a YOLO's rows, one or three per cell of its maps."""
    if any(array.ndim != 3 or array.shape[1:] != arrays[0].shape[1:] for array in arrays):
        return None
    length, width = arrays[0].shape[1:]
    for image in image_sizes(inputs):
        for strides in (STRIDES, FOUR_MAPS):
            count = sum((image[0] // stride) * (image[1] // stride) for stride in strides)
            if count < FEWEST_CELLS:
                continue
            if (
                length in (count, ANCHORS * count)
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
    by_cell = np.repeat(one, ANCHORS, axis=0)
    by_map = np.concatenate([np.tile(cells(image, [s])[0] * s, (ANCHORS, 1)) for s in strides])
    orders = [places for places in (one, by_cell, by_map) if len(places) == boxes[0].shape[1]]
    centres = np.concatenate(boxes)[..., :2].mean(axis=0)
    return any(
        min(correlation(centres[:, axis], places[:, axis]) for axis in (0, 1)) >= MOSTLY
        for places in orders
    )


def _is_raw(array: NDArray[np.float64]) -> bool:
    place = array[..., :4]
    return bool((place[..., 2:] < 0).any()) and float(np.abs(place).max()) <= RAW_LARGEST


_ORDERS: Mapping[int, tuple[tuple[int, int, int | None], ...]] = {
    5: ((0, 4, None),),
    6: ((0, 4, 5),),
    7: ((1, 6, 5), (3, 2, 1)),
}
"""First column of the box, columns of the score and the class, by the number of columns."""


def _final(arrays: Arrays, places: "Places") -> tuple[Boxes, tuple[Evidence, ...]] | None:
    """Return how to read rows of box, score and maybe class, in one of four orders.

    Five columns as in MMDetection, whose scores fall from row to row (a fifth number may be an
    angle); six as in YOLOv10 and RT-DETR; seven, the image's number first, as in YOLOv7; seven as
    in SSD's DetectionOutput. Where no row has a score that counts, all do if their scores fall from
    row to row, as a TopK gives them: padding has equal ones.
    """
    width = arrays[0].shape[-1] if arrays[0].ndim else 0
    if any(array.ndim < 2 or array.shape[-1] != width for array in arrays):
        return None
    rows = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
    for box, score, kind in _ORDERS.get(width, ()):
        seen, fewest = rows[rows[:, score] >= VISIBLE], 1
        ranked = _is_ranked([array[..., score] for array in arrays])
        if not len(seen) and ranked:
            seen, fewest = rows, FEWEST
        classed = ranked if kind is None else whole_numbers([rows[:, kind]])
        if not (len(seen) and classed and within_unit(rows[:, score])):
            continue
        fractions = bool(np.any(seen[:, score] != np.rint(seen[:, score])))
        corners, evidence = places.read(seen[:, box : box + 4], fewest=fewest, shares=True)
        if fractions and evidence and (kind is None or seen[:, kind].min() >= 0):
            columns = (box, score, kind)
            how = Boxes(layout="final", corners=corners, columns=columns, suppress=False)
            return how, evidence
    return None


def _is_ranked(scores: Arrays) -> bool:
    steps = [np.diff(array, axis=-1) for array in scores]
    return all(bool(np.all(step <= 0)) for step in steps) and any(map(np.any, steps))


def _listed(
    names: tuple[str, str],
    places: "Places",
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
) -> Recognised:
    """Return boxes with one score each, and the output with their classes, if any."""
    boxes, scores = (floats[name] for name in names)
    seen = np.concatenate([b[s >= VISIBLE] for b, s in zip(boxes, scores, strict=True)])
    corners, placed = places.read(seen, fewest=FEWEST)
    if not (placed and all(map(within_unit, scores)) and not whole_numbers(scores)):
        return of_kind("boxes", names, ("beside-scores",), None)
    classes = _classes_beside(names, [array.shape for array in scores], floats, discrete)
    how = Boxes(layout="listed", corners=corners, suppress=False)
    evidence: tuple[Evidence, ...] = ("beside-scores", *placed)
    if not classes:
        return of_kind("boxes", names, evidence, how)
    return of_kind("boxes", (*names, *classes), (*evidence, "whole-classes"), how)


def _classes_beside(
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
) -> tuple[str, ...]:
    """Return the first other output with a whole number for each box; none if there is none."""
    classes = (
        n
        for n, arrays in (*discrete.items(), *floats.items())
        if n not in names and [array.shape for array in arrays] == shapes and whole_numbers(arrays)
    )
    return tuple(islice(classes, 1))


def _per_class(
    boxes: Arrays, scores: Arrays, places: "Places"
) -> tuple[Boxes | None, tuple[Evidence, ...]]:
    """Return how to read boxes with a score for each class, and the evidence.

    Unless named, four fractions that are not corners may be anything, even probabilities.
    """
    rows = np.concatenate([array.reshape(-1, 4) for array in boxes])
    sums = rows.sum(axis=1)
    corners, evidence = places.read(rows, fewest=FEWEST)
    if len(rows) < FEWEST or not evidence or np.all(np.abs(sums - 1) <= SUM_SLACK):
        return None, ()
    each = np.concatenate([array.reshape(-1, array.shape[-1]) for array in scores])
    # Logits accompany boxes in DETR's family, whose boxes are fractions.
    how = _of_scores(each, shares=not corners and bool(np.all(np.abs(rows - 0.5) <= 1)))
    suppress = boxes[0].shape[-2] > _QUERIES
    if how is None:
        return None, ()
    return replace(how, corners=corners, suppress=suppress), evidence


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


_NAMES = ("bbox", "dets", "detect")
_SAME_SIDES = 1e-3
"""Share of the largest side by which sides along one axis must differ."""
_BEYOND = 0.5
"""How far a box may reach beyond the image, as a share of its side."""
_REACH = 0.125
"""Least distance of the farthest corners from the origin, as a share of the image's sides."""
_SMALLEST = 32
"""Least height and width of an input image without a batch axis."""


class Places(Struct, frozen=True):
    """The name of an output that may be boxes, and the shapes of the model's inputs.

    `suppressed`: whether a suppression of overlapping boxes chose its rows.
    """

    name: str
    inputs: Inputs
    suppressed: bool = False

    @property
    def named(self) -> bool:
        """Whether the name calls them boxes."""
        return begins(self.name, *_NAMES) or "box" in self.name.lower()

    def read(
        self, rows: NDArray[np.float64], *, fewest: int, shares: bool = False
    ) -> tuple[bool, tuple[Evidence, ...]]:
        """Return whether rows are corners, else centre and size, and the evidence for boxes.

        Where the name or a suppression shows boxes, it is enough that no size is negative.
        Arguments as for `shown`.
        """
        evidence = self.shown(rows, fewest=fewest, shares=shares)
        told = self.named or self.suppressed
        if told and not evidence and len(rows) and np.all(rows[:, 2:] >= 0) and np.any(rows[:, 2:]):
            evidence = ("by-name",) if self.named else ("suppressed",)
        return in_order(rows), evidence

    def shown(
        self, rows: NDArray[np.float64], *, fewest: int, shares: bool = False
    ) -> tuple[Evidence, ...]:
        """Return the evidence that rows f64[n, 4] are opposite corners; may be empty.

        Args:
            rows: The rows that count; may be none.
            fewest: Fewest rows needed unless they are called boxes.
            shares: Whether fractions of an image suffice, since other columns suggest boxes too.
        """
        if not len(rows) or not in_order(rows):
            return ()
        sides = rows[:, 2:] - rows[:, :2]
        if float((sides > 0).all(axis=1).mean()) < MOSTLY:
            return ()
        if self.named:
            return ("corners-in-order", "by-name")
        spread = np.minimum(np.ptp(sides, axis=0), np.ptp(rows[:, :2], axis=0))
        alike = len(rows) > 1 and float(spread.min()) <= _SAME_SIDES * float(sides.max())
        if len(rows) < fewest or alike or (np.diff(rows, axis=1) >= 0).all():
            return ()
        sizes = _images(self.inputs)
        inside = any(_is_inside(rows, size) for size in sizes)
        if inside or (shares and sizes and within_unit(rows)):
            return ("corners-in-order", "within-image")
        return ()


def in_order(rows: NDArray[np.float64]) -> bool:
    """Return whether no side of boxes f64[n, 4] is negative, and not all are 0."""
    return bool(np.all(rows[:, 2:] >= rows[:, :2])) and bool(np.any(rows[:, 2:] > rows[:, :2]))


def _images(inputs: Inputs) -> list[tuple[int, int]]:
    """Return height and width of input images, including [3, height, width] and channels last."""
    sizes = image_sizes(inputs)
    for shape in inputs.values():
        if len(shape) == 3 and 3 in (shape[0], shape[2]):
            height, width = shape[1:] if shape[0] == 3 else shape[:2]
            sizes += [(height, width)] if min(height, width) >= _SMALLEST else []
    return sizes


def _is_inside(rows: NDArray[np.float64], size: tuple[int, int]) -> bool:
    """Return whether corners are pixels of an image, in either order of x and y."""
    low, high = rows.min(axis=0)[:2], rows.max(axis=0)[2:]
    return any(
        bool((low >= -_BEYOND * far).all() and (high <= (1 + _BEYOND) * far).all())
        and bool((high >= np.maximum(_REACH * far, 2)).all())
        for far in (np.array(size[::-1], float), np.array(size, float))
    )
