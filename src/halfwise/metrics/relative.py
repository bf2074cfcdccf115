"""Relative errors of tensors: RMS, pooled over samples, and largest; whether tensors are close."""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.difference import is_discrete


@dataclass
class RelativeError:
    """√(Σ error² / Σ reference²) over all elements of all samples.

    Elements that are the same NaN or infinity in both are ignored. The result is inf if only one
    side is not finite, if shapes differ, or if the reference is all zeros and the error is not. For
    integers, Booleans and strings it is the root of the share of unequal elements. Without elements
    it is 0.

    Attributes:
        signal: Σ reference².
        noise: Σ error².
        worst: Largest error of a single sample.
        worst_sample: Its index; 0 before any sample.
    """

    signal: float = 0.0
    noise: float = 0.0
    worst: float = -1.0
    worst_sample: int = 0

    @property
    def value(self) -> float:
        """The error over all samples so far."""
        return _ratio(self.signal, self.noise)

    def add(self, expected: NDArray[Any], actual: NDArray[Any], sample: int) -> float:
        """Add a pair of arrays of any ONNX dtypes; return the error of this pair alone."""
        signal, noise = energies(expected, actual)
        self.signal += signal
        self.noise += noise
        error = _ratio(signal, noise)
        if error > self.worst:
            self.worst, self.worst_sample = error, sample
        return error


def relative_rms(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the relative RMS error of one pair of arrays; see `RelativeError`."""
    return _ratio(*energies(expected, actual))


def finite_relative_rms(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the relative RMS error over the elements that are finite in `expected`.

    inf if `actual` is not finite there or has another shape, or if only `expected` is all zeros.
    What an engine makes of an infinite mask is ignored.
    """
    if actual.shape != expected.shape:
        return inf
    finite = np.isfinite(expected)
    return relative_rms(expected[finite].astype(np.float64), actual[finite].astype(np.float64))


def energies(expected: NDArray[Any], actual: NDArray[Any]) -> tuple[float, float]:
    """Return Σ reference² and Σ error² of a pair of arrays; see `RelativeError`."""
    # Shapes differ where they depend on values (NonZero, Compress).
    if actual.shape != expected.shape:
        return 0.0, inf
    if is_discrete(expected.dtype):
        return float(expected.size), float(np.count_nonzero(expected != actual))
    wanted, found = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], found[~finite], equal_nan=True):
        return 0.0, inf
    if not finite.all():
        wanted, found = wanted[finite], found[finite]
    if not np.isfinite(found).all():
        return 0.0, inf
    return float(np.square(wanted).sum()), float(np.square(found - wanted).sum())


def _ratio(signal: float, noise: float) -> float:
    if noise == 0:
        return 0.0
    return sqrt(noise / signal) if signal > 0 else inf


def is_close(found: NDArray[Any], expected: NDArray[Any], within: float) -> bool:
    """Return whether all elements agree, up to `within` of the largest finite expected magnitude.

    The same NaN and infinities agree; integers, Booleans and strings must be equal. False for
    another shape.
    """
    if found.shape != expected.shape or is_discrete(found.dtype):
        return bool(np.array_equal(found, expected))
    slack = within * float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    return bool(np.allclose(found, expected, rtol=0, atol=slack, equal_nan=True))


def relative_error(before: NDArray[Any], after: NDArray[Any]) -> float:
    """Return the largest error relative to the largest magnitude (0 for empty tensors).

    Infinite if shapes or types differ, if NaN and infinities are in different places, or if tensors
    without floating-point numbers differ.
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
