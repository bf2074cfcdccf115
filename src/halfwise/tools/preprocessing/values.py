"""Rounding, clipping and number formats, told from values that are aligned already."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LEVELS = 256
_OFF_GRID = 0.12
"""Parts of a level that a value may be off its grid; FP16 after normalisation is off by 0.06."""
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
    """Return the step between values that are at most 256 evenly spaced ones; else 0.

    Args:
        values: f64[n], at least one.
    """
    found = np.unique(values)
    spread = float(np.ptp(found))
    # Values that differ by float rounding only are one.
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
    """Return whether all values are FP16 numbers, and not because they are whole numbers.

    Args:
        images: f64[c, h, w] each.
    """
    values = np.unique(np.concatenate([image.ravel() for image in images]))
    with np.errstate(over="ignore"):
        kept = values.astype(np.float16).astype(np.float64) == values
    # Multiples of 2^-8, such as bytes and bytes over 256, are FP16 numbers anyway.
    return bool(kept.all() and (values * _LEVELS % 1 != 0).mean() > 0.1)


def is_half_of(precise: Array, stored: Array) -> bool:
    """Return whether `stored` is `precise` rounded to FP16, and not equal before."""
    with np.errstate(over="ignore"):
        rounded = precise.astype(np.float32).astype(np.float16).astype(np.float64)
    scale = np.maximum(np.abs(stored), 1e-3)
    return bool(
        np.mean(rounded == stored) >= _SHARE
        and np.mean(np.abs(precise - stored) <= 1e-6 * scale) < _SHARE
    )


def clipped(wide: Sequence[Array], narrow: Sequence[Array], level: Array) -> int:
    """Return how many values `narrow` cuts off at its ends; 0 where it is not clipped `wide`.

    Args:
        wide: f64[c, h, w] each, in the unit of `narrow`.
        narrow: f64[c, h, w] each.
        level: f64[c]: what counts as beyond the end.
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
    """Return smallest and largest value of each channel, f64[c] each."""
    stacked = np.concatenate([image.reshape(len(image), -1) for image in images], axis=1)
    return stacked.min(axis=1), stacked.max(axis=1)
