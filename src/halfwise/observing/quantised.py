"""Effect of quantisation on the values of a tensor: how many it clips, and its errors.

One pass counts. Errors with other scales follow from a histogram of magnitudes: its bins are at
most 3 % wide, and no values are stored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.probe import ElementProbe, View
from halfwise.graph.model import Network, constant_array, tensor_name
from halfwise.graph.quantised import Pair
from halfwise.records import RangeFault

RARE = 1e-3
"""Share of values that may be outliers; one value always may."""
CLIPPED = 0.5
"""Share of a pair's squared error due to clipping from which the pair counts as saturated."""
WIDE = 4
"""A range that is this many times what values reach wastes two of its eight bits."""
_SHIFT = 18
"""Low bits of binary32 that bins ignore: sign, exponent and 5 of the 23 fraction bits remain."""
_SIGN = 1 << (31 - _SHIFT)
_STEPS_PER_OCTAVE = 8
_OCTAVES = 10
"""How far better scales are searched for in both directions: up to a factor of 1024."""
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Reach:
    """Effect of a pair on the values that it was seen with.

    Attributes:
        beyond: Share of values more than half a step beyond the ends of the pair's type.
        clipped: Share of the pair's squared error that comes from those values.
        ends: Ends of the pair's range, lower first; zeros if it has many scales.
        largest: Largest finite magnitude; in steps if the pair has many scales.
        usual: Magnitude that all values but a share of `RARE`, or all but one, stay below; in steps
            like `largest`.
        factor: Factor on the scale that gives the smallest squared error; 1 for floats of 8 bits or
            less, whose steps vary.
        noise: Squared error with this factor, divided by that without it; 1 if the latter is 0.
        even: Whether the levels are equally spaced; levels of floats are finer toward zero.
    """

    beyond: float
    clipped: float
    ends: tuple[float, float]
    largest: float
    usual: float
    factor: float
    noise: float
    even: bool

    @property
    def limit(self) -> float:
        """The end of its range that is further from zero; 0 if it has many scales."""
        return max(-self.ends[0], self.ends[1])

    @property
    def fault(self) -> RangeFault | None:
        """What is wrong with the range; None if nothing is, or if it has many scales.

        A float's steps shrink with its values, so none of its range is wasted.
        """
        if self.beyond and self.clipped >= CLIPPED:
            return "saturated"
        if not self.even or not self.limit or self.limit < WIDE * self.usual:
            return None
        return "outlier" if self.limit < WIDE * self.largest else "wide"


class Counter:
    """Counts the values of one tensor, in steps from zero."""

    def __init__(
        self, limits: tuple[float, float], step: float = 0.0, *, even: bool = True
    ) -> None:
        """Start with no values.

        Args:
            limits: The smallest and the largest level, minus the zero point.
            step: The scale; 0 if there are many scales, and values are given in steps.
            even: Whether all levels are equally far apart.
        """
        self.low, self.high = limits
        self._step, self._is_even = step, even
        self._ends_at_zero = self.low == 0
        self.counts = np.zeros(1 << (32 - _SHIFT), np.int64)
        self.elements = self.beyond = 0
        self.largest = 0.0

    def add(self, array: NDArray[np.generic]) -> None:
        """Count f[*shape]; non-finite values count only as elements."""
        steps = np.asarray(array, np.float32) / (self._step or 1.0)
        flat = steps.reshape(-1)
        self.elements += flat.size
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            block = np.ascontiguousarray(block[np.isfinite(block)])
            if self._ends_at_zero:  # values below are cut off on purpose, as by a Relu
                block = np.maximum(block, 0.0)
            outside = (block > self.high + 0.5) | (block < self.low - 0.5)
            self.beyond += int(np.count_nonzero(outside))
            self.largest = max(self.largest, float(np.abs(block).max(initial=0.0)))
            bins = np.right_shift(block.view(np.uint32), _SHIFT).astype(np.intp)
            self.counts += np.bincount(bins, minlength=self.counts.size)

    def reach(self) -> Reach:
        """Return what was counted."""
        bins = np.flatnonzero(self.counts).astype(np.uint32)
        middle = ((bins << _SHIFT) + (1 << (_SHIFT - 1))).view(np.float32).astype(np.float64)
        middle[bins & (_SIGN - 1) == 0] = 0.0
        counts = self.counts[bins]
        factors = np.exp2(
            np.arange(-_OCTAVES * _STEPS_PER_OCTAVE, _OCTAVES * _STEPS_PER_OCTAVE + 1)
            / _STEPS_PER_OCTAVE
        )
        errors = [self._error(middle, counts, f) for f in (factors if self._is_even else [1.0])]
        now, clipped = self._error(middle, counts, 1.0)
        least = int(np.argmin([total for total, _ in errors]))
        scale = self._step or 1.0
        return Reach(
            beyond=self.beyond / max(self.elements, 1),
            clipped=clipped / now if now else 0.0,
            ends=(self._step * self.low, self._step * self.high),
            largest=self.largest * scale,
            usual=self._usual(middle, counts) * scale,
            factor=float(factors[least]) if self._is_even else 1.0,
            noise=errors[least][0] / now if now else 1.0,
            even=self._is_even,
        )

    def _usual(self, middle: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
        sizes = np.abs(middle)
        order = np.argsort(-sizes)
        rarer = np.cumsum(counts[order]) > max(1, RARE * self.elements)
        found = sizes[order][rarer]
        return min(float(found[0]), self.largest) if found.size else self.largest

    def _error(
        self, middle: NDArray[np.float64], counts: NDArray[np.int64], factor: float
    ) -> tuple[float, float]:
        """Return the squared error with a scaled scale, and the part due to clipping."""
        size = middle / factor
        kept = np.clip(size, self.low, self.high)
        past = np.abs(size - kept)
        # A value between two levels may be anywhere there; one that rounds to zero errs by itself.
        noise = np.where(np.abs(size) < 0.5, size**2, 1 / 12) if self._is_even else np.zeros(())
        squares = np.where(past > 0.5, past**2, noise) * counts * factor**2
        return float(squares.sum()), float((squares * (past > 0.5)).sum())


def reaches(
    network: Network, pairs: Sequence[Pair], samples: Samples, *, runtime: Runtime = CPU
) -> list[Reach]:
    """Return the effect of a quantised model's pairs on the floats before them, in order.

    Args:
        network: The quantised model.
        pairs: Pairs of it that have a source.
        samples: Samples to run; constants need none.
        runtime: Where it runs.

    Raises:
        RunFailed: as for `ElementProbe`.
    """
    counters = [_counter(pair) for pair in pairs]
    views: list[View] = []
    for pair, counter in zip(pairs, counters, strict=True):
        assert pair.source is not None
        add = _adding(counter, pair)
        if pair.source.const_value is not None:
            add(0, constant_array(pair.source))
        else:
            views.append(View((tensor_name(pair.source),), add))
    if views and len(samples):
        probe = ElementProbe(network.model, runtime=runtime)
        names = dict.fromkeys(name for view in views for name in view.tensors)
        probe.run(samples, views, probe.sizes(samples[0], list(names)))
    return [counter.reach() for counter in counters]


def _counter(pair: Pair) -> Counter:
    is_float = pair.dtype.is_floating_point()
    kind = (ml_dtypes.finfo if is_float else ml_dtypes.iinfo)(pair.dtype.numpy())
    zeros = pair.zero_point
    limits = float(kind.min) - float(zeros.min()), float(kind.max) - float(zeros.max())
    step = float(pair.scale) if pair.axis is None else 0.0
    return Counter(limits, step, even=not is_float)


def _adding(counter: Counter, pair: Pair) -> Callable[[int, NDArray[np.generic]], None]:
    if pair.axis is None:
        return lambda _, array: counter.add(array)
    return lambda _, array: counter.add(np.asarray(array, np.float32) / pair.steps(array.shape))
