"""Where images lie: turns, frames, shifts and other fits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform, gaussian_filter

from halfwise.tools.preprocessing.changes import TURNS, Array, Change, run
from halfwise.wording import dimensions

Arrays = Sequence[NDArray[Any]]
Images = Sequence[Array]
Shift = tuple[int, int]

_SAME = 1e-5
"""Difference over the range of an image that a frame of one value may have."""
ROUNDED = 2.0
"""Levels of 255, or pixels of a size, that rounding explains: two roundings in another order."""
_THUMBNAIL = 24
_GAIN = 0.03
"""Gain in mean correlation required of a turn; photos gain 0.2 to 1."""
_BLUR = 2.5
"""Standard deviation of blurs in pixels."""
_ALIKE, _UNLIKE = 0.95, 0.3
"""Correlation of blurred images of the same view, and of images with little in common."""
FIT = "The image is fitted to the frame differently."


def turn_of(a: Images, b: Images) -> Change:
    """Return the turn from A to B with which thumbnails correlate best, mostly none."""
    small, target = ([_reduced(grey(x), _THUMBNAIL) for x in side] for side in (a, b))

    def likeness(turn: Change) -> float:
        turned = [run(turn.lines, x) for x in small]
        return correlation(turned, target) - _GAIN * bool(turn.lines)

    return max((Change(), *TURNS.values()), key=likeness)


def _reduced(image: Array, side: int) -> Array:
    """Return f64[side, side]: means of blocks, single pixels where there are fewer."""
    for axis, length in enumerate(image.shape):
        starts = (np.arange(side) * length / side).astype(int)
        counts = np.diff(np.append(starts, length)).clip(1)
        shape = (-1, 1) if axis == 0 else (1, -1)
        image = np.add.reduceat(image, starts, axis) / counts.reshape(shape)
    return image


def grey(image: Array) -> Array:
    """Return the mean of all channels, each scaled to mean 0 and deviation 1; f64[h, w]."""
    made: Array = np.mean([(x - x.mean()) / (x.std() or 1.0) for x in image], axis=0)
    return made


def correlation(a: Iterable[Array], b: Iterable[Array]) -> float:
    """Return the mean correlation in [0, 1] of pairs; one may be the negative of the other."""
    found = []
    for x, y in zip(a, b, strict=True):
        one, other = x - x.mean(), y - y.mean()
        size = float(np.linalg.norm(one) * np.linalg.norm(other))
        found.append(
            abs(float(np.vdot(one, other))) / size if size else float(one.any() == other.any())
        )
    return float(np.mean(found))


@dataclass(frozen=True)
class Framed:
    """Images within frames of one value.

    Attributes:
        shape: Of the first frame, rows and columns.
        boxes: Top, left, rows and columns of each image, i64[n, 4].
        contents: What is within, f64[c, rows, columns] each.
        value: Of the frames by channel, f64[c]; None without frames.
    """

    shape: tuple[int, ...]
    boxes: NDArray[np.int64]
    contents: Images
    value: Array | None = None


def _framed(images: Images) -> Framed:
    """Return images without the border that has one value in several; others are content."""
    shape = images[0].shape[1:]
    whole = [(0, 0, *image.shape[1:]) for image in images]
    for image, corner in product(images, (0, -1)):
        value = image[:, corner, corner]
        if _box(image, value)[2:] == image.shape[1:]:
            continue
        boxes = [_box(each, value) for each in images]
        if sum(one != other for one, other in zip(boxes, whole, strict=True)) >= min(2, len(boxes)):
            contents = [
                x[:, top : top + rows, left : left + columns]
                for x, (top, left, rows, columns) in zip(images, boxes, strict=True)
            ]
            return Framed(shape, np.array(boxes), contents, value)
    return Framed(shape, np.array(whole), images)


def _box(image: Array, value: Array) -> tuple[int, ...]:
    """Return top, left, rows and columns of what differs from a border's value, f64[c]."""
    other = np.abs(image - value[:, None, None]).max(axis=0) > _SAME * np.ptp(image)
    rows, columns = (np.flatnonzero(other.any(axis)) for axis in (1, 0))
    if not len(rows):
        return 0, 0, *other.shape
    return int(rows[0]), int(columns[0]), int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1


def _placed(a: Framed, b: Framed) -> Change:
    """Return how sizes and frames differ."""
    change, scale = Change(), np.divide(b.shape, a.shape)
    if a.shape != b.shape:
        one, other = dimensions(a.shape), dimensions(b.shape)
        change = Change.of("size", f"B is {other}, A is {one}.", one, other)
    gaps = np.abs(a.boxes * np.tile(scale, 2) - b.boxes)
    first = int(gaps.max(axis=1).argmax())
    if gaps.max() > ROUNDED:
        places = [
            f"{rows}×{columns} at ({top}, {left})"
            for top, left, rows, columns in (a.boxes[first], b.boxes[first])
        ]
        if gaps[:, 2:].max() > ROUNDED:
            change += Change.of("fit", FIT, *places)
        else:
            what = "The image is placed in its padding differently."
            change += Change.of("padding", what, *places)
    return change


@dataclass(frozen=True)
class View:
    """What A and B both show.

    Attributes:
        a: A's, pixel by pixel the same as B's, f64[c, h, w] each.
        b: B's.
        change: How B's images are turned, framed and placed, and the lines to it from A's.
        shift: Rows and columns by which B's view lies further down and to the right.
        framed: The images of A, turned, and of B.
    """

    a: Images
    b: Images
    change: Change
    shift: Shift
    framed: tuple[Framed, Framed]


def aligned(a: Images, b: Images) -> View | None:
    """Return what images show in common, f64[c, h, w] each; None if it is little."""
    right = _framed(b)
    turn = turn_of(_framed(a).contents, right.contents)
    framed = _framed([run(turn.lines, x) for x in a]), right
    a, b = (each.contents for each in framed)
    change, shift, shape = turn + _placed(*framed), (0, 0), b[0].shape[1:]
    whole = all(each.value is None for each in framed)
    if any(x.shape[1:] != y.shape[1:] for x, y in zip(a, b, strict=True)):
        a = [run(_stretching(y.shape[1:]), x) for x, y in zip(a, b, strict=True)]
        change += Change(lines=_stretching(shape) if whole else ())
    greys = [grey(x) for x in a], [grey(y) for y in b]
    moved = displacement(*greys) if whole else (0, 0)
    cut = [overlap(x, y, moved) for x, y in zip(*greys, strict=True)]
    if any(moved) and 1 - correlation(*zip(*cut, strict=True)) < 0.5 * (1 - correlation(*greys)):
        shift = moved
        what = f"B is cropped {shift[0]} rows further down and {shift[1]} columns further right."
        change += Change.of("crop", what, "(0, 0)", shift, *_shifting(shift, shape))
        a, b = zip(*[overlap(x, y, shift) for x, y in zip(a, b, strict=True)], strict=True)
    likeness = _likeness(a, b)
    if likeness < _ALIKE:
        a = [_zoomed(x, y) for x, y in zip(a, b, strict=True)]
        if max(likeness, _likeness(a, b)) < _UNLIKE:
            return None
        if "fit" not in change.kinds:
            sizes = (dimensions(side[0].shape[1:]) for side in (a, b))
            change += Change.of("fit", FIT, *sizes)
    return View(a, b, change, shift, framed)


def _likeness(a: Images, b: Images) -> float:
    """Return the mean correlation of the same views without their fine detail."""
    return correlation(*([blurred(grey(x)[None]) for x in side] for side in (a, b)))


def blurred(image: Array) -> Array:
    """Return f64[c, h, w] without fine detail: the contrast of different kernels is the same."""
    made: Array = gaussian_filter(image, (0, _BLUR, _BLUR), mode="nearest")
    return made


def displacement(a: Images, b: Images) -> Shift:
    """Return (rows, columns) so that b[i] ≈ a[i + shift], f64[h, w] each, by phase correlation.

    Kuglin and Hines 1975, "The phase correlation image alignment method", with Hann windows; the
    surfaces of all samples are added.
    """
    shape = a[0].shape
    if any(image.shape != shape for image in (*a, *b)):
        return 0, 0
    window = np.outer(*(np.hanning(n) for n in shape))
    surface = np.zeros(shape)
    for x, y in zip(a, b, strict=True):
        cross = np.fft.fft2(x * window) * np.conj(np.fft.fft2(y * window))
        surface += np.fft.ifft2(cross / np.maximum(np.abs(cross), 1e-12)).real
    peak = np.unravel_index(int(surface.argmax()), shape)
    down, along = (int(p) - n * (2 * int(p) > n) for p, n in zip(peak, shape, strict=True))
    return down, along


def overlap(a: Array, b: Array, shift: Shift) -> tuple[Array, Array]:
    """Return the parts of `a` and `b`, [..., h, w], where b[i] is a[i + shift]."""
    for axis, step in zip((-2, -1), shift, strict=True):
        places = np.arange(max(0, -step), a.shape[axis] - max(0, step))
        a, b = a.take(places + step, axis), b.take(places, axis)
    return a, b


def _zoomed(x: Array, y: Array) -> Array:
    """Return `x` at the factors about its centre, per axis, with which it looks most like `y`."""
    small, target = (_reduced(grey(image), 2 * _THUMBNAIL) for image in (x, y))
    factors, ratio, reach = np.ones(2), 2**0.5, 2
    for _ in range(5):
        steps = product(range(-reach, reach + 1), repeat=2)
        grid = [factors * ratio ** np.array(each) for each in steps]
        factors = max(grid, key=lambda each: correlation([_zoom(small, each)], [target]))
        ratio, reach = ratio**0.5, 1
    return np.stack([_zoom(plane, factors) for plane in x])


def _zoom(plane: Array, factors: Array) -> Array:
    middle = (np.array(plane.shape) - 1) / 2
    made: Array = affine_transform(plane, factors, middle * (1 - factors), order=1, mode="nearest")
    return made


def _stretching(shape: Sequence[int]) -> tuple[str, ...]:
    """Return the lines that resize `x` linearly, with half-pixel centres."""
    return (
        f"rows = (np.arange({shape[0]}) + 0.5) * x.shape[1] / {shape[0]} - 0.5",
        f"columns = (np.arange({shape[1]}) + 0.5) * x.shape[2] / {shape[1]} - 0.5",
        "rows = np.clip(rows, 0, x.shape[1] - 1)",
        "columns = np.clip(columns, 0, x.shape[2] - 1)",
        "top = np.minimum(rows.astype(int), x.shape[1] - 2)",
        "left = np.minimum(columns.astype(int), x.shape[2] - 2)",
        "down, along = (rows - top)[:, None], columns - left",
        "x = x[:, top] * (1 - down) + x[:, top + 1] * down",
        "x = x[:, :, left] * (1 - along) + x[:, :, left + 1] * along",
    )


def _shifting(shift: Shift, shape: Sequence[int]) -> tuple[str, ...]:
    """Return the lines that shift `x` by whole pixels; the border is repeated."""
    return (
        f"rows = np.clip(np.arange({shape[0]}) + {shift[0]}, 0, x.shape[1] - 1)",
        f"columns = np.clip(np.arange({shape[1]}) + {shift[1]}, 0, x.shape[2] - 1)",
        "x = x[:, rows][:, :, columns]",
    )
