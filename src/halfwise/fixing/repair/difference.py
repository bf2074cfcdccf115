"""The difference between outputs, relative to their largest value."""

from math import inf

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics import Outputs

_MASK, _FAR = 1e4, 1e3
"""Elements of an output are masks from 1e4 on, if a thousand times larger than those not
half as large; the other elements have their own largest value."""


def size_of(array: NDArray[np.generic]) -> float:
    """Return the largest finite magnitude outside masks; 0 if there is none, or no float."""
    if array.dtype.kind != "f":
        return 0.0
    sizes = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(sizes[sizes < _masks_from(sizes)].max(initial=0.0))


def same(one: Outputs, other: Outputs) -> bool:
    """Return whether outputs are equal bit for bit, treating all NaN as equal."""
    return all(
        a.shape == other[n].shape and np.array_equal(a, other[n], equal_nan=a.dtype.kind == "f")
        for n, a in one.items()
    )


def infinite_at(outputs: Outputs) -> bool:
    """Return whether an output holds NaN or infinities."""
    return any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in outputs.values())


def lost(before: NDArray[np.generic], after: NDArray[np.generic]) -> int:
    """Return how many elements are finite before and not after, or NaN only after."""
    if before.dtype.kind != "f" or before.shape != after.shape:
        return 0
    infinite = np.isfinite(before) & ~np.isfinite(after)
    return int(np.count_nonzero(infinite | (np.isnan(after) & ~np.isnan(before))))


def mended(before: NDArray[np.generic], after: NDArray[np.generic]) -> int:
    """Return how many elements are NaN or infinite before and different after."""
    if before.dtype.kind != "f" or before.shape != after.shape:
        return 0
    same_value = (before == after) | (np.isnan(before) & np.isnan(after))
    return int(np.count_nonzero(~np.isfinite(before) & ~same_value))


def error_of(truth: NDArray[np.generic], found: NDArray[np.generic], floor: float) -> float:
    """Return the largest difference relative to the largest value of `truth`, at least `floor`.

    An element infinite in `truth` and anything else in `found` counts as inf. Elements that are NaN
    in `truth`, or finite only in `truth`, do not count: `lost` and `mended` report these. For types
    other than float, the share of elements that differ.
    """
    if truth.shape != found.shape:
        return inf
    if truth.dtype.kind != "f":
        return float(np.mean(truth != found)) if truth.size else 0.0
    a, b = truth.astype(np.float64), found.astype(np.float64)
    if np.any(np.isinf(a) & (a != b)):
        return inf
    both = np.isfinite(a) & np.isfinite(b)
    sizes, error = np.abs(a[both]), np.abs(a[both] - b[both])
    masked = sizes >= _masks_from(sizes)
    return max(_relative(error[part], sizes[part], floor) for part in (masked, ~masked))


def _relative(error: NDArray[np.float64], sizes: NDArray[np.float64], floor: float) -> float:
    largest = float(error.max(initial=0.0))
    scale = max(float(sizes.max(initial=0.0)), floor)
    return largest / scale if largest and scale else inf if largest else 0.0


def _masks_from(sizes: NDArray[np.float64]) -> float:
    """Return the magnitude from which elements are masks, far above all others; inf for none."""
    largest = float(sizes.max(initial=0.0))
    others = sizes[sizes < largest / _FAR]
    gap = not np.any((sizes >= largest / _FAR) & (sizes < largest / 2))
    return largest / _FAR if largest >= _MASK and gap and others.any() else inf
