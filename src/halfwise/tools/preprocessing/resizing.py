"""Fits how a pipeline resizes, from raw images to what it made of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from halfwise.tools.preprocessing.alignment import BLUR, grey
from halfwise.tools.preprocessing.photometry import photometry
from halfwise.tools.preprocessing.registration import Placement, register, sampled
from halfwise.tools.preprocessing.resampling import (
    CONVENTIONS,
    METHODS,
    Convention,
    Method,
    weights,
)

Array = NDArray[np.float64]

_NEAR = 0.6
"""Pixels by which a placement may miss a hypothesis; nearest neighbour misses by half a pixel."""
_MOST_PER_AXIS = 3
_FIT = 0.9
"""Correlation below which a raw image and a sample are not the same scene."""


@dataclass(frozen=True)
class Axis:
    """How one axis of a raw image becomes one of the result.

    Attributes:
        raw: Its length.
        cut: Where a crop before the resizing begins.
        kept: The length of that crop; `raw` without one.
        resized: Its length after the resizing.
        start: Where a crop after the resizing begins.
        length: The length of that crop; `resized` without one.
    """

    raw: int
    cut: int
    kept: int
    resized: int
    start: int
    length: int

    def matrix(self, method: Method) -> csr_array:
        """Return the weights of this axis, f64[length, kept]; few of a photo's are not zero."""
        whole = weights(self.kept, self.resized, method)
        places = np.clip(np.arange(self.start, self.start + self.length), 0, self.resized - 1)
        return csr_array(whole[places])


@dataclass(frozen=True)
class Resizing:
    """How a pipeline resizes.

    Attributes:
        method: Kernel, antialiasing and convention.
        axes: (rows, columns) of each sample.
        error: Root mean square of what it does not explain, in raw levels.
        errors: The same for every method, with its own best geometry.
    """

    method: Method
    axes: tuple[tuple[Axis, Axis], ...]
    error: float
    errors: dict[Method, float]

    def __str__(self) -> str:
        """Say it for the first sample."""
        rows, columns = self.axes[0]
        said = []
        if (rows.kept, columns.kept) != (rows.raw, columns.raw):
            said.append(
                f"crop {rows.kept}×{columns.kept} at row {rows.cut}, column {columns.cut} of "
                f"{rows.raw}×{columns.raw}"
            )
        said.append(
            f"resize {rows.kept}×{columns.kept} to {rows.resized}×{columns.resized}: {self.method}"
        )
        if (rows.length, columns.length) != (rows.resized, columns.resized):
            said.append(
                f"crop {rows.length}×{columns.length} at row {rows.start}, column {columns.start}"
            )
        return "; ".join(said)


def fit_resizing(raws: Sequence[Array], images: Sequence[Array]) -> Resizing | None:
    """Return how raw images were resized to `images`, None where they do not show the same.

    Where the image lies in the raw one, by registration, leaves few hypotheses of size, crop and
    convention; each is tried with every kernel, and the one with the smallest error is taken.

    Args:
        raws: f64[c, h, w] each, from 0 to 255, turned as the images are.
        images: f64[c', h', w'] each, as many, without frames, in any unit and channel order.
    """
    placements = [register(grey(raw), grey(image)) for raw, image in zip(raws, images, strict=True)]
    if min(place.correlation for place in placements) < _FIT:
        return None
    views = [
        _view(raw, image, place) for raw, image, place in zip(raws, images, placements, strict=True)
    ]
    best: dict[Method, tuple[float, list[tuple[Axis, Axis]]]] = {}
    for convention in CONVENTIONS:
        methods = [method for method in METHODS if method.convention == convention]
        axes = [
            list(_pairs(raw.shape[1:], image.shape[1:], place, convention))
            for raw, image, place in zip(raws, images, placements, strict=True)
        ]
        if not all(axes):
            continue
        chosen = [_nearest(pairs, view, methods) for pairs, view in zip(axes, views, strict=True)]
        for method in methods:
            each = [_error(*view, pair, method) for view, pair in zip(views, chosen, strict=True)]
            best[method] = (float(np.sqrt(np.mean(np.square(each)))), chosen)
    if not best:
        return None
    method = min(best, key=lambda m: best[m][0])
    error, found = best[method]
    return Resizing(method, tuple(found), error, {m: e for m, (e, _) in best.items()})


def _nearest(
    pairs: Sequence[tuple[Axis, Axis]], view: tuple[Array, Array], methods: Sequence[Method]
) -> tuple[Axis, Axis]:
    """Return the size and place that fit best; smooth kernels hardly differ in that."""
    tried = (methods[0], *(method for method in methods if method.kernel == "nearest"))
    return min(pairs, key=lambda pair: min(_error(*view, pair, method) for method in tried))


def _view(raw: Array, image: Array, place: Placement) -> tuple[Array, Array]:
    """Return one channel of an image and the raw one it was made of: green is the finest."""
    whole = np.stack([sampled(plane, image.shape[1:], place)[0] for plane in raw])
    if len(raw) != len(image):
        return raw.mean(axis=0), image.mean(axis=0)
    channels = photometry([whole], [image], BLUR).channels
    middle = len(image) // 2
    return raw[channels[middle]], image[middle]


def _pairs(
    raw: Sequence[int], image: Sequence[int], place: Placement, convention: Convention
) -> Iterator[tuple[Axis, Axis]]:
    by_axis = [
        list(_hypotheses(raw[axis], image[axis], place.step[axis], place.start[axis], convention))
        for axis in (0, 1)
    ]
    for rows in by_axis[0][:_MOST_PER_AXIS]:
        for columns in by_axis[1][:_MOST_PER_AXIS]:
            yield rows, columns


def _hypotheses(
    raw: int, length: int, step: float, start: float, convention: Convention
) -> list[Axis]:
    """Return what could have led to a placement, the nearest first."""
    shift = {"half-pixel": (step - 1) / 2, "asymmetric": 0.0, "align-corners": 0.0}[convention]
    target = (raw - 1) / step + 1 if convention == "align-corners" else raw / step
    found = []
    for resized in {length, *(round(target) + d for d in (-1, 0, 1))}:
        if resized < 1:
            continue
        offsets = {0, *(round((start - shift) / step) + d for d in (-1, 0, 1))}
        found += [
            Axis(raw, 0, raw, resized, offset, length)
            for offset in sorted(offsets)
            if 0 <= offset <= resized - length
        ]
    if convention == "half-pixel":
        cut, kept = round(start - shift), round(step * length)
        cut = max(cut, 0)
        kept = min(kept, raw - cut)
        if kept < raw:
            found.append(Axis(raw, cut, kept, length, 0, length))
    missed = [(_miss(axis, step, start, convention), axis) for axis in found]
    near = sorted((m for m in missed if m[0] < _NEAR), key=lambda m: m[0])
    return [axis for _, axis in near]


def _miss(axis: Axis, step: float, start: float, convention: Convention) -> float:
    """Return how far the ends of an axis are from where they were found, in its own pixels."""
    if convention == "align-corners":
        factor, first = (axis.kept - 1) / max(axis.resized - 1, 1), 0.0
    else:
        factor = axis.kept / axis.resized
        first = (factor - 1) / 2 if convention == "half-pixel" else 0.0
    begin = axis.cut + first + factor * axis.start
    ends = np.array([0, axis.length - 1])
    return float(np.abs(begin + factor * ends - start - step * ends).max() / step)


def _error(raw: Array, image: Array, pair: tuple[Axis, Axis], method: Method) -> float:
    """Return the error of a method on one channel, in raw levels."""
    rows, columns = pair
    kept = raw[rows.cut : rows.cut + rows.kept, columns.cut : columns.cut + columns.kept]
    made: Array = (columns.matrix(method) @ (rows.matrix(method) @ kept).T).T
    # Pipelines on bytes clip what a kernel adds at edges; others do not.
    return min(_left(made, image), _left(np.clip(made, 0, 255), image))


def _left(made: Array, image: Array) -> float:
    x, y = made - made.mean(), image - image.mean()
    gain = float((x * y).mean() / ((x * x).mean() or 1.0)) or 1.0
    return float(np.sqrt(np.mean((y / gain - x) ** 2)))


def differ(a: Resizing, b: Resizing, ratio: float = 1.25, least: float = 0.1) -> bool:
    """Return whether the methods are really two: one's explains the other clearly worse.

    Args:
        a: One pipeline.
        b: The other.
        ratio: How many times larger the error has to become; ties are below 1.05.
        least: By how many raw levels at least.
    """
    if a.method == b.method:
        return False
    for own, other in ((a, b), (b, a)):
        crossed = own.errors.get(other.method, np.inf)
        if crossed > ratio * own.error and crossed > own.error + least:
            return True
    return False
