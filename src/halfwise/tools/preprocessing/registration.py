"""Find where one image lies in another, and what that says about how both were made.

Fits a factor and an offset per axis by coarse-to-fine Gauss-Newton on the brightness difference, as
Lucas and Kanade 1981 ("An iterative image registration technique"), with free gain and offset.
Starts from the best of a grid of factors on thumbnails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform, gaussian_filter

from halfwise.tools.preprocessing.photometry import photometry, step_of

Array = NDArray[np.float64]

_THUMBNAIL = 40
_BLURS = (6.0, 3.0, 1.5, 0.7)
_STEPS = 12
_CENTRED = (0.5, 0.5625, 0.667, 0.75, 0.8, 0.875, 0.9375, 1.0, 1.067, 1.143, 1.25, 1.333, 1.5, 2.0)
_FEWEST_PIXELS = 0.2


@dataclass(frozen=True)
class Placement:
    """Where pixels of an image lie in a source: (row, column) ↦ start + step · (row, column).

    Attributes:
        step: Source pixels per pixel, (rows, columns).
        start: Position of pixel (0, 0) in the source.
        correlation: Correlation where the two overlap, in [−1, 1].
    """

    step: tuple[float, float]
    start: tuple[float, float]
    correlation: float


def register(source: Array, image: Array) -> Placement:
    """Return where `image` lies in `source`.

    Args:
        source: f64[h, w], at most a few times the image's size in each direction.
        image: f64[h', w'], part of the source at half to twice the scale that fills the image;
            brightness may differ by gain and offset.
    """
    reduced, factor = _reduce(source, image.shape)
    begin = _coarse(reduced, image)
    step, middle = begin
    for blur in _BLURS:
        step, middle = _refine(reduced, image, step, middle, blur)
    correlation = _correlate(*_linear(reduced, image.shape, step, middle), image)
    half = [(n - 1) / 2 for n in image.shape]
    start = middle - step * np.array(half)
    # Pixel centres of a reduced source lie at factor · (i + 1/2) − 1/2.
    start = factor * (start + 0.5) - 0.5
    step = step * factor
    return Placement(
        (float(step[0]), float(step[1])), (float(start[0]), float(start[1])), correlation
    )


def sampled(
    source: Array, shape: tuple[int, ...], place: Placement
) -> tuple[Array, NDArray[np.bool_]]:
    """Return `source` sampled at each pixel's position, and which positions lie inside it.

    Args:
        source: f64[h, w].
        shape: Rows and columns of the image.
        place: Where the image lies.
    """
    step = np.array(place.step)
    middle = np.array(place.start) + step * (np.array(shape) - 1) / 2
    return _linear(source, shape, step, middle)


def _reduce(source: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the source as block means, at most twice the image's size."""
    blocks = [
        max(1, n // (2 * m)) if n >= 3 * m else 1 for n, m in zip(source.shape, shape, strict=True)
    ]
    rows, columns = (n // k for n, k in zip(source.shape, blocks, strict=True))
    cut = source[: rows * blocks[0], : columns * blocks[1]]
    means = cut.reshape(rows, blocks[0], columns, blocks[1]).mean(axis=(1, 3))
    return means, np.array(blocks, np.float64)


def _coarse(source: Array, image: Array) -> tuple[Array, Array]:
    small_shape = (min(_THUMBNAIL, image.shape[0]), min(_THUMBNAIL, image.shape[1]))
    ratio = np.array(image.shape) / np.array(small_shape)
    fill = np.array(source.shape) / np.array(image.shape)
    smooth = gaussian_filter(source, tuple(0.5 * fill * ratio), mode="nearest")
    small = gaussian_filter(image, tuple(0.5 * ratio), mode="nearest")
    thumbnail, _ = _linear(small, small_shape, ratio, (np.array(image.shape) - 1) / 2)
    middle = (np.array(source.shape) - 1) / 2
    best = (-2.0, fill, middle)
    for middle_now, steps in _starts(fill, middle, np.array(image.shape)):
        taken, inside = _linear(smooth, small_shape, steps * ratio, middle_now)
        score = _correlate(taken, inside, thumbnail) * inside.mean() ** 0.25
        if score > best[0]:
            best = (score, steps, middle_now)
    return best[1], best[2]


def _starts(fill: Array, middle: Array, shape: Array) -> list[tuple[Array, Array]]:
    """Return start values (middle, step): factors around the middle, and equal factors off it."""
    grid = [(middle, fill * np.array([r, c])) for r in _CENTRED for c in _CENTRED]
    grid += [(middle, np.full(2, fill[axis] * r)) for axis in (0, 1) for r in _CENTRED]
    for even in {1.0, *map(float, fill)}:
        room = np.abs(fill - even) * shape / 2
        moves = [[0.0, *(m * r for m in (-1, -0.5, 0.5, 1))] if r else [0.0] for r in room]
        grid += [
            (middle + np.array([down, along]), np.full(2, even))
            for down in moves[0]
            for along in moves[1]
        ]
        grid += [(middle + m * 0.1 * shape, np.full(2, even)) for m in (-1, -0.5, 0.5, 1)]
    return grid


def _refine(
    source: Array, image: Array, step: Array, middle: Array, blur: float
) -> tuple[Array, Array]:
    smooth = gaussian_filter(source, tuple(blur * step), mode="nearest")
    target = gaussian_filter(image, blur, mode="nearest")
    rows, columns = np.indices(image.shape, dtype=np.float64)
    rows -= (image.shape[0] - 1) / 2
    columns -= (image.shape[1] - 1) / 2
    for _ in range(_STEPS):
        taken, inside = _linear(smooth, image.shape, step, middle)
        if inside.mean() < _FEWEST_PIXELS:
            break
        down, along = np.gradient(taken)
        down, along = down / step[0], along / step[1]
        terms = [down * rows, along * columns, down, along, taken, np.ones_like(taken)]
        matrix = np.stack([term[inside] for term in terms])
        wanted = target[inside]
        gain, offset = np.linalg.lstsq(matrix[4:].T, wanted, rcond=None)[0]
        if abs(gain) < 1e-12:
            break
        matrix[:4] *= gain
        left = wanted - gain * matrix[4] - offset
        change = np.linalg.lstsq(matrix @ matrix.T, matrix @ left, rcond=None)[0]
        limit = 0.1 * step
        step = step + np.clip(change[:2], -limit / 5, limit / 5)
        middle = middle + np.clip(change[2:4], -4 * blur * step, 4 * blur * step)
        if np.abs(change[2:4]).max() < 1e-4 and np.abs(change[:2]).max() < 1e-6:
            break
    return step, middle


def _linear(
    source: Array, shape: tuple[int, ...], step: Array, middle: Array
) -> tuple[Array, NDArray[np.bool_]]:
    """Return bilinear samples of the source at `shape` places around `middle`; which lie inside."""
    start = middle - step * (np.array(shape) - 1) / 2
    places = [start[axis] + step[axis] * np.arange(shape[axis]) for axis in (0, 1)]
    rows, columns = (
        (p > -0.51) & (p < n - 0.49) for p, n in zip(places, source.shape, strict=True)
    )
    taken: Array = affine_transform(source, step, start, shape, order=1, mode="nearest")
    return taken, rows[:, None] & columns


def _correlate(taken: Array, inside: NDArray[np.bool_], image: Array) -> float:
    if inside.mean() < _FEWEST_PIXELS:
        return -1.0
    a, b = taken[inside], image[inside]
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else 0.0


Kind = Literal["same", "crop", "half-pixel", "align-corners", "size", "fit", "unlike"]

_GAP = 1.3
"""Levels two roundings may differ by, with some room for ranges below 255."""
_FEWEST = 0.05
_FEWEST_CORRELATED = 0.7
_STILL = 0.06
"""Shift in pixels that counts as none: registration across kernels is off by up to 0.03."""
_STRETCH = 0.15
_WHOLE = 0.12
_MOST_HALF = 0.8
_MOST_STRETCH = 2.5
BLUR = 2.5
"""Blur in pixels that equalises the contrast of different kernels."""


@dataclass(frozen=True)
class Alignment:
    """How B's images lie in A's.

    Attributes:
        kind: "same" pixel on pixel, "crop" shifted by whole pixels, "half-pixel" by a fraction,
            "align-corners" stretched about the centre by a pixel or two, "size" the same view at
            another size, "fit" another part or other proportions, "unlike" another scene.
        places: Placement of each pair; exact for "same" and "crop".
        exact: Whether the images fit pixel on pixel, up to rounding.
    """

    kind: Kind
    places: tuple[Placement, ...]
    exact: bool = False

    @property
    def shift(self) -> tuple[int, int]:
        """A crop's shift in whole pixels, down and right."""
        row, column = np.median([place.start for place in self.places], axis=0)
        return round(float(row)), round(float(column))

    @property
    def common(self) -> Placement | None:
        """The common placement; None unless all samples agree to a quarter of a pixel."""
        starts = np.array([place.start for place in self.places])
        steps = np.array([place.step for place in self.places])
        if np.ptp(starts, axis=0).max() > 0.25 or np.ptp(steps, axis=0).max() > 2e-3:
            return None
        (row, column), (down, along) = np.median(starts, axis=0), np.median(steps, axis=0)
        return Placement((float(down), float(along)), (float(row), float(column)), 1.0)


def align(a: Sequence[Array], b: Sequence[Array]) -> Alignment:
    """Return how B's images lie in A's.

    Args:
        a: f64[c, h, w] each, without frames, turned like B.
        b: f64[c', h', w'] each, equally many; sizes may differ.
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
    """Return the residual after gain and offset, in levels of 255, for 999 of 1000 pixels."""
    # One by one: each image may have its own normalisation.
    return max(_gap_of(x, y) for x, y in zip(a, b, strict=True))


def _gap_of(a: Array, b: Array) -> float:
    fit = photometry([a], [b])
    mapped, source = fit(a), a[list(fit.channels)]
    gaps = []
    for x, y, made in zip(source, b, mapped, strict=True):
        # Clipped values say nothing.
        inside = (y > y.min()) & (y < y.max()) & (x > x.min()) & (x < x.max())
        if inside.mean() >= _FEWEST:
            gap = float(np.percentile(np.abs(made - y)[inside], 99.9))
            gaps.append(gap / (step_of(y.ravel()) or float(np.ptp(y)) / 255))
    return max(gaps, default=0.0)


def grey(image: Array) -> Array:
    """Return the mean of all channels, each scaled to mean 0 and deviation 1; f64[h, w]."""
    spread = image.std(axis=(1, 2), keepdims=True)
    level: Array = (image - image.mean(axis=(1, 2), keepdims=True)) / np.where(spread, spread, 1)
    mean: Array = level.mean(axis=0)
    return mean


def pairs(
    alignment: Alignment, a: Sequence[Array], b: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """Return what both show, with A's images resampled at B's pixels."""
    left, right = [], []
    for x, y, place in zip(a, b, alignment.places, strict=True):
        if alignment.kind == "same":
            left.append(x)
            right.append(y)
            continue
        planes = [sampled(plane, y.shape[1:], place) for plane in x]
        inside = planes[0][1]
        if not inside.any():
            # Not alike: the placement found lies outside the other image.
            height, width = np.minimum(x.shape[1:], y.shape[1:])
            left.append(x[:, :height, :width])
            right.append(y[:, :height, :width])
            continue
        rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
        cut = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        left.append(np.stack([plane[cut] for plane, _ in planes]))
        right.append(y[(slice(None), *cut)])
    return left, right


def sharpness(left: Sequence[Array], right: Sequence[Array]) -> float:
    """Return B's fine detail over A's: the ratio of the power of second differences."""
    powers = [
        sum(np.mean(np.diff(grey(image), 2, axis=axis) ** 2) for image in images for axis in (0, 1))
        for images in (left, right)
    ]
    return float(powers[1] / powers[0]) if powers[0] else float("inf")


def _kind(
    places: Sequence[Placement],
    shapes_a: Sequence[tuple[int, ...]],
    shapes_b: Sequence[tuple[int, ...]],
) -> Kind:
    if np.median([place.correlation for place in places]) < _FEWEST_CORRELATED:
        return "unlike"
    starts = np.array([place.start for place in places])
    steps = np.array([place.step for place in places])
    sizes, half = np.array(shapes_a), (np.array(shapes_b) - 1) / 2
    # In B's pixels: the distance of the middles, and how far the factor moves the ends.
    shift = (starts + steps * half - (sizes - 1) / 2) / steps
    stretch = (steps / (sizes / np.array(shapes_b)) - 1) * half
    equal = (steps - 1) * half
    same_size = all(a == b for a, b in zip(shapes_a, shapes_b, strict=True))
    if _usual(equal) < 2 * _STRETCH and np.abs(equal).max() < _MOST_STRETCH:
        return _moved(shift, starts, same_size=same_size)
    if np.abs(stretch).max() > _MOST_STRETCH or np.abs(shift).max() > 1.5:
        return "fit"
    if not same_size:
        return "size"
    return "align-corners" if _usual(shift) < 2 * _STRETCH else "fit"


def _usual(deviations: Array) -> float:
    """Return the larger axis of the median over samples: one sample may have too few edges."""
    return float(np.median(np.abs(deviations), axis=0).max())


def _moved(shift: Array, starts: Array, *, same_size: bool) -> Kind:
    whole = _usual(starts - np.round(np.median(starts, axis=0))) < _WHOLE
    steady = np.ptp(starts, axis=0).max() < 4 * _WHOLE
    if same_size and _usual(shift) < _STILL:
        return "same"
    if whole and steady:
        return "crop" if np.round(np.median(starts, axis=0)).any() or not same_size else "same"
    return "half-pixel" if np.abs(shift).max() < _MOST_HALF and same_size else "fit"
