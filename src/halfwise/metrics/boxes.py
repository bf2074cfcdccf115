"""Boxes read from outputs: decoded, filtered by score, and suppressed where the model does not.

- Score: at least 0.3, as in YOLOX's demo; others use 0.25 (YOLOv5), 0.5 or 0.7 (DETR). Lower scores
  are guesses that no application shows, mostly noise.
- Suppression: of two boxes of one class with an IoU above 0.45, the one with the lower score is
  dropped, as in YOLOX's and YOLOv5's demos.
- At most 300 boxes per image, by score (YOLOv5's `max_det`), from the best 1000 before suppression
  (torchvision's `topk_candidates`): this bounds the cost if every box has a score.

Non-finite boxes detect nothing. IoU does not depend on an axis's unit, so pixels and fractions of
the image give the same result. So do both orders of x and y.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.metrics.measures import Outputs
from halfwise.metrics.targets import Score, sigmoid, softmax
from halfwise.records import Boxes

SCORE = 0.3
"""Smallest score of a detection."""
STRIDES = (8, 16, 32)
"""Pixels between cells of a YOLO's three maps."""
FOUR_MAPS = (*STRIDES, 64)
"""Strides of models for 1280-pixel images."""
SAME_BOX = 0.5
"""IoU from which two boxes are of one object, as in PASCAL VOC and torchvision's detectors."""
SAME_SCORE = 0.1
"""How far the score of a matched box may move: thresholds of applications depend on it. As for
probabilities of classes (`targets`)."""
VISIBLE = 0.05
"""Smallest score of a box that may be one, as in torchvision's RetinaNet; others may be padding.
Average precision ranks these boxes of a candidate: the truth starts at `SCORE`, so none is lost
because its score is just below, and boxes ranked after all true ones change nothing."""
_MOST = 300
_CANDIDATES = 1000
"""Most boxes of an image, and most that are looked through, as in torchvision's RetinaNet."""
Floats = NDArray[np.float64]


class Detections(Struct, frozen=True):
    """Detections in one image, highest score first.

    Attributes:
        boxes: f64[n, 4], two opposite corners.
        scores: f64[n].
        classes: i64[n].
    """

    boxes: Floats
    scores: Floats
    classes: NDArray[np.int64]

    def __len__(self) -> int:
        """Return their number."""
        return len(self.scores)

    def select(self, chosen: NDArray[Any] | slice) -> "Detections":
        """Return the detections that an index or slice selects."""
        return Detections(self.boxes[chosen], self.scores[chosen], self.classes[chosen])


NOTHING = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
"""No detection."""


def detect(
    outputs: Outputs, names: Sequence[str], how: Boxes, least: float = SCORE
) -> Iterator[Detections]:
    """Yield the detections in each image of a sample.

    Args:
        outputs: The sample's outputs; shapes that `how` cannot read give no detections.
        names: The outputs with boxes, scores and classes, as far as `how` needs them.
        how: How to read them.
        least: Smallest score of a detection, > 0.
    """
    ranks = {"listed": (2, 1, 1), "final": (2, 1)}.get(how.layout, (2,) * len(names))
    arrays = (_by_image(shared(outputs[n]), rank) for n, rank in zip(names, ranks, strict=False))
    for parts in zip(*arrays, strict=False):
        # A comparison with NaN is false, so a NaN box detects nothing.
        with np.errstate(invalid="ignore", over="ignore"):
            detected = _ordered(_READ[how.layout](parts, how, least), least)
        yield _suppressed(detected) if how.suppress else detected.select(slice(_MOST))


def shared(array: NDArray[Any]) -> NDArray[Any]:
    """Return boxes [B, N, 1, 4] that all classes share, as BatchedNMS_TRT reads them, as [B, N, 4].

    Other arrays are returned as they are.
    """
    return array[:, :, 0] if array.ndim == 4 and array.shape[2:] == (1, 4) else array


def overlaps(boxes: Floats, others: Floats) -> Floats:
    """Return the IoU f64[n, m] of each of f64[n, 4] with each of f64[m, 4]; 0 without an area."""
    corner = np.maximum(boxes[:, None, :2], others[None, :, :2])
    opposite = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    common = np.clip(opposite - corner, 0, None).prod(axis=2)
    union = _areas(boxes)[:, None] + _areas(others)[None] - common
    shares: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares


def cells(image: tuple[int, int], all_strides: Sequence[int] = STRIDES) -> tuple[Floats, Floats]:
    """Return the cells of YOLO's maps: column and row f64[cells, 2], and stride f64[cells, 1].

    Args:
        image: Height and width in pixels.
        all_strides: Pixels between cells of each map.
    """
    places, strides = [], []
    for stride in all_strides:
        height, width = image[0] // stride, image[1] // stride
        row, column = np.divmod(np.arange(height * width), max(width, 1))
        places.append(np.stack([column, row], axis=1))
        strides.append(np.full((height * width, 1), stride))
    return np.concatenate(places).astype(np.float64), np.concatenate(strides).astype(np.float64)


def map_of(rows: int, image: tuple[int, int]) -> tuple[int, int] | None:
    """Return the stride and width of an image's map with `rows` cells; None if it has no such one.

    Cells that lie only partly in the image count, as padded convolutions compute them too.
    """
    sizes = ((s, -(-image[0] // s), -(-image[1] // s)) for s in FOUR_MAPS)
    return next(((s, width) for s, height, width in sizes if height * width == rows), None)


def corners_of(boxes: Floats) -> Floats:
    """Return the corners of boxes f64[..., 4] given as centre, width and height."""
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def _areas(boxes: Floats) -> Floats:
    return np.asarray(np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1))


def _by_image(array: NDArray[Any], rank: int) -> Floats:
    """Return [images, *part], a part having `rank` axes; no images if the array has fewer axes."""
    cut = array.ndim - rank
    if cut < 0:
        return np.zeros((0,) * (rank + 1))
    return array.reshape(math.prod(array.shape[:cut]), *array.shape[cut:]).astype(np.float64)


Parts = tuple[Floats, ...]


def _joined(parts: Parts, how: Boxes, least: float) -> Detections:
    """Read rows of a box, an objectness (1 if transposed) and a score for each class."""
    (table,), first = parts, 5
    if how.layout == "transposed":
        table, first = table.T, 4
    places, strides = cells(how.image) if how.image else (np.zeros((len(table), 2)), 1.0)
    if table.shape[1] <= first or len(table) != len(places):
        return NOTHING
    boxes, objectness = table[:, :4], table[:, 4:first].prod(axis=1)
    if how.layout == "raw":
        centres, sizes = boxes[:, :2] + places, np.exp(boxes[:, 2:])
        boxes = np.concatenate([centres * strides, sizes * strides], axis=1)
    some = objectness >= least
    return _best(_corners(boxes[some], how), objectness[some, None] * table[some, first:])


def _final(parts: Parts, how: Boxes, least: float) -> Detections:
    rows, *classes = parts
    assert how.columns is not None
    box, score, kind = how.columns
    if rows.shape[1] <= max(box + 3, score, kind or 0):
        return NOTHING
    classes += [] if kind is None else [rows[:, kind]]
    return _listed((rows[:, box : box + 4], rows[:, score], *classes), how, least)


def _listed(parts: Parts, how: Boxes, _least: float) -> Detections:
    boxes, scores, *classes = parts
    if boxes.shape != (len(scores), 4) or any(len(part) != len(scores) for part in classes):
        return NOTHING
    kinds = _whole(classes[0]) if classes else np.zeros(len(scores), np.int64)
    return Detections(_corners(boxes, how), scores, kinds)


def _per_class(parts: Parts, how: Boxes, _least: float) -> Detections:
    boxes, scores = parts
    if boxes.shape != (len(scores), 4):
        return NOTHING
    if how.activation == "sigmoid":
        scores = sigmoid(scores)
    elif how.activation == "softmax":
        scores = softmax(scores)
    if how.background is not None:
        scores = scores[:, 1:] if how.background == 0 else scores[:, :-1]
    return _best(_corners(boxes, how), scores)


def _heads(parts: Parts, how: Boxes, _least: float) -> Detections:
    """Read distances to four sides, in strides, as means of distributions.

    As in "Generalized Focal Loss" (Li et al. 2020), which NanoDet and PicoDet use.
    """
    assert how.image is not None
    boxes, scores = list[Floats](), parts[::2]
    for rows, bins in zip(scores, parts[1::2], strict=True):
        found = map_of(len(rows), how.image)
        if found is None or len(bins) != len(rows) or not bins.size or bins.shape[1] % 4:
            return NOTHING
        stride, width = found
        shares = softmax(bins.reshape(len(rows), 4, -1))
        sides = stride * (shares @ np.arange(shares.shape[-1]))
        row, column = np.divmod(np.arange(len(rows)), width)
        centres = stride * (np.stack([column, row], axis=1) + 0.5)
        boxes.append(np.concatenate([centres - sides[:, :2], centres + sides[:, 2:]], axis=1))
    if len({rows.shape[1] for rows in scores}) > 1:
        return NOTHING
    return _best(np.concatenate(boxes), np.concatenate(scores))


_READ = {
    "heads": _heads,
    "raw": _joined,
    "joined": _joined,
    "transposed": _joined,
    "final": _final,
    "listed": _listed,
    "per-class": _per_class,
}


def _corners(boxes: Floats, how: Boxes) -> Floats:
    return boxes if how.corners else corners_of(boxes)


def _best(boxes: Floats, probabilities: Floats) -> Detections:
    """Return each box with its most probable class; if one is NaN, so is the score."""
    classes = probabilities.argmax(axis=1)
    return Detections(boxes, probabilities.max(axis=1), classes.astype(np.int64))


def _whole(classes: Floats) -> NDArray[np.int64]:
    # A class number that is NaN matches no class.
    valid = np.abs(classes) < 2**31
    return np.where(valid, np.rint(np.where(valid, classes, 0)), -1).astype(np.int64)


def _ordered(detected: Detections, least: float) -> Detections:
    """Return those with enough score and finite corners, by score, then class and position."""
    detected = detected.select((detected.scores >= least) & np.isfinite(detected.boxes).all(axis=1))
    return detected.select(np.lexsort((*detected.boxes.T, detected.classes, -detected.scores)))


def _suppressed(detected: Detections) -> Detections:
    kept: list[int] = []
    rest = np.arange(min(len(detected), _CANDIDATES))
    while rest.size and len(kept) < _MOST:
        best, rest = rest[0], rest[1:]
        kept.append(int(best))
        shares = overlaps(detected.boxes[best : best + 1], detected.boxes[rest])[0]
        rest = rest[(shares <= SAME_BOX) | (detected.classes[rest] != detected.classes[best])]
    return detected.select(np.array(kept, np.int64))


_IOUS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0, 1, 101)


def f1(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], names: Sequence[str], how: Boxes
) -> float:
    """Return the F1 of the candidate's boxes, pooled over all images, in [0, 1].

    2 · found / (boxes of the reference + boxes of the candidate), matched at an IoU of 0.5, with
    scores within 0.1; 1 if neither has any. NaN and other shapes detect nothing.

    Args:
        reference: Outputs of each sample.
        candidate: Likewise.
        names: Outputs with the boxes; see `detect`.
        how: How to read them.
    """
    matched = boxes = detected = 0
    for truth, guess in _images(reference, candidate, names, how):
        detected += len(truth)
        matched += int(_matches(truth, guess, np.array([SAME_BOX]), SAME_SCORE).sum())
        boxes += len(truth) + len(guess)
    return Score(2 * matched / boxes if boxes else 1.0, detected)


_SURE = SCORE + SAME_SCORE
"""Smallest score of a box that no rounding brings below `SCORE`."""
_FEWEST = 4
"""Fewest boxes of a class or size that are no chance."""


def shares(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], names: Sequence[str], how: Boxes
) -> list[float]:
    """Return the shares of sure boxes that the other side has, of images, classes and sizes.

    One box is chance: of several, it may be missing. Shares are of the reference's boxes, and of
    each image also of the candidate's. Sizes are areas within a factor of 4. Classes and sizes with
    fewer than 4 boxes are left out; arguments as for `f1`.
    """
    of_image, of_kind = list[list[bool]](), dict[tuple[str, int], list[bool]]()
    for truth, guess in _images(reference, candidate, names, how):
        for ours, theirs in ((truth, guess), (guess, truth)):
            # Matched the other way round, so that each of ours is told.
            hits = _matches(theirs, ours, np.array([SAME_BOX]), SAME_SCORE)[0]
            sure = ours.scores >= _SURE
            of_image.append(hits[sure].tolist())
            if ours is truth:
                with np.errstate(divide="ignore"):
                    sizes = np.floor(np.log2(_areas(ours.boxes)) / 2)
                for kind, size, hit in zip(
                    ours.classes[sure], sizes[sure], hits[sure], strict=True
                ):
                    of_kind.setdefault(("class", int(kind)), []).append(bool(hit))
                    if np.isfinite(size):
                        of_kind.setdefault(("size", int(size)), []).append(bool(hit))
    groups = [*filter(None, of_image), *(h for h in of_kind.values() if len(h) >= _FEWEST)]
    return [min(1.0, (sum(h) + (len(h) > 1)) / len(h)) for h in groups]


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
    for truth, guess in _images(reference, candidate, names, how, VISIBLE):
        truths.append(truth.classes)
        scores.append(guess.scores)
        classes.append(guess.classes)
        hits.append(_matches(truth, guess, _IOUS))
    every_class = np.concatenate(truths) if truths else NOTHING.classes
    present, counts = np.unique(every_class, return_counts=True)
    if not present.size:
        return Score(1.0, 0)
    kinds, every, right = np.concatenate(classes), np.concatenate(scores), np.concatenate(hits, 1)
    precisions = [
        _average_precision(every[kinds == kind], hit[kinds == kind], int(total))
        for kind, total in zip(present, counts, strict=True)
        for hit in right
    ]
    return Score(float(np.mean(precisions)), every_class.size)


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
        guess = detect(outputs, names, how, least)
        yield from zip_longest(truth, guess, fillvalue=NOTHING)


def _matches(
    truth: Detections, guess: Detections, ious: Floats, near: float = math.inf
) -> NDArray[np.bool_]:
    """Return whether each found box matches a true one, with scores that near: [IoUs, boxes]."""
    hits = np.zeros((len(ious), len(guess)), bool)
    if not len(truth):
        return hits
    shares = overlaps(guess.boxes, truth.boxes)
    shares[guess.classes[:, None] != truth.classes] = 0
    shares[np.abs(guess.scores[:, None] - truth.scores) > near] = 0
    open_ones = np.ones((len(ious), len(truth)), bool)
    each = np.arange(len(ious))
    for box in range(len(guess)):
        fits = np.where(open_ones & (shares[box] >= ious[:, None]), shares[box], 0)
        nearest = fits.argmax(axis=1)
        hits[:, box] = fits[each, nearest] > 0
        open_ones[each, nearest] &= ~hits[:, box]
    return hits


def _average_precision(scores: Floats, hits: NDArray[np.bool_], total: int) -> float:
    order = np.lexsort((hits, -scores))
    right = np.cumsum(hits[order])
    precision = right / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    # One extra entry: a recall that is never reached has a precision of 0.
    reached = np.searchsorted(right / total, _RECALLS, side="left")
    return float(np.append(best, 0.0)[reached].mean())
