"""Values of aligned images: channels, gain and offset, steps, FP16, clipping."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from halfwise.records import InputDifference
from halfwise.records.diagnosis import difference

Array = NDArray[np.float64]

_BETTER = 0.6
"""Misfit ratio that another channel order must reach; grey images fit any order and stay at 1."""
_OUTLIERS = 4 * 1.4826
"""Outlier bound in median deviations: four standard deviations."""
_ROUNDS = 4
_PILE = 1e-3
_FEWEST = 0.1
_FLAT = 0.1
"""Share of the variance that inliers must keep: a page's background alone fits any line."""


@dataclass(frozen=True)
class Photometry:
    """b[c] ≈ gain[c] · a[channels[c]] + offset[c].

    Attributes:
        channels: The channel of A for each of B.
        gain: By channel of B.
        offset: Likewise, in the unit of B.
        misfit: RMS residual over B's standard deviation, smoothed alike.
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
    """Return the channel order, gains and offsets from A to B.

    Least squares on all pixels of all samples, without outliers.

    Args:
        a: f64[c, h, w] each, aligned with B's.
        b: f64[c', h, w] each, equally many.
        blur: Standard deviation in pixels of a blur applied first, so that a sharper or softer
            image of the same scene has the same gain.
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
    """Return the channel of A for each of B: unchanged, unless others fit clearly better."""
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
    """Return gain, offset and RMS residual."""
    counted = _within(x) & _within(y)
    if counted.mean() < _FEWEST:
        counted = np.ones(x.shape, np.bool_)
    gain, offset = 0.0, float(y.mean())
    for _ in range(_ROUNDS):
        x_, y_ = x[counted], y[counted]
        centre, variance = x_.mean(), x_.var()
        # A constant has no gain.
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
    """Return a mask without clipped values at the ends: they show no gain."""
    kept = np.ones(values.shape, np.bool_)
    for end in (values.min(), values.max()):
        here = values == end
        if here.mean() > _PILE:
            kept &= ~here
    return kept


_LEVELS = 256
_OFF_GRID = 0.12
"""Levels by which a value may miss its grid; FP16 after normalisation misses by 0.06."""
_FEWEST_LEVELS = 16
_SHARE = 0.9
_FEWEST_CLIPPED = 8


def is_8_bit(images: Sequence[Array]) -> bool:
    """Return whether every channel has at most 256 evenly spaced values, over all samples.

    Args:
        images: f64[c, h, w] each, in any unit.
    """
    return all(
        bool(step_of(np.concatenate([image[channel].ravel() for image in images])))
        for channel in range(len(images[0]))
    )


def step_of(values: Array) -> float:
    """Return the step of at most 256 evenly spaced values; else 0.

    Args:
        values: f64[n], at least one.
    """
    found = np.unique(values)
    spread = float(np.ptp(found))
    # Merge values that differ only by float rounding.
    found = found[np.concatenate(([True], np.diff(found) > spread * 1e-2 / _LEVELS))]
    if len(found) < _FEWEST_LEVELS or len(found) > _LEVELS:
        return 0.0
    smallest = np.diff(found)
    step = float(np.median(smallest[smallest < 1.5 * smallest.min()]))
    places = (found - found[0]) / step
    counted = round(float(places[-1]))
    if counted >= _LEVELS or counted == 0:
        return 0.0
    places *= counted / places[-1]
    even = np.abs(places - np.round(places)).max() <= _OFF_GRID
    return spread / counted if even else 0.0


def is_half(images: Sequence[Array]) -> bool:
    """Return whether all values are FP16 numbers, and not merely integers.

    Args:
        images: f64[c, h, w] each.
    """
    values = np.unique(np.concatenate([image.ravel() for image in images]))
    with np.errstate(over="ignore"):
        kept = values.astype(np.float16).astype(np.float64) == values
    # Multiples of 2^-8, such as bytes and bytes / 256, are always FP16 numbers.
    return bool(kept.all() and (values * _LEVELS % 1 != 0).mean() > 0.1)


def is_half_of(precise: Array, stored: Array) -> bool:
    """Return whether `stored` is `precise` rounded to FP16, and rounding changed it."""
    with np.errstate(over="ignore"):
        rounded = precise.astype(np.float32).astype(np.float16).astype(np.float64)
    scale = np.maximum(np.abs(stored), 1e-3)
    return bool(
        np.mean(rounded == stored) >= _SHARE
        and np.mean(np.abs(precise - stored) <= 1e-6 * scale) < _SHARE
    )


def clipped(wide: Sequence[Array], narrow: Sequence[Array], level: Array) -> int:
    """Return how many values `narrow` clips at its ends; 0 if it is not a clipped `wide`.

    Args:
        wide: f64[c, h, w] each, in the unit of `narrow`.
        narrow: f64[c, h, w] each.
        level: f64[c]: the least distance beyond an end.
    """
    count = 0
    for channel, slack in enumerate(level):
        values = np.concatenate([image[channel].ravel() for image in narrow])
        others = np.concatenate([image[channel].ravel() for image in wide])
        low, high = values.min(), values.max()
        beyond = (others < low - slack) | (others > high + slack)
        at_end = np.minimum(np.abs(values - low), np.abs(values - high)) <= slack
        if beyond.any() and not at_end[beyond].all():
            return 0
        count += int(beyond.sum())
    return count if count >= _FEWEST_CLIPPED else 0


def limits(images: Sequence[Array]) -> tuple[Array, Array]:
    """Return the smallest and largest value of each channel, f64[c] each."""
    stacked = np.concatenate([image.reshape(len(image), -1) for image in images], axis=1)
    return stacked.min(axis=1), stacked.max(axis=1)


def channel_difference(channels: Sequence[int], given: int) -> InputDifference:
    """Describe which channel of A each channel of B is."""
    if len(channels) != given:
        said = f"B has {len(channels)} channels where A has {given}"
    elif tuple(channels) == (2, 1, 0):
        said = "B has the channels in reverse order: one is RGB, the other BGR"
    else:
        said = "B has the channels in another order"
    listed = ", ".join(map(str, channels))
    return difference(
        "channels",
        f"{said}.",
        ", ".join(map(str, range(given))),
        listed,
        f"channels of B are channels {listed} of A",
    )
