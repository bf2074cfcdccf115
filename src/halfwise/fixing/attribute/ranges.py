"""Values beyond the range of the low format or close to it, in tensors and inside ops."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence, number, percent
from halfwise.fixing.attribute.repairs import rescaling
from halfwise.fixing.attribute.severity import Band, graded
from halfwise.graph.patterns.reading import square_of
from halfwise.graph.selection import selects_constants
from halfwise.graph.walk import low_consumers, moves
from halfwise.records import Guard, Observation

_SQUARED = {
    "LpNormalization": "Divide by the largest magnitude first.",
    "ReduceL2": "Divide by the largest magnitude before, and multiply by it afterwards.",
    "ReduceSumSquare": "Divide by the largest magnitude before, multiply by its square afterwards.",
}
"""Repairs of squares inside an op that leave its result as it is."""
_SEVERITY_OF_INNER_SQUARE = 0.8
"""An op may keep its squares in FP32, and the emulation does."""
_HEADROOM_WEIGHT = 0.5
"""Ranks a value that fits behind every suspicion about one that does not."""


def range_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield overflow, square and headroom guards.

    - "overflow", or "square" where the tensor is a square: absmax ≥ `fmt.overflow_threshold`, the
      smallest magnitude that rounds to infinity (IEEE 754-2019, 4.3.1).
    - "square" inside ReduceL2 and the like: Σx² or x² reaches the threshold while the result fits.
      Possible only, because ops may work in FP32 inside; certain with FP16 accumulation.
    - "headroom": absmax · headroom ≥ threshold though absmax is below it. Not for masks and the
      like, which select constants.

    A tensor that data movement copies from one out of range is not named again. The nodes are the
    producer and all consumers that compute, through data movement.
    """
    threshold = evidence.fmt.overflow_threshold
    for seen in evidence.observations.tensors:
        if seen.absmax * evidence.headroom >= threshold:
            yield from _tensor(evidence, seen)
    yield from _inner_squares(evidence)


def _tensor(evidence: Evidence, seen: Observation) -> list[Guard]:
    value = evidence.value(seen)
    if value is None:
        return []
    producer = value.producer()
    readers = low_consumers(value, evidence.roles)
    limit = evidence.fmt.overflow_threshold
    overflows = seen.absmax >= limit
    if producer is not None and _is_copy(evidence, producer, limit if overflows else seen.absmax):
        return []
    if producer is None and not readers:
        return []
    reach = limit / evidence.headroom
    if not overflows and selects_constants(value, evidence.roles, evidence.tensors, reach):
        return []
    square = square_of(value) if producer is not None else None
    subject = f"the square of {square.value.name}" if square else str(value.name)
    node = producer or readers[0]
    return evidence.guard(
        ("square" if square else "overflow") if overflows else "headroom",
        node,
        value,
        message=_message(evidence, subject, seen),
        fix=evidence.norm_fix(node, rescaling(evidence, value, up=False)),
        nodes=[node, *readers],
        severity=graded(Band.OVERFLOW, seen.absmax / limit)
        if overflows
        else _HEADROOM_WEIGHT * seen.absmax / limit,
    )


def _is_copy(evidence: Evidence, producer: ir.Node, limit: float) -> bool:
    """Return whether the elements that reach `limit` were there before `producer` moved them."""
    return moves(producer, evidence.roles) and any(
        evidence.absmax(v) >= limit for v in producer.inputs
    )


def _message(evidence: Evidence, subject: str, seen: Observation) -> str:
    where = evidence.where(seen.worst_sample)
    if seen.absmax < evidence.fmt.overflow_threshold:
        times = f"{evidence.fmt.max / seen.absmax:.3g}"
        return (
            f"{subject} reaches {number(seen.absmax)}{where}; {evidence.edge} is {times} times that"
        )
    share = seen.detail.overflow if seen.detail else 0.0
    elements = f", in {percent(share)} of its elements" if share else ""
    return f"{subject} reaches {number(seen.absmax)}, beyond {evidence.edge}{elements}{where}"


def _inner_squares(evidence: Evidence) -> Iterator[Guard]:
    limit = evidence.fmt.overflow_threshold
    for node, seen in evidence.inside("square"):
        # Where the result itself overflows, the guard on the tensor says it.
        if seen.value < limit or any(evidence.absmax(v) >= limit for v in node.outputs):
            continue
        certain = evidence.accumulate == "fp16"
        yield from evidence.guard(
            "square",
            node,
            None,
            message=f"inside {seen.node} ({seen.op}) the squares reach {number(seen.value)}, "
            f"beyond {evidence.edge}{evidence.where(seen.worst_sample)}",
            fix=_SQUARED.get(seen.op, ""),
            nodes=[node],
            severity=graded(Band.OVERFLOW, seen.value / limit)
            if certain
            else _SEVERITY_OF_INNER_SQUARE,
        )
