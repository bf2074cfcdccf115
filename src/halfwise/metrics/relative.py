"""The one number that tells whether two tensors are the same up to rounding."""

from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray


def relative_error(before: NDArray[Any], after: NDArray[Any]) -> float:
    """Return the largest error over the largest magnitude (0 for empty tensors).

    Infinite where shapes or types differ, where NaN and infinities are not at the same places, or
    where tensors that hold no floating-point numbers differ.
    """
    if before.shape != after.shape or before.dtype != after.dtype:
        return inf
    if not np.issubdtype(before.dtype, np.floating):
        return 0.0 if np.array_equal(before, after) else inf
    finite = np.isfinite(before)
    if not np.array_equal(before[~finite], after[~finite], equal_nan=True):
        return inf
    a, b = before[finite].astype(np.float64), after[finite].astype(np.float64)
    if not np.isfinite(b).all():
        return inf
    error, largest = np.abs(a - b).max(initial=0.0), np.abs(a).max(initial=0.0)
    return float(error / largest) if largest else (inf if error else 0.0)
