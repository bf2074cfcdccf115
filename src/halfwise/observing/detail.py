"""Element statistics of one tensor, merged over samples in constant memory."""

import math

import numpy as np
from numpy.typing import NDArray

from halfwise.formats import Format
from halfwise.records import Detail, Histogram

# Small enough that all temporaries of one block stay in a core's cache.
_BLOCK = 1 << 16
_INFINITY = 0x7F800000
_FIRST_EXPONENT = -149


class DetailCounter:
    """Counts what a format would do to the elements of a tensor.

    Works on the bits: magnitudes of binary32 are ordered as their bits are, so every threshold is
    an integer comparison and the exponent is a shift.
    """

    def __init__(self, fmt: Format) -> None:
        """Start with no elements.

        Args:
            fmt: The low format whose thresholds count.
        """
        self._overflow_from = _bits(fmt.overflow_threshold)
        self._flush_upto = _bits(fmt.flush_threshold)
        # From here on, rounding to nearest (ties to even) reaches the smallest normal number.
        self._normal_from = _bits(fmt.smallest_normal - fmt.smallest_subnormal / 2)
        self._exponents = np.zeros(256, np.int64)
        self._tiny = np.zeros(-126 - _FIRST_EXPONENT, np.int64)
        self._zeros = self._elements = 0
        self._overflow = self._flush = self._below_normal = 0
        self._smallest = 0xFFFFFFFF

    def add(self, array: NDArray[np.float32]) -> None:
        """Count the elements of f32[*shape]; NaN and infinities only count as elements."""
        bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
        for start in range(0, bits.size, _BLOCK):
            self._add_block(bits[start : start + _BLOCK] & np.uint32(0x7FFFFFFF))

    def detail(self, samples: int) -> Detail:
        """Return the statistics; `samples` is how many samples were added.

        `overflow` counts finite elements that become infinite and `subnormal` those that become
        subnormal, both over all elements, non-finite ones included. `flush` is over finite non-zero
        elements. All are 0 where there are none.
        """
        counts = np.concatenate([self._tiny, self._exponents[1:255]])
        filled = np.flatnonzero(counts)
        first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
        nonzero = int(counts.sum())
        return Detail(
            smallest_nonzero=_value(self._smallest) if nonzero else math.inf,
            overflow=self._overflow / max(self._elements, 1),
            flush=self._flush / max(nonzero, 1),
            subnormal=(self._below_normal - self._flush) / max(self._elements, 1),
            histogram=Histogram(
                first=first + _FIRST_EXPONENT if nonzero else 0,
                counts=tuple(counts[first:last].tolist()),
                zeros=self._zeros,
            ),
            samples=samples,
        )

    def _add_block(self, magnitudes: NDArray[np.uint32]) -> None:
        exponents = np.bincount((magnitudes >> np.uint32(23)).astype(np.intp), minlength=256)
        self._exponents += exponents
        self._elements += magnitudes.size
        # Zero wraps around to the largest integer, so the minimum passes over zeros.
        self._smallest = min(self._smallest, int((magnitudes - np.uint32(1)).min()) + 1)
        if exponents[self._overflow_from >> 23 : 255].any():
            beyond = (magnitudes >= self._overflow_from) & (magnitudes < _INFINITY)
            self._overflow += int(np.count_nonzero(beyond))
        if exponents[: (self._normal_from >> 23) + 1].any():
            zeros = magnitudes.size - int(np.count_nonzero(magnitudes))
            self._zeros += zeros
            self._flush += int(np.count_nonzero(magnitudes <= self._flush_upto)) - zeros
            self._below_normal += int(np.count_nonzero(magnitudes < self._normal_from)) - zeros
            if exponents[0] > zeros:
                small = magnitudes[(magnitudes > 0) & (magnitudes < 1 << 23)]
                self._tiny += np.bincount(np.frexp(small)[1] - 1, minlength=self._tiny.size)


def _bits(magnitude: float) -> int:
    return int(np.float32(magnitude).view(np.uint32))


def _value(bits: int) -> float:
    return float(np.uint32(bits).view(np.float32))
