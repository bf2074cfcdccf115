"""Running sums in the low format: too large on the way, or too long."""

from collections.abc import Iterator
from math import ceil, prod

import onnx_ir as ir

from halfwise.emulation.accumulate import BLOCK
from halfwise.fixing.attribute.evidence import Evidence, percent
from halfwise.fixing.attribute.severity import SIGNIFICANT
from halfwise.graph.patterns.reading import axes_of
from halfwise.records import Guard, InnerObservation

_SEVERITY_OF_SUM = 0.9
"""Σ|x| bounds the running sum but is reached only if no terms cancel."""
_SEVERITY_OF_LENGTH = 0.7
"""The bound on the error is reached where all terms have one sign and the sum stops growing."""
_FIX = "Accumulate in FP32."


def sum_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield sum guards; only where running sums are in the low format.

    - Σ|x| inside an op reaches `fmt.overflow_threshold`.
    - The sum is so long that rounding it once per block may lose more than `SIGNIFICANT` of Σ|x|:
      m additions lose up to m · u, u = 2^-precision the unit roundoff (Higham 2002, "Accuracy and
      Stability of Numerical Algorithms", 4.2). In FP16 that is from 21 additions on, 337 terms in
      blocks of 16. Only where shapes tell the number of terms.

    Possible only, both of them: terms of both signs keep running sums small.
    """
    if evidence.accumulate != "fp16":
        return
    for node, seen in evidence.inside("sum"):
        additions = ceil((_terms(node) or 1) / BLOCK) - 1
        lost = additions * 2.0**-evidence.fmt.precision
        if seen.value >= evidence.fmt.overflow_threshold:
            message = (
                f"can reach {seen.value:.2g}, beyond {evidence.fmt.max:.6g}"
                f"{evidence.where(seen.worst_sample)}"
            )
            yield from _guard(evidence, node, seen, message, _SEVERITY_OF_SUM)
        elif lost > SIGNIFICANT:
            message = (
                f"is rounded {additions + 1} times and may lose up to {percent(min(lost, 1.0))}"
            )
            severity = _SEVERITY_OF_LENGTH * min(lost, 1.0)
            yield from _guard(evidence, node, seen, message, severity)


def _guard(
    evidence: Evidence, node: ir.Node, seen: InnerObservation, message: str, severity: float
) -> list[Guard]:
    return evidence.guard(
        "sum",
        node,
        None,
        message=f"a running {evidence.format_name} sum inside {seen.node} ({seen.op}) {message}",
        fix=_FIX,
        nodes=[node],
        severity=severity,
    )


def _terms(node: ir.Node) -> int | None:
    """Return how many numbers are added one after the other, None where shapes do not tell.

    For a Conv the input channels: under each, one block takes the whole kernel.
    """
    match node.op_type:
        case "MatMul":
            return _size(node.inputs[0], (-1,)) or _size(node.inputs[1], (-2,))
        case "Gemm":
            axes = [node.attributes.get_int(f"trans{side}", 0) for side in "AB"]
            return _size(node.inputs[0], (1 - axes[0],)) or _size(node.inputs[1], (axes[1],))
        case "Conv":
            return _size(node.inputs[1], (1,))
        case "Softmax":
            return _size(node.inputs[0], (node.attributes.get_int("axis", -1),))
    return _size(node.inputs[0], axes_of(node))


def _size(value: ir.Value | None, axes: tuple[int, ...] | None) -> int | None:
    """Return the product of some dimensions (all for None), None where one is not known."""
    if value is None or value.shape is None:
        return None
    shape = list(value.shape)
    if axes is not None and not all(-len(shape) <= axis < len(shape) for axis in axes):
        return None
    sides = shape if axes is None else [shape[axis] for axis in axes]
    known = [side for side in sides if isinstance(side, int)]
    return prod(known) if len(known) == len(sides) else None
