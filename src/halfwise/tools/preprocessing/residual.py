"""What is left between transformed samples of A and samples of B."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Residual:
    """What is left.

    Attributes:
        before: Largest |A − B| as they are; None where a shape differs.
        largest: Largest |transformed A − B|; infinite where a shape differs.
        rms: Its root mean square, likewise.
    """

    before: float | None
    largest: float
    rms: float


def measure(
    a: Sequence[NDArray[Any]],
    b: Sequence[NDArray[Any]],
    transform: Callable[[NDArray[Any]], NDArray[Any]],
    inside: Callable[[NDArray[Any]], NDArray[Any]] = lambda sample: sample,
) -> Residual:
    """Return what is left over all samples; one pair is in memory at a time.

    Args:
        a: Samples of A, in B's order.
        b: Samples of B, as many.
        transform: From a sample of A to one of B.
        inside: Cuts out of a sample of B what A shows too.
    """
    before: float | None = 0.0
    largest, squares, count = 0.0, 0.0, 0
    for x, y in zip(a, b, strict=True):
        target = y.astype(np.float64)
        if x.shape == y.shape and before is not None:
            before = max(before, float(np.abs(x.astype(np.float64) - target).max(initial=0)))
        else:
            before = None
        mapped = transform(x).astype(np.float64)
        if mapped.shape != target.shape:
            return Residual(before, float("inf"), float("inf"))
        left = np.abs(inside(mapped) - inside(target))
        largest = max(largest, float(left.max(initial=0)))
        squares, count = squares + float((left**2).sum()), count + left.size
    return Residual(before, largest, float(np.sqrt(squares / count)) if count else 0.0)
