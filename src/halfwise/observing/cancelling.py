"""Cancellation: how much larger than its result the operands of a subtraction are."""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import starmap

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.probe import View
from halfwise.graph.model import constant_array, small_constant, tensor_name
from halfwise.graph.reading import moves, split_constant
from halfwise.graph.roles import is_float
from halfwise.observing.statistics import varies

CENTRING = frozenset(
    ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization")
)
"""Operators that subtract a mean from what they read."""

EXPONENTS = (-8.0, 12.0)
"""Exponents between which an exponential neither vanishes beside 1 nor overflows in FP16: e⁻⁸ is
below FP16's unit roundoff 2⁻¹¹, and e¹² is beyond 65504."""

# The drawn elements' median is within 0.4 % of the true median's rank, and finding it takes 2 ms.
_MEDIAN_ELEMENTS = 1 << 16


def cancellation_view(
    node: ir.Node, add: Callable[[float, int], None], worst: Callable[[], float]
) -> View | None:
    """Return the view that measures cancellation in a node; None if it subtracts nothing.

    Args:
        node: Any node.
        add: Takes a ratio (see `cancellation`) and the number of its sample.
        worst: Returns the largest ratio so far.
    """
    if node.op_type in ("Add", "Sub"):
        return _sum_view(node, add, worst)
    return _centring_view(node, add, worst) if node.op_type in CENTRING else None


def cancellation(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    sign: int,
    *,
    constant: bool = False,
    positive: bool = False,
    exponent: bool = False,
    beyond: float = -np.inf,
) -> float:
    """Return the median over elements of max(|a|, |b|) / |a ± b|.

    If the result is the exponent of e, the relative error of the power is the absolute one of the
    exponent: then of max(|a|, |b|) itself, over the exponents within `EXPONENTS` but zero, where
    both operands are the same number.

    Args:
        a: f32[*A].
        b: f32[*B], broadcastable with `a`.
        sign: +1 for a + b, -1 for a - b.
        constant: Whether an operand is a constant. Then results of zero do not count: a value equal
            to a constant, such as 1 in 1 - mask, rounds to the same number as the constant.
        positive: Whether only results above zero count, because readers clamp the others: for
            example, most pairs of boxes do not overlap, and their differences are dropped.
        exponent: Whether the result is only an exponent of e.
        beyond: Smaller medians are not computed: finding a median takes longer than all the rest.

    Returns:
        At least 0.5 unless `exponent`; inf if most results are zero. Elements do not count if an
        operand is not finite or both are zero; NaN if none are left, or if the median is at most
        `beyond`. Of more than 2¹⁶ elements, 2¹⁶ are drawn at random with a fixed seed.
    """
    shape = np.broadcast_shapes(a.shape, b.shape)
    wide_a, wide_b = (
        np.take(each, _drawn(shape, each.shape))
        if math.prod(shape) > _MEDIAN_ELEMENTS
        else np.broadcast_to(each, shape)
        for each in (a, b)
    )
    # In binary32 everything here is exact except the sum and the quotient.
    largest = np.maximum(np.abs(wide_a), np.abs(wide_b))
    combine = np.add if sign > 0 else np.subtract
    with np.errstate(divide="ignore", invalid="ignore"):
        total = combine(wide_a, wide_b, dtype=np.float64)
        counts = np.isfinite(largest) & (largest > 0)
        if constant or exponent:
            counts &= total != 0
        if exponent:
            counts &= (total > EXPONENTS[0]) & (total < EXPONENTS[1])
        if positive:
            counts &= total > 0
        if not counts.all():
            largest, total = largest[counts], total[counts]
        ratio = np.divide(largest, 1.0 if exponent else np.abs(total), dtype=np.float64)
    # If the median exceeds `beyond`, so do at least half of the elements.
    if 2 * np.count_nonzero(ratio > beyond) < ratio.size:
        return float("nan")
    median = float(np.median(ratio)) if ratio.size else float("nan")
    return median if median > beyond else float("nan")


@lru_cache(maxsize=32)
def _drawn(shape: tuple[int, ...], own: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the indices in an array of shape `own` that broadcast to those drawn from `shape`.

    They are in memory order; a median needs no particular order.
    """
    size = math.prod(shape)
    drawn = np.sort(np.random.default_rng(0).integers(size, size=_MEDIAN_ELEMENTS))
    if own == shape:
        return drawn
    places = np.broadcast_to(np.arange(math.prod(own)).reshape(own), shape)
    return places[np.unravel_index(drawn, shape)]


def _sum_view(
    node: ir.Node, add: Callable[[float, int], None], worst: Callable[[], float]
) -> View | None:
    sign = 1 if node.op_type == "Add" else -1
    operands = [v for v in node.inputs if v is not None]
    varying = [v for v in operands if varies(v)]
    if not varying or not all(map(is_float, operands)):
        return None

    counting = {
        "constant": len(varying) < len(operands),
        "positive": _clamped_at_zero(node.outputs[0]),
        "exponent": is_exponent(node.outputs[0]),
    }

    def visit(sample: int, *arrays: NDArray[np.float32]) -> None:
        seen = dict(zip(varying, arrays, strict=True))
        a, b = (
            np.asarray(seen[v] if v in seen else constant_array(v), np.float32) for v in operands
        )
        add(cancellation(a, b, sign, **counting, beyond=worst()), sample)

    return View(tuple(map(tensor_name, varying)), visit)


def _centring_view(
    node: ir.Node, add: Callable[[float, int], None], worst: Callable[[], float]
) -> View | None:
    value, means = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    constant = None if means is None else small_constant(means)
    if value is None or not is_float(value) or (means is not None and constant is None):
        return None

    def visit(sample: int, x: NDArray[np.float32]) -> None:
        if not x.size:
            return
        mean = _mean(node, x) if constant is None else constant.reshape(-1, *[1] * (x.ndim - 2))
        if np.broadcast_shapes(x.shape, mean.shape) == x.shape:
            add(cancellation(x, mean, -1, beyond=worst()), sample)

    return View((tensor_name(value),), visit)


@np.errstate(over="ignore", invalid="ignore")
def _mean(node: ir.Node, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what a norm takes off a non-empty f32[*S], broadcastable with it.

    It is NaN or inf, without a warning, where x or its sum is.
    """
    first = 2
    if node.op_type == "LayerNormalization":
        first = node.attributes.get_int("axis", -1) % max(x.ndim, 1)
    if node.op_type != "GroupNormalization":
        axes = tuple(range(first, x.ndim))
        return np.asarray(np.mean(x, axis=axes, keepdims=True), np.float32)
    parts = x.reshape(x.shape[0], node.attributes.get_int("num_groups", 1), -1)
    shape = (x.shape[0], x.shape[1], *[1] * (x.ndim - 2))
    mean = np.mean(parts, axis=2)
    return np.repeat(mean, x.shape[1] // mean.shape[1], axis=1).reshape(shape)


def is_exponent(value: ir.Value) -> bool:
    """Return whether all that `value` does, moved or masked or not, is to be an exponent of e."""

    def raises(node: ir.Node, slot: int) -> bool:
        copies = slot > 0 if node.op_type == "Where" else slot == 0 and moves(node)
        return node.op_type == "Exp" or (copies and all(map(is_exponent, node.outputs)))

    uses = [(use.node, use.idx) for use in value.uses()]
    return bool(uses) and not value.is_graph_output() and all(starmap(raises, uses))


def _clamped_at_zero(value: ir.Value) -> bool:
    """Return whether every reader replaces negative elements of `value` with a constant."""
    uses = [(use.node, use.idx) for use in value.uses()]
    if any(node.op_type == "Clip" and slot for node, slot in uses):
        return False  # A bound: as the upper one, it passes on what is negative.
    bounds = [split_constant(n.outputs[0], "Max", "Clip") for n, _ in uses if n.op_type != "Relu"]
    is_read = bool(uses) and not value.is_graph_output()
    return is_read and all(b is not None and b[1] >= 0.0 for b in bounds)
