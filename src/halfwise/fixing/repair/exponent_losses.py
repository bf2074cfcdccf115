"""The cost of exponents: from the ranges of tensors and constants to convex losses."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from halfwise.fixing.attribute.evidence import SIGNIFICANT, Evidence
from halfwise.fixing.attribute.ranges import ADDENDS
from halfwise.formats import Format
from halfwise.graph.model import tensor_name
from halfwise.graph.scaling import Constant, Relations
from halfwise.graph.sensitivity import MASK_SHARE, masked_by_constants
from halfwise.records import Observation, TensorName

BIT = 4.0
"""Cost of one lost bit of every element, in Muls: a quarter of a bit is worth one."""
ADDED = 0.05
"""The same for a constant added to something larger: it is never worth a Mul."""
_OCTAVE = 0.25
"""Cost of one octave by which the smallest element misses `SIGNIFICANT` accuracy, as a share of a
bit: it is one element of many."""
_SHARES = (1e-3, 1e-2, 0.1, 0.5, 1.0)
"""Shares of the elements at which the slope of a loss changes; it never exceeds the true loss."""
ROOM = 6
"""Octaves that should stay free on both sides, beyond the headroom: 2^6 and more squares of values
eight times as large as those seen."""
_SPARE = 0.03
"""Cost of missing room: of its square above, in octaves, as overflow is worse than lost bits; and
of what would be lost below, as a share."""
SUM = 0.05
"""Cost of one octave by which a running sum inside an op leaves the range where sums are in FP32:
other runtimes sum in the low format. Hardly worth a Mul, but it decides where one goes: before the
sum. So one that overflows asks for `ROOM` as well, and follows whatever else needs the factor."""
FARTHEST = 30
"""The largest exponent of a tensor: FP16 spans 40 binades, so none needs more."""
Line = tuple[float, float]


@dataclass(frozen=True)
class Loss:
    """The cost of storing something times 2^e: convex in e.

    Attributes:
        limit: The largest e that fits the range; None if any does.
        lines: (a, b): the cost is at least a - b·e, for each; 0 at least.
        least: The same for the smallest element alone.
    """

    limit: int | None = None
    lines: tuple[Line, ...] = ()
    least: Line = (0.0, 0.0)

    def cost(self, e: int) -> float:
        """Return the loss, ignoring the range."""
        return max(0.0, *(a - b * e for a, b in (*self.lines, self.least)))

    def with_room(self) -> "Loss":
        """Return the loss of all but the smallest element, plus a little for missing `ROOM`.

        It weighs room above against bits, while the true loss pays for every bit of the smallest
        element up to the very limit.
        """
        many = Loss(lines=self.lines)

        def cost(e: int) -> float:
            short = 0 if self.limit is None else max(0, e + ROOM - self.limit)
            return many.cost(e) + _SPARE * (short**2 + self.cost(e - ROOM))

        costs = [(e, cost(e)) for e in range(-FARTHEST, FARTHEST + 1)]
        slopes = {round(b - a, 9): (e, a) for (e, a), (_, b) in pairwise(costs)}
        return Loss(self.limit, tuple((a - slope * e, -slope) for slope, (e, a) in slopes.items()))


NOTHING = Loss()


def losses(
    evidence: Evidence, found: Relations, problems: Mapping[TensorName, float]
) -> Iterator[tuple[TensorName, Loss]]:
    """Yield the costs of the exponents of tensors, edges and constants, by name.

    Args:
        evidence: Observations.
        found: The names.
        problems: Cost per bit, for the tensors and constants whose present losses count too.
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
    """Yield magnitudes of sums and squares inside the nodes that make tensors.

    In units of the tensor: for a root of squares, the root.
    """
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
    """Return the cost of the exponents of an observed tensor.

    The limit keeps `headroom` times its range below the overflow threshold; there is none if masks
    are its largest elements. Sums inside its node count in it if they are low, else cost `SUM`. The
    loss is in bits of elements below the smallest normal number; without a `weight`, bits lost
    already do not count. With one, its smallest element should also have an accuracy of
    `SIGNIFICANT`.
    """
    fmt, most = evidence.fmt, evidence.fmt.overflow_threshold / evidence.headroom
    limit = _limit(most, seen.absmax, strict=True)
    within = limit if inside is None else _limit(most, max(seen.absmax, inside), strict=True)
    summed: tuple[Line, ...] = ()
    if evidence.accumulate == "fp16":
        limit = within
    elif within is not None and within != limit:
        summed = ((-SUM * (within - ROOM * (within < 0)), -SUM),)
    if limit is not None and limit < 0 and weight is None:
        value = evidence.values.get(seen.tensor)
        seen_too = dict(evidence.tensors)
        if value is None or masked_by_constants(
            value, evidence.roles, seen_too, MASK_SHARE * fmt.max
        ):
            limit = None
    if seen.detail is None or not seen.detail.histogram.counts:
        return Loss(limit, summed)
    histogram = seen.detail.histogram
    binades = {histogram.first + i: n for i, n in enumerate(histogram.counts) if n}
    lines = (*_lines(binades, fmt, weight), *summed)
    return Loss(limit, lines, _accurate(fmt, seen, weight) if weight else (0.0, 0.0))


def _constant(evidence: Evidence, constant: Constant, weight: float | None) -> Loss:
    """Return the cost of the exponents of a constant; it does not grow, so without headroom.

    A constant that is added needs the accuracy of the smallest sum seen; its own bits hardly count.
    One beyond the range that is not a problem, such as a mask, saturates.
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
        return Loss(limit, lines, (min(a, 0.0), b))
    return Loss(limit, lines)


def _accurate(fmt: Format, seen: Observation, weight: float) -> Line:
    """Return the cost of an error above `SIGNIFICANT` in the smallest element."""
    smallest = math.inf if seen.detail is None else seen.detail.smallest_nonzero
    if math.isinf(smallest):
        return 0.0, 0.0
    least = math.log2(fmt.smallest_subnormal / 2 / SIGNIFICANT)
    return weight * _OCTAVE * (least - math.log2(smallest)), weight * _OCTAVE


def _limit(largest: float, magnitude: float, *, strict: bool = False) -> int | None:
    """Return the largest e for which magnitude · 2^e is at most (or below) `largest`."""
    if not magnitude:
        return None
    e = math.floor(math.log2(largest / magnitude))
    return e - (strict and math.ldexp(magnitude, e) >= largest)


def _lines(
    binades: Mapping[int, int], fmt: Format, weight: float | None, otherwise: float = BIT
) -> tuple[Line, ...]:
    """Return the lines of Σ share · bits lost: all with a weight, else only additional ones."""
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
