"""Splits off held-out samples, and drops those that the search has in effect seen."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.hashing import hash_sample


def split_heldout(samples: Samples) -> tuple[Samples, Samples]:
    """Split samples three to one into calibration and held-out samples.

    Every fourth sample is held out (3, 7, 11, …), so ordered data is spread over both parts; of two
    or three samples, the last. With one sample or none, the held-out part is empty.

    Returns:
        Calibration and held-out samples, each in their original order.
    """
    if len(samples) < 2:
        return samples, samples.select(())
    heldout = list(range(3, len(samples), 4)) or [len(samples) - 1]
    calibration = [i for i in range(len(samples)) if i not in set(heldout)]
    return samples.select(calibration), samples.select(heldout)


NEAR = 1e-4
"""Samples this close count as one: relative to each float element, and to the typical magnitude of
its input.

Rounding to FP16 changes an element by up to 5e-4, so a low model hardly sees the difference. One
step of an 8-bit image is 4e-3 of its range: pictures that differ in one pixel are two samples.
"""
_BLOCKS = 64
"""Sums in the sketch of each input: enough to distinguish most samples without loading them."""
_TYPICAL = 4096
"""Number of elements for the typical magnitude."""
_ROUNDING = 1e-12
"""Upper bound on the error of float64 sums, relative to the sum of magnitudes."""


class Sketch(NamedTuple):
    """A summary of a sample, used to find equal or nearly equal ones.

    Attributes:
        sha256: Hash of the whole sample.
        exact: Hash of what must be equal: names, types, shapes, and all values that are not floats.
        sums: f64[n], sums over blocks of elements of each float input; the first covers all.
        slack: f64[n], how far each sum may move if every element moves by `NEAR`.
    """

    sha256: str
    exact: str
    sums: NDArray[np.float64]
    slack: NDArray[np.float64]


def sketch_each(samples: Samples) -> tuple[Sketch, ...]:
    """Return the sketch of each sample; loads every sample once.

    Raises:
        CaseError: a sample turns out to be invalid when it is loaded.
    """
    return tuple(map(sketch, samples))


def sketch(sample: Sample) -> Sketch:
    """Return the sketch of a sample."""
    sums, slack = [np.zeros(1)], [np.zeros(1)]
    for _, array in sorted(sample.items()):
        if not _is_float(array) or not array.size:
            continue
        flat = np.ravel(array).astype(np.float64)
        starts = np.unique(np.linspace(0, flat.size, _BLOCKS, endpoint=False, dtype=np.int64))
        sizes = np.diff([*starts, flat.size])
        size = np.add.reduceat(np.abs(flat), starts)
        sums.append(np.add.reduceat(flat, starts))
        slack.append((NEAR + _ROUNDING) * size + NEAR * sizes * _typical(flat))
    all_sums, all_slack = np.concatenate(sums), np.concatenate(slack)
    all_sums[0], all_slack[0] = all_sums.sum(), all_slack.sum()
    exact = hash_sample(sample, leave_out=_is_float)
    return Sketch(hash_sample(sample), exact, all_sums, all_slack)


def is_near(one: Sample, other: Sample) -> bool:
    """Return whether samples are equal within `NEAR`; non-floats must be equal.

    Both have the same inputs, types and shapes.
    """
    return all(_is_near(array, other[name]) for name, array in one.items())


def could_be_near(one: Sketch, other: Sketch) -> bool:
    """Return whether two samples may be near, from sketches with equal `exact`."""
    return bool(np.all(np.abs(one.sums - other.sums) <= one.slack + other.slack))


def unseen(
    calibration: Samples, searched: Sequence[Sketch], heldout: Samples, judged: Sequence[Sketch]
) -> list[int]:
    """Return the indices of held-out samples that are near no other, ascending.

    The search has already seen copies of calibration samples. It would also see copies of a
    held-out sample once that fails and joins the calibration: of these, only the first is returned.
    Only samples with similar sketches are loaded again.

    Args:
        calibration: Samples of the search.
        searched: Sketch of each calibration sample.
        heldout: Samples to judge on.
        judged: Sketch of each held-out sample.
    """
    known, chosen = _Known(), []
    for index, seen in enumerate(searched):
        known.add(seen, partial(calibration.load, index))
    for index, seen in enumerate(judged):
        load = partial(heldout.load, index)
        if not known.has(seen, load):
            chosen.append(index)
            known.add(seen, load)
    return chosen


class _Known:
    """Samples already taken; finds those near a given one."""

    def __init__(self) -> None:
        self._taken: list[tuple[Sketch, Callable[[], Sample]]] = []
        self._copies: set[str] = set()
        self._places: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        self._slack: defaultdict[str, float] = defaultdict(float)

    def add(self, seen: Sketch, load: Callable[[], Sample]) -> None:
        self._copies.add(seen.sha256)
        self._slack[seen.exact] = max(self._slack[seen.exact], float(seen.slack[0]))
        insort(self._places[seen.exact], (float(seen.sums[0]), len(self._taken)))
        self._taken.append((seen, load))

    def has(self, seen: Sketch, load: Callable[[], Sample]) -> bool:
        if seen.sha256 in self._copies:
            return True
        places = self._places[seen.exact]
        total, slack = float(seen.sums[0]), float(seen.slack[0]) + self._slack[seen.exact]
        first = bisect_left(places, (total - slack, 0))
        last = bisect_right(places, (total + slack, len(self._taken)))
        near = (self._taken[place] for _, place in places[first:last])
        return any(could_be_near(known, seen) and is_near(load(), other()) for known, other in near)


def _is_near(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if not _is_float(one):
        return np.array_equal(one, other)
    left, right = np.ravel(one).astype(np.float64), np.ravel(other).astype(np.float64)
    # If zeros changed a little, only the other sample shows what is typical.
    typical = max(_typical(left), _typical(right))
    return bool(np.all(np.abs(left - right) <= NEAR * (np.abs(left) + typical)))


def _is_float(array: NDArray[Any]) -> bool:
    return array.dtype.name.startswith(("float", "bfloat"))


def _typical(flat: NDArray[np.float64]) -> float:
    """Return the median magnitude of non-zero elements; 0 if all are zero."""
    some = np.abs(flat[:: max(1, flat.size // _TYPICAL)])
    some = some[some > 0]
    return float(np.median(some)) if some.size else 0.0
