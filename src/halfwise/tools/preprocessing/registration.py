"""Finds where one image lies in another: a factor and an offset for each axis.

Gauss-Newton from coarse to fine on the difference in brightness, as Lucas and Kanade 1981 ("An
iterative image registration technique"), with gain and offset of the brightness left free. It
starts from the best of a grid of factors on thumbnails.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

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
        start: Place of pixel (0, 0) in the source.
        correlation: Of the two, where they overlap, in [−1, 1].
    """

    step: tuple[float, float]
    start: tuple[float, float]
    correlation: float


def register(source: Array, image: Array) -> Placement:
    """Return where `image` lies in `source`.

    Args:
        source: f64[h, w], at most some times as large as the image in each direction.
        image: f64[h', w'], showing a part of the source at any scale from half to twice what
            would fill the image; brightness may differ by gain and offset.
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
    """Return what `source` has in the place of each pixel, and which places lie within it.

    Args:
        source: f64[h, w].
        shape: Rows and columns of the image.
        place: Where the image lies.
    """
    step = np.array(place.step)
    middle = np.array(place.start) + step * (np.array(shape) - 1) / 2
    return _linear(source, shape, step, middle)


def _reduce(source: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the source in means of whole blocks, at most twice the size of the image."""
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
    """Return (middle, step) to begin from: factors around the middle, and even ones off it."""
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
    """Return the source at `shape` places around `middle`, linear between pixels; which lie in."""
    parts, within = [], []
    for axis in (0, 1):
        place = middle[axis] + step[axis] * (np.arange(shape[axis]) - (shape[axis] - 1) / 2)
        last = source.shape[axis] - 1
        within.append((place >= -0.51) & (place <= last + 0.51))
        place = np.clip(place, 0, last)
        low = np.minimum(place.astype(int), max(last - 1, 0))
        parts.append((low, np.minimum(low + 1, last), place - low))
    (top, bottom, down), (left, right, along) = parts
    rows = source[top] * (1 - down)[:, None] + source[bottom] * down[:, None]
    taken = rows[:, left] * (1 - along) + rows[:, right] * along
    return taken, within[0][:, None] & within[1]


def _correlate(taken: Array, inside: NDArray[np.bool_], image: Array) -> float:
    if inside.mean() < _FEWEST_PIXELS:
        return -1.0
    a, b = taken[inside], image[inside]
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else 0.0
