"""Evidence for the kinds of outputs: an output, what is observed of it, and its name.

A name that speaks against a kind outweighs what the values look like. Landmarks, portfolio shares
or quantiles can have values like class scores and boxes; their names differ.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.boxes import FOUR_MAPS, STRIDES, VISIBLE, cells, map_of, shared
from halfwise.metrics.slices import FEWEST, MOSTLY
from halfwise.metrics.targets import required, sigmoid, softmax, without_trailing_ones
from halfwise.records import Boxes, Cells, Evidence, Kind, Recognised

_WORD = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_LONG = 5
"""Letters from which a word is searched for anywhere in a name; shorter ones must begin a word."""
_PLACES = (
    "landmark", "keypoint", "kpt", "kps", "joint", "pose", "coord", "offset", "delta", "displac",
    "mesh", "vertices", "rotat", "transl", "quat", "angle", "velocity", "traject", "normals",
    "gaze", "xyz",
)  # fmt: skip
_AMOUNTS = (
    "depth", "dispar", "quantile", "percentile", "regress", "forecast", "price", "distance",
    "height", "param", "coef", "alloc", "portfolio", "mixture", "mixing", "proportion", "fraction",
    "histogram", "variance", "uncert", "count", "length", "router", "expert",
)  # fmt: skip
_SPACES = ("embed", "feat", "latent", "hidden", "descriptor", "represent")
_DECISIONS = ("logit", "prob", "score", "class", "label", "token")
_NO_BOXES = (*(word for word in _PLACES if word != "coord"), *_AMOUNTS, *_SPACES)
_AGAINST: Mapping[Kind, tuple[str, ...]] = {
    "boxes": _NO_BOXES,
    "cells": _NO_BOXES,
    "class-scores": (
        *_PLACES, *_AMOUNTS, *_SPACES, "multilabel", "multi_label", "attribute", "tags",
    ),
    "tokens": (*_PLACES, *_AMOUNTS, *_SPACES, "num", "track", "cluster"),
    "embedding": (*_PLACES, *_AMOUNTS, *_DECISIONS, "box"),
    "mask": (
        *_AMOUNTS, "alpha", "matte", "pha", "disp", "heat", "anomal", "salien", "confid", "error",
        "visib", "ratio", "irm", "gain", "energy", "dist", "sdf", "spec", "stft", "mel", "audio",
        "speech",
    ),
    "segmentation": (*_AMOUNTS, *_SPACES, "disp", "cost", "heat", "flow", "instance"),
    "keypoints": (
        *_AMOUNTS, *_DECISIONS, "offset", "displac", "delta", "flow", "size", "veloc", "angle",
        "match",
    ),
    "heatmap": (
        *_AMOUNTS, *_SPACES, "offset", "displac", "transl", "anomal", "salien", "disp", "confid",
        "mask", "seg", "uncert", "error", "edge", "densit", "occup", "centerness", "centreness",
    ),
    "flow": (*_DECISIONS, *_SPACES, "mask", "seg", "change", "dispar", "depth", "uncert", "confid",
             "occl", "visib", "flower"),
    "image": (
        *_PLACES, *_AMOUNTS, *_SPACES, *_DECISIONS, "alpha", "matte", "pha", "disp", "heat",
        "normal", "mask", "seg", "point", "position", "flow", "grad", "confid", "salien", "anomal",
        "edge", "spec", "stft", "mel",
    ),
}  # fmt: skip
_FOR: Mapping[Kind, tuple[str, ...]] = {
    "class-scores": ("logit", "prob", "class", "cls", "softmax"),
    "tokens": ("logit", "prob", "class", "cls", "softmax", "token"),
    "embedding": ("embed", "latent", "represent"),
    "segmentation": ("seg", "semantic", "class"),
}
"""Words that outweigh those against: joint embeddings, probabilities of landmarks."""
_WEIGHTS = ("attention", "attn", "alignment", "weight", "gate")


def begins(name: str, *words: str) -> bool:
    """Return whether a word of a name begins with one of `words`.

    Words end at punctuation, a digit or a capital: "perspective" is not a spectrum.
    """
    parts = [part.lower() for part in _WORD.findall(name)]
    return any(part.startswith(word) for part in parts for word in words)


def is_against(kind: Kind, name: str) -> bool:
    """Return whether a name says that an output is not of a kind."""
    return _tells(name, _AGAINST[kind]) and not begins(name, *_FOR.get(kind, ()))


def is_decision(name: str) -> bool:
    """Return whether a name says that an output scores choices, and calls nothing a box."""
    return _tells(name, _DECISIONS) and "box" not in name.lower()


def is_weights(name: str) -> bool:
    """Return whether a name says that an output holds weights, which are of no kind."""
    return any(word in name.lower() for word in _WEIGHTS)


def _tells(name: str, words: tuple[str, ...]) -> bool:
    short = tuple(word for word in words if len(word) < _LONG)
    return any(w in name.lower() for w in words if len(w) >= _LONG) or begins(name, *short)


Inputs = Mapping[str, tuple[int, ...]]
"""Shape of every input of the model, on the first sample."""
Arrays = Sequence[NDArray[np.float64]]
"""One output of several samples."""
SUM_SLACK = 4e-3
"""Largest distance of a row's sum of probabilities, or of a length, from 1: BF16 rounds each number
by up to 2^-9 of itself."""
_STATES = ("cache", "state", "memory", "past", "present", "hn", "cn", "h0", "c0")
"""Words in the names of outputs that become inputs of the next call."""


METRIC_OF: dict[Kind, str] = {
    "boxes": "detection-f1",
    "cells": "cells",
    "class-scores": "top1",
    "embedding": "cosine",
    "flow": "epe",
    "heatmap": "peaks",
    "image": "psnr",
    "keypoints": "keypoints",
    "mask": "mask-iou",
    "segmentation": "mean-iou",
    "tokens": "token-agreement",
}
"""The built-in metric of each kind."""


def of_kind(
    kind: Kind,
    outputs: tuple[str, ...],
    evidence: tuple[Evidence, ...],
    boxes: Boxes | None = None,
    cells: Cells | None = None,
) -> Recognised:
    """Return recognised outputs, with the metric of their kind; see `Recognised`."""
    return Recognised(
        kind=kind,
        metric=METRIC_OF[kind],
        outputs=outputs,
        required=required(METRIC_OF[kind]),
        evidence=evidence,
        boxes=boxes,
        cells=cells,
    )


class Seen(NamedTuple):
    """One output of the examined samples.

    Attributes:
        name: Its name.
        arrays: Its values, f64; none of them empty or NaN, and not all equal.
        discrete: Whether it holds integers.
        inputs: Shapes of the inputs.
        beside: Shapes of the other outputs, by name, on the first sample.
    """

    name: str
    arrays: Arrays
    discrete: bool
    inputs: Inputs
    beside: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape on the first sample."""
        return self.arrays[0].shape

    def called(self, *words: str) -> bool:
        """Return whether a word of its name starts with one of these, as evidence for a kind."""
        return begins(self.name, *words)

    def mentions(self, *words: str) -> bool:
        """Return whether its name contains one of these words, as evidence against a kind."""
        return any(word in self.name.lower() for word in words)

    @property
    def is_state(self) -> bool:
        """Whether it looks like a state for the next call: by its name, and an input's shape.

        In such an output every number counts, and so does its scale.
        """
        return self.shape in self.inputs.values() and self.mentions(*_STATES)

    def shows(self, kind: Kind, *evidence: Evidence) -> Recognised:
        """Return it as recognised by a rule."""
        return of_kind(kind, (self.name,), evidence)

    def rows(self) -> list[NDArray[np.float64]]:
        """Return the arrays without trailing axes of length 1 beyond two, as `top1` reads them."""
        return [without_trailing_ones(array) for array in self.arrays]


def within_unit(array: NDArray[np.float64]) -> bool:
    """Return whether all values are within [0, 1]; NaN is not."""
    return bool(np.all((array >= 0) & (array <= 1)))


def whole_numbers(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether all values are whole numbers; NaN is not."""
    return all(bool(np.all(array == np.rint(array))) for array in arrays)


def sums_to_one(array: NDArray[np.float64], axis: int) -> bool:
    """Return whether all values are within [0, 1] and add up to 1 along an axis."""
    return within_unit(array) and bool(np.all(np.abs(array.sum(axis=axis) - 1) <= SUM_SLACK))


def is_share_of(logits: NDArray[np.float64], shares: NDArray[np.float64]) -> bool:
    """Return whether `shares` are the softmax of `logits` along the last axis, or its sigmoid."""
    if logits.shape != shares.shape or not np.isfinite(logits).all():
        return False
    both = (softmax(logits), sigmoid(logits))
    return any(bool(np.all(np.abs(one - shares) <= SUM_SLACK)) for one in both)


def image_sizes(inputs: Inputs, channels: tuple[int, ...] = (1, 3)) -> list[tuple[int, int]]:
    """Return height and width of inputs that are images with one of these numbers of channels."""
    sizes = []
    for shape in inputs.values():
        if len(shape) == 4 and shape[1] in channels:
            sizes.append((shape[2], shape[3]))
        elif len(shape) == 4 and shape[3] in channels:
            sizes.append((shape[1], shape[2]))
    return sizes


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
    floats: Mapping[str, Arrays], discrete: Mapping[str, Sequence[NDArray[Any]]], inputs: Inputs
) -> Recognised | None:
    """Return the first outputs that look like boxes, preferring those of a known layout.

    Those of no known layout have none: they are not recognised, and nothing else either.

    Args:
        floats: Float outputs of several samples, f64.
        discrete: Integer outputs.
        inputs: Shapes of the inputs; without them no layout that needs the image size is known.
    """
    floats = {n: [*map(shared, each)] for n, each in floats.items() if not is_against("boxes", n)}
    several = (*_in_heads(floats, inputs), *_in_several(floats, discrete, inputs))
    candidates = [*_in_one(floats, inputs), *several]
    return min(candidates, key=lambda one: one.boxes is None, default=None)


def _in_one(floats: Mapping[str, Arrays], inputs: Inputs) -> Iterator[Recognised]:
    for name, arrays in floats.items():
        if final := _final(name, arrays, inputs):
            evidence: tuple[Evidence, ...] = ("joined-with-scores", "whole-classes", *final[1])
            yield of_kind("boxes", (name,), evidence, final[0])
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
    floats: Mapping[str, Arrays], discrete: Mapping[str, Sequence[NDArray[Any]]], inputs: Inputs
) -> Iterator[Recognised]:
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


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the correlation of two vectors; 0 if one is constant or not finite."""
    varied = all(np.isfinite(each).all() and np.ptp(each) for each in (one, other))
    return float(np.corrcoef(one, other)[0, 1]) if varied else 0.0


def _is_raw(array: NDArray[np.float64]) -> bool:
    place = array[..., :4]
    return bool((place[..., 2:] < 0).any()) and float(np.abs(place).max()) <= RAW_LARGEST


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
        seen, fewest = rows[rows[:, score] >= VISIBLE], 1
        if not len(seen) and _is_ranked([array[..., score] for array in arrays]):
            seen, fewest = rows, FEWEST
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
    places: "Places",
    floats: Mapping[str, Arrays],
    discrete: Mapping[str, Sequence[NDArray[Any]]],
) -> Recognised:
    """Return boxes with one score each, and the output with their classes, if any."""
    boxes, scores = (floats[name] for name in names)
    seen = np.concatenate([b[s >= VISIBLE] for b, s in zip(boxes, scores, strict=True)])
    placed = places.shown(seen, fewest=FEWEST)
    if not (placed and all(map(within_unit, scores)) and not whole_numbers(scores)):
        return of_kind("boxes", names, ("beside-scores",), None)
    shapes = [array.shape for array in scores]
    classes = [
        n
        for n, arrays in (*discrete.items(), *floats.items())
        if n not in names and [array.shape for array in arrays] == shapes and whole_numbers(arrays)
    ]
    how = Boxes(layout="listed", corners=True, suppress=False)
    evidence: tuple[Evidence, ...] = ("beside-scores", *placed)
    if not classes:
        return of_kind("boxes", names, evidence, how)
    return of_kind("boxes", (*names, classes[0]), (*evidence, "whole-classes"), how)


def _per_class(
    boxes: Arrays, scores: Arrays, places: "Places"
) -> tuple[Boxes | None, tuple[Evidence, ...]]:
    """Return how to read boxes with a score for each class, and the evidence.

    Unless named, four fractions that are not corners may be anything, even probabilities.
    """
    rows = np.concatenate([array.reshape(-1, 4) for array in boxes])
    corners, sums = in_order(rows), rows.sum(axis=1)
    evidence = places.shown(rows, fewest=FEWEST)
    if not evidence and places.named and np.all(rows[:, 2:] >= 0):
        evidence = ("by-name",)
    if len(rows) < FEWEST or not evidence or np.all(np.abs(sums - 1) <= SUM_SLACK):
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


_NAMES = ("bbox", "dets", "detect")
_SAME_SIDES = 1e-3
"""Share of the largest side by which sides along one axis must differ."""
_BEYOND = 0.5
"""How far a box may reach beyond the image, as a share of its side."""
_REACH = 0.125
"""Least distance of the farthest corners from the origin, as a share of the image's sides."""
_SMALLEST = 32
"""Least height and width of an input image without a batch axis."""


@dataclass(frozen=True)
class Places:
    """The name of an output that may be boxes, and the shapes of the model's inputs."""

    name: str
    inputs: Inputs

    @property
    def named(self) -> bool:
        """Whether the name calls them boxes."""
        return begins(self.name, *_NAMES) or "box" in self.name.lower()

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
