"""Element statistics of a tensor: the effect of a format, and how close choices are."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.probe import View
from halfwise.formats import Format
from halfwise.graph.model import constant_array, tensor_name
from halfwise.graph.roles import is_float
from halfwise.records import Detail, Histogram, replace

_BLOCK = 1 << 14
"""Elements counted at a time: the allocator keeps arrays of this size, and page faults on larger
ones would take three times as long as the counting itself."""
_INFINITY = 0x7F800000
_FIRST_EXPONENT = -149
_FEWEST_COUNTED = 3
"""Different whole numbers from which a tensor counts something: masks have two."""


class DetailCounter:
    """Counts the elements of a tensor by exponent.

    It works on the bits: magnitudes of binary32 are ordered like their bits, and the exponent is a
    shift.
    """

    def __init__(self, fmt: Format) -> None:
        """Start with no elements.

        Args:
            fmt: The low format of `detail`.
        """
        self._fmt = fmt
        self._exponents = np.zeros(256, np.int64)
        self._tiny = np.zeros(-126 - _FIRST_EXPONENT, np.int64)
        self._zeros, self._smallest = 0, _INFINITY
        self._whole, self._changed = True, False

    def add(self, array: NDArray[np.float32]) -> None:
        """Count the elements of f32[*shape]; NaN and infinities do not count."""
        bits = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint32)
        for start in range(0, bits.size, _BLOCK):
            self._add_block(bits[start : start + _BLOCK] & np.uint32(0x7FFFFFFF))

    def detail(self, samples: int) -> Detail:
        """Return the statistics (`detail_of`); `samples` is how many samples were added."""
        counts = np.concatenate([self._tiny, self._exponents[1:255]])
        filled = np.flatnonzero(counts)
        first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 0)
        histogram = Histogram(
            first=first + _FIRST_EXPONENT if filled.size else 0,
            counts=tuple(counts[first:last].tolist()),
            zeros=self._zeros,
        )
        smallest = float(np.uint32(self._smallest).view(np.float32))
        detail = detail_of(histogram, smallest, samples, self._fmt)
        return replace(detail, integers=self._whole and self._changed)

    def _add_block(self, magnitudes: NDArray[np.uint32]) -> None:
        exponents = np.bincount(magnitudes >> 23, minlength=256)
        self._exponents += exponents
        # Zero wraps around to the largest integer, so the minimum skips zeros.
        self._smallest = min(self._smallest, int((magnitudes - np.uint32(1)).min()) + 1)
        if exponents[0]:
            small = magnitudes[(magnitudes > 0) & (magnitudes < 1 << 23)]
            self._zeros += int(exponents[0]) - small.size
            self._tiny += np.bincount(np.frexp(small)[1] - 1, minlength=self._tiny.size)
        if self._whole:
            values = magnitudes.view(np.float32)
            values = values[values <= self._fmt.max]
            self._whole = bool((values == np.rint(values)).all())
            if self._whole and (self._fmt.round(values) != values).any():
                self._changed |= np.unique(values).size >= _FEWEST_COUNTED


def detail_of(histogram: Histogram, smallest: float, samples: int, fmt: Format) -> Detail:
    """Return the statistics of a tensor of which the histogram is known.

    Shares are those of whole binades: the last numbers before 2^16 that overflow in FP16, and the
    last before the smallest normal one that do not become subnormal, count as their neighbours.
    `overflow` and `subnormal` are over the finite elements, `flush` over the non-zero ones; all are
    0 if there are none.
    """
    binades = histogram.binades
    nonzero = sum(binades.values())
    flushed, normal, beyond = (
        math.frexp(limit)[1] - 1
        for limit in (fmt.flush_threshold, fmt.smallest_normal, 2 * fmt.max)
    )
    every = max(1, nonzero + histogram.zeros)
    return Detail(
        smallest_nonzero=smallest,
        overflow=sum(n for k, n in binades.items() if k >= beyond) / every,
        flush=sum(n for k, n in binades.items() if k < flushed) / max(1, nonzero),
        subnormal=sum(n for k, n in binades.items() if flushed <= k < normal) / every,
        histogram=histogram,
        samples=samples,
    )


_RANKING = ("ArgMax", "ArgMin", "TopK")


def margin_view(node: ir.Node, fmt: Format, add: Callable[[float, int], None]) -> View | None:
    """Return the view that measures the margin of a node; None if the node does not choose.

    Args:
        node: Any node.
        fmt: The low format, the unit of margins.
        add: Called as `add(margin, sample)` for each sample.
    """
    suppresses = node.op_type == "NonMaxSuppression"
    if not suppresses and node.op_type not in _RANKING:
        return None
    scores = node.inputs[1 if suppresses else 0]
    if scores is None or not is_float(scores) or not varies(scores):
        return None
    slot, fixed = (4, -np.inf) if suppresses else (1, node.attributes.get_int("k", 1))
    # How many are chosen, or a threshold, without which every box competes.
    limit = node.inputs[slot] if len(node.inputs) > slot else None
    if limit is not None and not varies(limit):
        fixed, limit = constant_array(limit).item(), None
    axis = node.attributes.get_int("axis", -1 if node.op_type == "TopK" else 0)
    smallest = node.op_type == "ArgMin" or not node.attributes.get_int("largest", 1)

    def visit(sample: int, array: NDArray[np.float32], *given: NDArray[Any]) -> None:
        chosen = given[0].item() if given else fixed
        if suppresses:
            add(rank_margin(array, float(chosen), fmt), sample)
        else:
            add(margin(-array if smallest else array, int(chosen), axis, fmt), sample)

    tensors = (scores,) if limit is None else (scores, limit)
    return View(tuple(tensor_name(v) for v in tensors), visit)


def varies(value: ir.Value | None) -> bool:
    """Return whether a value is given and not an initializer."""
    return value is not None and not value.is_initializer()


def margin(scores: NDArray[np.float32], k: int, axis: int, fmt: Format) -> float:
    """Return the smallest gap between the k-th and the next largest score, in spacings of `fmt`.

    Args:
        scores: f32[*shape].
        k: Number of scores chosen along `axis`.
        axis: The axis of the ranking; negative counts from the end.
        fmt: The format whose spacing at the k-th score is the unit.

    Returns:
        At least 0; NaN if nothing can be confused: none or all are chosen, there are no rows, or no
        row has a finite k-th score. A rejected -inf counts as a gap of inf.
    """
    ranked = np.moveaxis(scores, axis, -1)
    n = ranked.shape[-1]
    if not 0 < k < n:
        return float("nan")
    ranked = np.partition(ranked, (n - k - 1, n - k), axis=-1)
    chosen, rejected = (ranked[..., i].astype(np.float64) for i in (n - k, n - k - 1))
    finite = np.isfinite(chosen)
    chosen, rejected = chosen[finite], rejected[finite]
    gaps = (chosen - rejected) / fmt.ulps(np.abs(chosen))
    return float(gaps.min()) if chosen.size else float("nan")


def rank_margin(scores: NDArray[np.float32], threshold: float, fmt: Format) -> float:
    """Return the smallest gap between neighbours in the ranking of scores, in spacings of `fmt`.

    Non-maximum suppression takes boxes by score, so the order of any two may decide which of them
    survives, and a threshold decides which compete.

    Args:
        scores: f32[*batch, boxes].
        threshold: Scores up to this do not compete; the lowest competing score is compared with it.
        fmt: The format whose spacing at the larger of two scores is the unit.

    Returns:
        Above 0; NaN if fewer than two finite numbers compete. Equal scores do not count: rounding
        leaves them equal.
    """
    gaps = [np.empty(0)]
    for index in np.ndindex(scores.shape[:-1]):
        row = scores[index].astype(np.float64)
        competing = row[np.isfinite(row) & (row > threshold)]
        if np.isfinite(threshold):
            competing = np.append(competing, threshold)
        ranked = np.unique(competing)
        gaps.append(np.diff(ranked) / fmt.ulps(np.abs(ranked[1:])))
    smallest = np.concatenate(gaps)
    return float(smallest.min()) if smallest.size else float("nan")
