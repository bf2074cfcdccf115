"""What exponents cost: from the ranges of tensors and constants to convex losses."""

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate

from halfwise.fixing.attribute.evidence import SIGNIFICANT, Evidence
from halfwise.fixing.attribute.ranges import ADDENDS
from halfwise.fixing.repair.exponent_program import Loss
from halfwise.formats import Format
from halfwise.graph.model import tensor_name
from halfwise.graph.saturating import MASK_SHARE, masked_by_constants
from halfwise.graph.scaling import Constant, Relations
from halfwise.records import Observation, TensorName

BIT = 4.0
"""What one lost bit of every element costs, in Muls: a quarter of a bit is worth one."""
ADDED = 0.05
"""That of a constant that is added to something larger: only where it costs no Mul."""
_OCTAVE = 0.25
"""What one octave costs that the smallest element is below what has `SIGNIFICANT` accuracy, as a
share of a bit: it is one of many."""
_SHARES = (1e-3, 1e-2, 0.1, 0.5, 1.0)
"""Shares of the elements at which the slope of a loss changes; it is not above the true one."""
Line = tuple[float, float]


def losses(
    evidence: Evidence, found: Relations, problems: Mapping[TensorName, float]
) -> Iterator[tuple[TensorName, Loss]]:
    """Yield what the exponents of tensors, edges and constants cost, by name.

    Args:
        evidence: What was observed.
        found: The names.
        problems: What a bit costs of tensors and constants of which it counts too what they lose
            today.
    """
    inside = dict(_inside(evidence))
    read: dict[TensorName, Loss] = {}
    for name in found.tensors:
        seen = evidence.tensors.get(name)
        if seen is not None:
            read[name] = _tensor(evidence, seen, None, problems.get(name))
            reached = inside.get(name)
            stored = reached and _tensor(evidence, seen, reached, problems.get(name))
            yield name, stored or read[name]
    yield from ((n, read[e.tensor]) for n, e in found.edges.items() if e.tensor in read)
    for name, constant in found.constants.items():
        if constant.value is not None:
            weight = problems.get(tensor_name(constant.value))
            yield name, _constant(evidence, constant, weight)


def _inside(evidence: Evidence) -> Iterator[tuple[TensorName, float]]:
    """Yield what sums and squares reach inside the nodes that make tensors, where these are low.

    In units of the tensor: of a root of squares, the root.
    """
    if evidence.accumulate == "fp16":
        for node, seen in (*evidence.inside("sum"), *evidence.inside("square")):
            root = seen.kind == "square" and node.op_type == "ReduceL2"
            if node.op_type != "Softmax":
                limit = evidence.fmt.overflow_threshold / evidence.headroom
                yield (
                    tensor_name(node.outputs[0]),
                    math.sqrt(seen.value * limit) if root else seen.value,
                )


def _tensor(
    evidence: Evidence, seen: Observation, inside: float | None, weight: float | None
) -> Loss:
    """Return what exponents of an observed tensor cost.

    The limit keeps `headroom` times its range below the threshold of overflow; where masks are its
    largest elements, there is none. What is lost are the bits of elements below the smallest normal
    number, those that are lost today not counted without a `weight`. With one, its smallest
    element, too, should have an accuracy of `SIGNIFICANT`.
    """
    fmt = evidence.fmt
    largest = max(seen.absmax, inside or 0.0)
    limit = _limit(fmt.overflow_threshold / evidence.headroom, largest, strict=True)
    if limit is not None and limit < 0 and weight is None:
        value = evidence.values.get(seen.tensor)
        seen_too = dict(evidence.tensors)
        if value is None or masked_by_constants(
            value, evidence.roles, seen_too, MASK_SHARE * fmt.max
        ):
            limit = None
    if seen.detail is None or not seen.detail.histogram.counts:
        return Loss(limit)
    histogram = seen.detail.histogram
    binades = {histogram.first + i: n for i, n in enumerate(histogram.counts) if n}
    lines = _lines(binades, fmt, weight)
    return Loss(limit, (*lines, _accurate(fmt, seen, weight)) if weight else lines)


def _constant(evidence: Evidence, constant: Constant, weight: float | None) -> Loss:
    """Return what exponents of a constant cost; it does not grow, so without headroom.

    One that is added is as accurate as the smallest sum seen asks for; its own bits hardly count.
    One beyond the range that is no problem saturates, such as a mask.
    """
    fmt = evidence.fmt
    limit = _limit(fmt.max, constant.magnitudes[1])
    if limit is not None and limit < 0 and weight is None:
        limit = None
    added = constant.slot in ADDENDS.get(constant.node.op_type, ()) and weight is None
    lines = _lines(constant.binades, fmt, weight, ADDED if added else BIT)
    seen = evidence.observed(constant.node.outputs[0]) if added else None
    if seen is not None and seen.detail is not None:
        a, b = _accurate(fmt, seen, BIT)
        lines = (*lines, (min(a, 0.0), b))
    return Loss(limit, lines)


def _accurate(fmt: Format, seen: Observation, weight: float) -> Line:
    """Return what it costs that the smallest element is off by more than `SIGNIFICANT`."""
    smallest = math.inf if seen.detail is None else seen.detail.smallest_nonzero
    if math.isinf(smallest):
        return 0.0, 0.0
    least = math.log2(fmt.smallest_subnormal / 2 / SIGNIFICANT)
    return weight * _OCTAVE * (least - math.log2(smallest)), weight * _OCTAVE


def _limit(largest: float, magnitude: float, *, strict: bool = False) -> int | None:
    """Return the largest e for which magnitude · 2^e is at most (below) `largest`."""
    if not magnitude:
        return None
    e = math.floor(math.log2(largest / magnitude))
    return e - (strict and math.ldexp(magnitude, e) >= largest)


def _lines(
    binades: Mapping[int, int], fmt: Format, weight: float | None, otherwise: float = BIT
) -> tuple[Line, ...]:
    """Return the lines of Σ share · bits lost: all of it with a weight, else what is lost more."""
    total = sum(binades.values())
    if not total:
        return ()
    bit = otherwise if weight is None else weight
    normal = math.frexp(fmt.smallest_normal)[1] - 1
    levels = sorted(binades)
    below = list(accumulate(binades[k] / total for k in levels))
    moments = list(accumulate(binades[k] / total * (normal - k) for k in levels))
    lost = sum(binades[k] / total * max(0, normal - k) for k in levels)
    today = lost if weight is None else 0.0
    places = {
        next((i for i, b in enumerate(below) if b >= share), len(below) - 1) for share in _SHARES
    }
    return tuple((bit * (moments[i] - today), bit * below[i]) for i in sorted(places))
