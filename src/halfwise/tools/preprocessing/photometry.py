"""Channel order, and a gain and an offset for each channel."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

Array = NDArray[np.float64]

_BETTER = 0.6
"""Misfit that another channel order must fall to; grey images, where all fit alike, stay at 1."""
_OUTLIERS = 4 * 1.4826
"""Median deviations beyond which a pixel does not count: four standard deviations."""
_ROUNDS = 4
_PILE = 1e-3
_FEWEST = 0.1
_FLAT = 0.1
"""Part of the variance that pixels must keep: a page's background alone fits every line."""


@dataclass(frozen=True)
class Photometry:
    """b[c] ≈ gain[c] · a[channels[c]] + offset[c].

    Attributes:
        channels: The channel of A for each of B.
        gain: By channel of B.
        offset: Likewise, in the unit of B.
        misfit: Root mean square of what is left over B's standard deviation, smoothed alike.
    """

    channels: tuple[int, ...]
    gain: tuple[float, ...]
    offset: tuple[float, ...]
    misfit: float

    def __call__(self, image: Array) -> Array:
        """Return f64[c, h, w] of A in the channels and unit of B."""
        gain, offset = (np.array(each)[:, None, None] for each in (self.gain, self.offset))
        mapped: Array = image[list(self.channels)] * gain + offset
        return mapped


def photometry(a: Sequence[Array], b: Sequence[Array], blur: float = 0.0) -> Photometry:
    """Return the channel order, gains and offsets that lead from A to B.

    Least squares on all pixels of all samples; those that are far off are left out.

    Args:
        a: f64[c, h, w] each, in the place of B's.
        b: f64[c', h, w] each, as many.
        blur: Standard deviation in pixels of a blur before, so that a sharper or softer image of
            the same scene has the same gain.
    """
    left, right = _pooled(a, blur), _pooled(b, blur)
    fits = [[_line(x, y) for x in left] for y in right]
    spread = np.array([y.std() or 1.0 for y in right])
    misfits = np.array([[fit[2] for fit in row] for row in fits]) / spread[:, None]
    channels = _channels(misfits)
    chosen = [fits[i][c] for i, c in enumerate(channels)]
    misfit = float(np.sqrt(np.mean([misfits[i, c] ** 2 for i, c in enumerate(channels)])))
    return Photometry(
        channels, tuple(fit[0] for fit in chosen), tuple(fit[1] for fit in chosen), misfit
    )


def _channels(misfits: Array) -> tuple[int, ...]:
    """Return the channel of A for each of B: as they are, unless others fit clearly better."""
    wanted, given = misfits.shape
    if wanted != given:
        return tuple(int(i) for i in np.argmin(misfits, axis=1))
    same = tuple(range(given))

    def cost(order: tuple[int, ...]) -> float:
        return float(np.sqrt(np.mean([misfits[i, c] ** 2 for i, c in enumerate(order)])))

    best = min(permutations(same), key=cost)
    return best if cost(best) < _BETTER * cost(same) else same


def _pooled(images: Sequence[Array], blur: float) -> Array:
    if blur:
        images = [gaussian_filter(image, (0, blur, blur), mode="nearest") for image in images]
    return np.concatenate([image.reshape(len(image), -1) for image in images], axis=1)


def _line(x: Array, y: Array) -> tuple[float, float, float]:
    """Return gain, offset and root mean square of what is left."""
    counted = _within(x) & _within(y)
    if counted.mean() < _FEWEST:
        counted = np.ones(x.shape, np.bool_)
    gain, offset = 0.0, float(y.mean())
    for _ in range(_ROUNDS):
        x_, y_ = x[counted], y[counted]
        centre, variance = x_.mean(), x_.var()
        # A constant tells no gain.
        gain = float(((x_ - centre) * (y_ - y_.mean())).mean() / variance) if variance else 1.0
        offset = float(y_.mean() - gain * centre)
        left = np.abs(y - gain * x - offset)
        limit = _OUTLIERS * float(np.median(left[counted]))
        kept = counted & (left <= max(limit, 1e-6 * float(np.ptp(y))))
        few = kept.sum() < 0.5 * counted.sum() or x[kept].var() < _FLAT * variance
        if few or (kept == counted).all():
            break
        counted = kept
    return gain, offset, float(np.sqrt(np.mean((y - gain * x - offset)[counted] ** 2)))


def _within(values: Array) -> NDArray[np.bool_]:
    """Return what is not at an end where values pile up: what was cut off tells no gain."""
    kept = np.ones(values.shape, np.bool_)
    for end in (values.min(), values.max()):
        here = values == end
        if here.mean() > _PILE:
            kept &= ~here
    return kept
