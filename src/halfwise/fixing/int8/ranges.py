"""The ranges of tensors to store in INT8, seen on samples, by three methods.

`minmax` is that of onnxruntime.quantization. The other two cut the tail of a histogram of
magnitudes, which has the same bins for all samples. In onnxruntime.quantization the histogram
starts with the first sample's bins and grows by more of these, without limit if that sample was
small, and its 128 bins for `entropy` leave only one threshold to choose, the largest
(test_ranges.py).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.probe import ElementProbe, View
from halfwise.fixing.int8.placing import activations
from halfwise.graph.model import Network
from halfwise.graph.weights import pieces
from halfwise.progress import Silent, Watcher
from halfwise.records import RANGE_METHODS, RangeMethod, TensorName

Ranges = Mapping[TensorName, tuple[float, float]]
"""Smallest and largest value per tensor, both finite."""

BINS = 2048
"""Bins of magnitudes; below, the levels that INT8 has for them: S. Migacz, "8-bit inference with
TensorRT", GTC 2017, slide 38."""
LEVELS = 128
_STEP = 8
"""Distance of thresholds in bins: 1/256 of the largest magnitude, half a step of INT8."""
PERCENTILE = 0.99999
"""Share of the elements inside the range; the default of onnxruntime.quantization."""


def ranges(
    network: Network,
    samples: Samples,
    method: RangeMethod,
    runtime: Runtime = CPU,
    watcher: Watcher | None = None,
) -> Ranges:
    """Return the result of `calibrate` for one method."""
    return calibrate(network, samples, (method,), runtime, watcher)[method]


def calibrate(
    network: Network,
    samples: Samples,
    methods: Sequence[RangeMethod] = RANGE_METHODS,
    runtime: Runtime = CPU,
    watcher: Watcher | None = None,
) -> dict[RangeMethod, Ranges]:
    """Return the range of every tensor that can be INT8, by each of `methods`.

    Samples are run one at a time, twice if other methods than `minmax` are requested; memory holds
    two numbers and a histogram per tensor. NaN and infinities are ignored. A tensor that never had
    a finite element has no range.

    Args:
        network: The model in FP32.
        samples: Samples to run on.
        methods: Requested methods.
        runtime: Where to run.
        watcher: Receives progress.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`.
    """
    seen = _Seen(network, samples, runtime, watcher or Silent(), passes=2 if _cuts(methods) else 1)
    ends: dict[TensorName, tuple[float, float]] = {}

    def widen(name: TensorName, finite: NDArray[np.float32]) -> None:
        low, high = ends.get(name, (np.inf, -np.inf))
        ends[name] = min(low, float(finite.min())), max(high, float(finite.max()))

    seen.run(widen)
    found: dict[RangeMethod, Ranges] = {"minmax": ends}
    if _cuts(methods):
        counts = {name: np.zeros(BINS, np.int64) for name in ends}

        def count(name: TensorName, finite: NDArray[np.float32]) -> None:
            counts[name] += histogram(finite, max(map(abs, ends[name])))

        seen.run(count)
        for method, cut in ((m, _CUTS[m]) for m in methods if m in _CUTS):
            found[method] = {name: _within(ends[name], cut(counts[name])) for name in ends}
    return {method: found[method] for method in methods}


def histogram(finite: NDArray[np.float32], absmax: float) -> NDArray[np.int64]:
    """Return how many of `finite` f32[*shape] have a magnitude in each of `BINS` parts of `absmax`.

    `absmax` itself is in the last bin; if it is 0, everything is in the first.
    """
    counts = np.zeros(BINS, np.int64)
    for piece in pieces(finite):
        part = np.abs(piece, dtype=np.float64) / (absmax or 1.0)
        counts += np.bincount(np.minimum((part * BINS).astype(np.int64), BINS - 1), minlength=BINS)
    return counts


def percentile_bins(counts: NDArray[np.int64]) -> int:
    """Return the fewest bins that hold at least `PERCENTILE` of the counts i64[bins]."""
    return int(np.searchsorted(np.cumsum(counts), PERCENTILE * counts.sum())) + 1


def entropy_bins(counts: NDArray[np.int64]) -> int:
    """Return how many bins of i64[bins] to keep so that `LEVELS` levels lose the least.

    The loss is the Kullback-Leibler divergence of the counts, with those cut off added to the last
    remaining bin, from what the levels leave of them (see `BINS` for the source). The smallest loss
    of those tried; of equal ones, the fewest bins.
    """
    sizes = range(LEVELS, len(counts) + 1, _STEP)
    return min(sizes, key=lambda size: _divergence(counts, size))


def _divergence(counts: NDArray[np.int64], size: int) -> float:
    kept = counts[:size].astype(np.float64)
    wanted = kept.copy()
    wanted[-1] += counts[size:].sum()
    level = np.arange(size) * LEVELS // size
    there = kept > 0
    inside = np.bincount(level, kept, LEVELS) / np.maximum(np.bincount(level, there, LEVELS), 1)
    given = np.where(there, inside[level], 0.0)
    if (given[wanted > 0] == 0).any():
        return np.inf
    p, q = wanted[there] / wanted.sum(), given[there] / given.sum()
    return float((p * np.log(p / q)).sum())


_CUTS: Mapping[RangeMethod, Callable[[NDArray[np.int64]], int]] = {
    "entropy": entropy_bins,
    "percentile": percentile_bins,
}


def _cuts(methods: Sequence[RangeMethod]) -> bool:
    return any(method in _CUTS for method in methods)


def _within(ends: tuple[float, float], bins: int) -> tuple[float, float]:
    threshold = max(map(abs, ends)) * min(bins, BINS) / BINS
    return max(ends[0], -threshold), min(ends[1], threshold)


class _Seen:
    """Passes on the finite elements of tensors, a bounded number of bytes at a time."""

    def __init__(
        self, network: Network, samples: Samples, runtime: Runtime, watcher: Watcher, passes: int
    ) -> None:
        self._probe = ElementProbe(network.model, runtime=runtime)
        self._samples, self._watcher = samples, watcher
        self._tensors = activations(network)
        self._sizes = self._probe.sizes(samples[0], self._tensors) if len(samples) else {}
        self._done = 0
        watcher.stage("calibrate", passes * len(self._tensors) * len(samples))

    def run(self, look: Callable[[TensorName, NDArray[np.float32]], None]) -> None:
        """Call `look` with each tensor's finite elements, on each sample with any."""

        def viewer(name: TensorName) -> View:
            def visit(_: int, array: NDArray[np.float32]) -> None:
                finite = array[np.isfinite(array)]
                if finite.size:
                    look(name, finite)
                self._done += 1
                self._watcher.step(self._done)

            return View((name,), visit)

        self._probe.run(self._samples, [viewer(name) for name in self._tensors], self._sizes)
