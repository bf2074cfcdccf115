"""Differences of nearly equal values, which uncover the rounding of their operands."""

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence, number, percent
from halfwise.fixing.attribute.repairs import subtracting
from halfwise.fixing.attribute.severity import SIGNIFICANT, Band, graded
from halfwise.graph.patterns.reading import square_of
from halfwise.graph.walk import constant_behind, upstream
from halfwise.records import Guard

_SEVERITY_OF_ZEROS = 0.5
"""Mostly zero results: operands equal by design (x - x, 1 - mask) lose nothing."""

_LINEAR = frozenset(("GlobalAveragePool", "Neg", "ReduceMean", "ReduceSum"))
"""Operators that hand the errors of their input on, without adding much of their own."""


def cancellation_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield cancellation guards: Add and Sub whose result is far smaller than their operands.

    Operands stored with the unit roundoff u = 2^-precision leave the result of a ± b with a
    relative error of up to u · max(|a|, |b|) / |a ± b| from each (Higham 2002, "Accuracy and
    Stability of Numerical Algorithms", 1.7). A guard is raised where this, with the median of the
    ratio over the elements, exceeds `SIGNIFICANT`: a ratio above 20.5 in FP16 and 2.6 in BF16.

    The nodes are the subtraction and the producers of its operands, through data movement and
    through nodes that hand errors on as they are (sums, means, factors). A square hands on twice
    the relative error of what it squares; it is followed to what only one operand is made of: in
    E[x²] - E[x]² to the mean but not to x, since the variance of a rounded x is nearly that of x.
    What reads the result is left out: it is small, and a floating-point format stores small values
    as well as others.
    """
    unit = 2.0**-evidence.fmt.precision
    for node, seen in evidence.inside("cancellation"):
        error = seen.value * unit
        if error <= SIGNIFICANT:
            continue
        zeros = math.isinf(seen.value)
        ratio = (
            f"mostly cancel to zero in {seen.node} ({seen.op})"
            if zeros
            else f"cancel in {seen.node} ({seen.op}): they are {number(seen.value)} times the "
            f"result, which keeps an error of about {percent(min(error, 1.0))}"
        )
        yield from evidence.guard(
            "cancellation",
            node,
            node.outputs[0],
            message=f"operands rounded to {evidence.format_name} {ratio}"
            f"{evidence.where(seen.worst_sample)}",
            fix=evidence.norm_fix(node, subtracting(node)),
            nodes=[node, *_origins(evidence, node)],
            severity=_SEVERITY_OF_ZEROS if zeros else graded(Band.INEXACT, error / SIGNIFICANT),
        )


def _origins(evidence: Evidence, node: ir.Node) -> set[ir.Node]:
    def hands_on(source: ir.Node) -> Sequence[ir.Value | None]:
        scales = source.op_type in ("Mul", "Div") and any(
            constant_behind(v, evidence.roles) is not None for v in source.inputs
        )
        return source.inputs if scales or source.op_type in _LINEAR else ()

    def doubles(source: ir.Node) -> Sequence[ir.Value | None]:
        square = square_of(source.outputs[0]) if source.op_type in ("Mul", "Pow") else None
        return (square.value,) if square else hands_on(source)

    direct = {n for v in node.inputs for n in upstream(v, evidence.roles, hands_on)}
    left, right = (set(upstream(v, evidence.roles, doubles)) for v in node.inputs)
    return direct | (left ^ right)
