"""Logarithms and denominators of values that lie below the rounding errors of what made them."""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence, number, percent
from halfwise.fixing.attribute.severity import SIGNIFICANT, Band, graded
from halfwise.graph.amplifiers import SUMS, amplifiers, hands_on
from halfwise.graph.model import node_name
from halfwise.graph.walk import producers, upstream
from halfwise.records import Guard, NodeName

_LOST_DIGIT = 10.0
"""A sum cancels where its results have lost a decimal digit against its terms."""


def floor_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield floor guards: a logarithm or divisor reads values that cancelling sums made.

    The rounding of large terms leaves the same absolute error in every result of a sum, also where
    the terms cancel: quiet bins of a spectrum, say. Relative to such a result s = Σ aᵢ the error is
    up to u · Σ|aᵢ| / |s| (Higham 2002, "Accuracy and Stability of Numerical Algorithms", 4.2). A
    logarithm makes it an absolute error, and a division one of large results.

    Named where what is read is off by more than `SIGNIFICANT`, and by more than ten unit roundoffs:
    the largest relative error of an element, measured with everything rounded, exponents apart
    ("roundoff"). The sum is the nearest one behind it whose error is ten times that of its terms.
    The nodes are the reader and what leads to it, up to where values are accurate again, and to
    operators that neither sum nor scale. A sum with a cancellation guard of its own is not named
    again. Possible only: the largest error may be that of one
    element, and where it counts is for the outputs to say.
    """
    errors = {seen.node: seen.value for _, seen in evidence.inside("roundoff")}
    unit = 2.0**-evidence.fmt.precision
    limit = max(SIGNIFICANT, _LOST_DIGIT * unit)

    def error(value: ir.Value | None) -> float:
        makers = producers(value, evidence.roles)
        return max((errors.get(node_name(n), 0.0) for n in makers), default=unit)

    def inexact(node: ir.Node) -> Sequence[ir.Value | None]:
        return node.inputs if hands_on(node) and errors.get(node_name(node), 0) > limit else ()

    # Where most differences cancel, the guard on the difference itself says it.
    named = {s.node for _, s in evidence.inside("cancellation") if s.value * unit > SIGNIFICANT}
    for reader, value in amplifiers(evidence.network, evidence.roles):
        if error(value) <= limit:
            continue
        behind = upstream(value, evidence.roles, inexact)
        origin = next(
            (
                n
                for n in behind
                if n.op_type in SUMS
                and errors.get(node_name(n), 0.0) > _LOST_DIGIT * max(unit, *map(error, n.inputs))
            ),
            None,
        )
        if origin is None or node_name(origin) in named:
            continue
        named.add(node_name(origin))
        yield from _guard(evidence, reader, origin, behind, errors, error(value))


def _guard(
    evidence: Evidence,
    reader: ir.Node,
    origin: ir.Node,
    behind: list[ir.Node],
    errors: dict[NodeName, float],
    read: float,
) -> list[Guard]:
    results = (
        "its smallest results are nothing but rounding error"
        if errors[node_name(origin)] >= 1
        else f"results are off by up to {percent(errors[node_name(origin)])}"
    )
    off = f"{number(read)} times themselves" if read >= 1 else percent(read)
    return evidence.guard(
        "floor",
        origin,
        origin.outputs[0],
        message=f"{origin.name} ({origin.op_type}) adds up terms that cancel, so that in "
        f"{evidence.format_name} {results}; {reader.name} ({reader.op_type}) needs small values to "
        f"their own scale and reads some that are off by {off}",
        fix="Keep the way from the signal to the logarithm or divisor in FP32: an eps above the "
        "rounding error changes small results.",
        nodes=[reader, *behind],
        severity=graded(Band.POSSIBLE, read / SIGNIFICANT),
    )
