"""Keypoints, as SuperPoint and XFeat find them: a set, whose number may vary.

A threshold or a ranking decides which places are keypoints, so their number and order change with
the last digits of scores. Two sets agree if they have nearly the same points: what reads them
matches them by their descriptors, whatever their order.

- A pair is nearest to each other, at most 2 pixels apart: a quarter of SuperPoint's cell, and less
  than the 3 pixels from which HPatches counts a match as wrong.
- Its scores differ by at most 10 %, as heights in `peaks`.
- Its descriptors, if there are any, have a cosine of at least 0.98: those of other points have
  about 0, and matchers take one from 0.8 on (XFeat).
- Points count by their score, so that one at the threshold, that comes or goes, counts little.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.evidence import (
    SUM_SLACK,
    Arrays,
    Inputs,
    image_sizes,
    is_against,
    of_kind,
    whole_numbers,
)
from halfwise.metrics.measures import Outputs
from halfwise.metrics.slices import FEWEST
from halfwise.metrics.targets import Score
from halfwise.records import Evidence, Recognised

_APART = 2.0
"""Largest distance of a pair, in pixels."""
_CHANGE = 0.1
"""Largest change of a score, relative to the larger one."""
_COSINE = 0.98
"""Least cosine of the descriptors of a pair."""
_FEWEST_DIMENSIONS = 16
_REACH = 0.125
"""Least extent of points, as a share of the image's sides; coordinates in [0, 1] have less."""
_WHY: tuple[Evidence, ...] = ("within-image", "beside-scores")
_PART = 512
"""Points that are compared with all others at a time: 16 MiB for 4,096 others."""
Floats = NDArray[np.float64]


class Points(NamedTuple):
    """The keypoints of an image.

    Attributes:
        places: f64[n, 2], in pixels.
        scores: f64[n], ≥ 0.
        vectors: f64[n, d], their descriptors; d is 0 without any.
    """

    places: Floats
    scores: Floats
    vectors: Floats


def keypoints_in(
    floats: Mapping[str, Arrays], discrete: Mapping[str, Sequence[NDArray[Any]]], inputs: Inputs
) -> Recognised | None:
    """Return the outputs with places, scores and descriptors of keypoints, if there are any.

    Without descriptors, their number has to vary: otherwise they may be joints, in an order.

    Args:
        floats: Float outputs of several samples, f64.
        discrete: Integer outputs; places may be whole pixels.
        inputs: Shapes of the inputs; without an image nothing is recognised.
    """
    for name, places in {**floats, **discrete}.items():
        if is_against("keypoints", name) or not _are_places(places, inputs):
            continue
        shapes = [array.shape[:-1] for array in places]
        scores = (n for n, arrays in floats.items() if _are_scores(arrays, shapes))
        vectors = (n for n, arrays in floats.items() if n != name and _are_units(arrays, shapes))
        first, second = next(scores, None), next(vectors, None)
        if first is not None and second is not None:
            outputs, why = (name, first, second), (*_WHY, "unit-length")
            return of_kind("keypoints", outputs, why)
        if first is not None and len({shape[-1] for shape in shapes}) > 1:
            why = (*_WHY, "number-varies")
            return of_kind("keypoints", (name, first), why)
    return None


def similarity(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], names: Sequence[str]
) -> float:
    """Return the share of keypoints of both sides that are pairs, averaged over images, in [0, 1].

    Points count by their score. Images in which neither side has any are left out; 1 if all are. An
    image of the candidate that is not finite, or of shapes that do not fit, has no pair.

    Args:
        reference: Outputs of each sample.
        candidate: Likewise, with any number of points.
        names: The outputs with places, scores and perhaps descriptors.
    """
    by_rows, shares, count = _by_rows(reference, names), list[float](), 0
    for expected, outputs in zip(reference, candidate, strict=True):
        truth = list(_images(expected, names, by_rows=by_rows))
        found = list(_images(outputs, names, by_rows=by_rows))
        if len(found) != len(truth):
            found = [_NOTHING] * len(truth)
        for ours, theirs in zip(truth, found, strict=True):
            count += len(ours.scores)
            if len(ours.scores) or len(theirs.scores):
                shares.append(_alike(ours, theirs))
    return Score(fsum(shares) / len(shares) if shares else 1.0, count)


_NOTHING = Points(np.zeros((0, 2)), np.zeros(0), np.zeros((0, 0)))


def _are_places(arrays: Sequence[NDArray[Any]], inputs: Inputs) -> bool:
    """Return whether rows [*, n, 2] are different pixels of an input image, in either order."""
    if any(array.ndim not in (2, 3) or array.shape[-1] != 2 for array in arrays):
        return False
    rows = np.concatenate([array.reshape(-1, 2) for array in arrays]).astype(np.float64)
    each = [part for a in arrays for part in a.reshape(-1, *a.shape[-2:])]
    if len(rows) < FEWEST or any(len(np.unique(part, axis=0)) < len(part) for part in each):
        return False
    return any(
        bool((rows >= -1).all() and (rows <= far).all())
        and bool((np.ptp(rows, axis=0) >= np.maximum(_REACH * far, 2)).all())
        for size in image_sizes(inputs)
        for far in (np.array(size, float), np.array(size[::-1], float))
    )


def _are_scores(arrays: Arrays, shapes: Sequence[tuple[int, ...]]) -> bool:
    return (
        [array.shape for array in arrays] == list(shapes)
        and all(bool((array >= 0).all() and np.isfinite(array).all()) for array in arrays)
        and not whole_numbers(arrays)
    )


def _are_units(arrays: Arrays, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a vector of length 1 goes with each place, as a row or as a column."""
    if [array.ndim for array in arrays] != [len(shape) + 1 for shape in shapes]:
        return False
    for axis, other in ((-1, -2), (-2, -1)):
        fits = all(
            array.shape[other] == shape[-1]
            and array.shape[:-2] == shape[:-1]
            and array.shape[axis] == arrays[0].shape[axis] >= _FEWEST_DIMENSIONS
            for array, shape in zip(arrays, shapes, strict=True)
        )
        if fits:
            lengths = (np.linalg.norm(array, axis=axis) for array in arrays)
            return all(bool((np.abs(length - 1) <= SUM_SLACK).all()) for length in lengths)
    return False


def _by_rows(reference: Sequence[Outputs], names: Sequence[str]) -> bool:
    """Return whether descriptors are rows: their number may equal their length by chance."""
    places, _, *vectors = names
    return all(
        outputs[name].ndim > 1 and outputs[name].shape[-2] == outputs[places].shape[-2]
        for outputs in reference
        for name in vectors
    )


def _images(outputs: Outputs, names: Sequence[str], *, by_rows: bool) -> Iterator[Points]:
    """Yield the points of each image; none if the shapes do not fit."""
    places, scores, *some = (outputs[name] for name in names)
    vectors = some[0] if some else np.zeros((*scores.shape, 0))
    if places.ndim not in (2, 3) or vectors.ndim != places.ndim or scores.ndim != places.ndim - 1:
        return
    vectors = vectors if by_rows else np.moveaxis(vectors, -1, -2)
    if not places.shape[:-1] == scores.shape == vectors.shape[:-1] or places.shape[-1] != 2:
        return
    if places.ndim == 2:
        places, scores, vectors = places[None], scores[None], vectors[None]
    for parts in zip(places, scores, vectors, strict=True):
        yield Points(*(part.astype(np.float64) for part in parts))


def _alike(ours: Points, theirs: Points) -> float:
    """Return the share of two sets, not both empty, that are pairs; 0 if one is not finite."""
    finite = all(np.isfinite(part).all() for part in theirs)
    if not (finite and len(ours.scores) and len(theirs.scores)):
        return 0.0
    if ours.vectors.shape[1] != theirs.vectors.shape[1]:
        return 0.0
    nearest, distance = _nearest(ours.places, theirs.places)
    back, _ = _nearest(theirs.places, ours.places)
    score, vector = theirs.scores[nearest], theirs.vectors[nearest]
    # Of vectors of length 1, the square is 2 - 2 · cosine; another length is wrong as well.
    squares = ((ours.vectors - vector) ** 2).sum(axis=1)
    pairs = (
        (back[nearest] == np.arange(len(nearest)))
        & (distance <= _APART)
        & (np.abs(score - ours.scores) <= _CHANGE * np.maximum(score, ours.scores))
        & (squares <= 2 - 2 * _COSINE)
    )
    whole = ours.scores.sum() + theirs.scores.sum()
    return float((ours.scores + score)[pairs].sum() / whole) if whole > 0 else float(pairs.all())


def _nearest(places: Floats, others: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Return the index of the nearest of others f64[m, 2] for each of f64[n, 2], and how far."""
    found, far = [], []
    for start in range(0, len(places), _PART):
        part = places[start : start + _PART]
        squares = ((part[:, None] - others[None]) ** 2).sum(axis=2)
        found.append(squares.argmin(axis=1))
        far.append(np.sqrt(squares.min(axis=1)))
    return np.concatenate(found), np.concatenate(far)
