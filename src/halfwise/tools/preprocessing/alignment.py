"""What the places of two images of one scene say about how they were made."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.tools.preprocessing.photometry import photometry
from halfwise.tools.preprocessing.registration import Placement, register, sampled
from halfwise.tools.preprocessing.values import step_of

Array = NDArray[np.float64]
Kind = Literal["same", "crop", "half-pixel", "align-corners", "size", "fit", "unlike"]

_GAP = 1.3
"""Levels that two ways to round may leave, with some room for a range below 255."""
_FEWEST = 0.05
_FEWEST_CORRELATED = 0.7
_STILL = 0.06
"""Pixels of shift that are none: registration across kernels is off by up to 0.03."""
_STRETCH = 0.15
_WHOLE = 0.12
_MOST_HALF = 0.8
_MOST_STRETCH = 2.5
BLUR = 2.5
"""Pixels of blur under which images from different kernels have the same contrast."""


@dataclass(frozen=True)
class Alignment:
    """How B's images lie in A's.

    Attributes:
        kind: "same" is pixel on pixel, "crop" moved by whole pixels, "half-pixel" by a part of one,
            "align-corners" stretched about the middle by a pixel or two, "size" the same view in
            another size, "fit" another part or other proportions, "unlike" another scene.
        places: Of each pair; exact for "same" and "crop".
        exact: Whether the images fit pixel on pixel, up to rounding.
    """

    kind: Kind
    places: tuple[Placement, ...]
    exact: bool = False

    @property
    def shift(self) -> tuple[int, int]:
        """Whole pixels down and right of a crop."""
        row, column = np.median([place.start for place in self.places], axis=0)
        return round(float(row)), round(float(column))

    @property
    def common(self) -> Placement | None:
        """The place where all samples agree on one, to a quarter of a pixel."""
        starts = np.array([place.start for place in self.places])
        steps = np.array([place.step for place in self.places])
        if np.ptp(starts, axis=0).max() > 0.25 or np.ptp(steps, axis=0).max() > 2e-3:
            return None
        (row, column), (down, along) = np.median(starts, axis=0), np.median(steps, axis=0)
        return Placement((float(down), float(along)), (float(row), float(column)), 1.0)


def align(a: Sequence[Array], b: Sequence[Array]) -> Alignment:
    """Return how B's images lie in A's.

    Args:
        a: f64[c, h, w] each, without frames, turned as B.
        b: f64[c', h', w'] each, as many; the size may differ.
    """
    here = tuple(Placement((1.0, 1.0), (0.0, 0.0), 1.0) for _ in a)
    alike = all(x.shape[1:] == y.shape[1:] for x, y in zip(a, b, strict=True))
    if alike and _gap(a, b) < _GAP:
        return Alignment("same", here, exact=True)
    places = tuple(register(grey(x), grey(y)) for x, y in zip(a, b, strict=True))
    kind = _kind(places, [x.shape[1:] for x in a], [y.shape[1:] for y in b])
    found = Alignment(kind, here if kind == "same" else places)
    if kind == "crop":
        down, along = found.shift
        whole = Placement((1.0, 1.0), (float(down), float(along)), 1.0)
        found = Alignment("crop", tuple(whole for _ in a))
        left, right = pairs(found, a, b)
        found = Alignment("crop", found.places, _gap(left, right) < _GAP)
    return found


def _gap(a: Sequence[Array], b: Sequence[Array]) -> float:
    """Return what gain and offset leave between pixels, in levels of 255; of 999 in 1000."""
    # One by one, because each image may be normalised by numbers of its own.
    return max(_gap_of(x, y) for x, y in zip(a, b, strict=True))


def _gap_of(a: Array, b: Array) -> float:
    fit = photometry([a], [b])
    mapped, source = fit(a), a[list(fit.channels)]
    gaps = []
    for x, y, made in zip(source, b, mapped, strict=True):
        # What was cut off at an end of the range says nothing.
        inside = (y > y.min()) & (y < y.max()) & (x > x.min()) & (x < x.max())
        if inside.mean() >= _FEWEST:
            gap = float(np.percentile(np.abs(made - y)[inside], 99.9))
            gaps.append(gap / (step_of(y.ravel()) or float(np.ptp(y)) / 255))
    return max(gaps, default=0.0)


def grey(image: Array) -> Array:
    """Return the mean of all channels, each of mean 0 and deviation 1; f64[h, w]."""
    spread = image.std(axis=(1, 2), keepdims=True)
    level: Array = (image - image.mean(axis=(1, 2), keepdims=True)) / np.where(spread, spread, 1)
    mean: Array = level.mean(axis=0)
    return mean


def pairs(
    alignment: Alignment, a: Sequence[Array], b: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """Return what both show, A's images resampled in the place of B's pixels."""
    left, right = [], []
    for x, y, place in zip(a, b, alignment.places, strict=True):
        if alignment.kind == "same":
            left.append(x)
            right.append(y)
            continue
        planes = [sampled(plane, y.shape[1:], place) for plane in x]
        inside = planes[0][1]
        rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
        cut = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        left.append(np.stack([plane[cut] for plane, _ in planes]))
        right.append(y[(slice(None), *cut)])
    return left, right


def sharpness(left: Sequence[Array], right: Sequence[Array]) -> float:
    """Return how much more fine detail B has: power of second differences, B's over A's."""
    powers = []
    for images in (left, right):
        flat = [grey(image) for image in images]
        powers.append(
            sum(
                float(np.mean(np.diff(image, 2, axis=axis) ** 2))
                for image in flat
                for axis in (0, 1)
            )
        )
    return powers[1] / powers[0] if powers[0] else float("inf")


def _kind(
    places: Sequence[Placement],
    shapes_a: Sequence[tuple[int, ...]],
    shapes_b: Sequence[tuple[int, ...]],
) -> Kind:
    if np.median([place.correlation for place in places]) < _FEWEST_CORRELATED:
        return "unlike"
    shifts, stretches, even = [], [], []
    for place, source, shape in zip(places, shapes_a, shapes_b, strict=True):
        full = [n / m for n, m in zip(source, shape, strict=True)]
        half = [(m - 1) / 2 for m in shape]
        middle = [(n - 1) / 2 for n in source]
        shifts.append(
            [
                (s + p * h - c) / p
                for s, p, h, c in zip(place.start, place.step, half, middle, strict=True)
            ]
        )
        stretches.append([(p / f - 1) * h for p, f, h in zip(place.step, full, half, strict=True)])
        even.append([(p - 1) * h for p, h in zip(place.step, half, strict=True)])
    shift, stretch, equal = np.array(shifts), np.array(stretches), np.array(even)
    same_size = all(a == b for a, b in zip(shapes_a, shapes_b, strict=True))
    if _usual(equal) < 2 * _STRETCH and np.abs(equal).max() < _MOST_STRETCH:
        return _moved(shift, places, same_size=same_size)
    if np.abs(stretch).max() > _MOST_STRETCH or np.abs(shift).max() > 1.5:
        return "fit"
    if not same_size:
        return "size"
    return "align-corners" if _usual(shift) < 2 * _STRETCH else "fit"


def _usual(deviations: Array) -> float:
    """Return the larger of both axes, in the median of all samples: one of few edges is vague."""
    return float(np.median(np.abs(deviations), axis=0).max())


def _moved(shift: Array, places: Sequence[Placement], *, same_size: bool) -> Kind:
    starts = np.array([place.start for place in places])
    whole = _usual(starts - np.round(np.median(starts, axis=0))) < _WHOLE
    steady = np.ptp(starts, axis=0).max() < 4 * _WHOLE
    if same_size and _usual(shift) < _STILL:
        return "same"
    if whole and steady:
        return "crop" if np.round(np.median(starts, axis=0)).any() or not same_size else "same"
    return "half-pixel" if np.abs(shift).max() < _MOST_HALF and same_size else "fit"
