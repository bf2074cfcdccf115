"""Attention masks whose constants are so large that a score pushes them over the edge."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.graph.walk import consumers, low_consumers
from halfwise.records import Guard

_SHARE_OF_RANGE = 0.25
"""Below -0.25 · max a few masks and scores that add up leave the range; -1e4, the usual choice for
FP16 (huggingface/transformers PR 17306), stays above."""
_PATH = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Neg", "Sum"))
"""Operators between a mask constant and its Softmax."""
_LONGEST_PATH = 8
"""Nodes between a mask constant and its Softmax; exporters write at most Sub, Mul, Add, Clip."""
_SEVERITY_OF_SUM = 0.7
"""NaN, but only where a row is masked as a whole."""
_SEVERITY_OF_CHOICE = 0.2
"""A selected constant meets no score: it stays finite."""


def mask_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield mask guards: finite constants ≤ -0.25 · `fmt.max` on the way into a Softmax.

    A constant that is added leaves the range together with a score: -65504 - 16 is -inf in FP16.
    One masked score may be -inf, but a row of them makes the Softmax 0/0 = NaN. All of it is
    possible only: whether a row is masked as a whole shows in no range. The nodes are those between
    the constant and the Softmax, and the Softmax.
    """
    edge = -_SHARE_OF_RANGE * evidence.fmt.max
    for value in evidence.constants:
        if (lowest := evidence.span(value)[0]) <= edge:
            yield from _mask(evidence, value, lowest)


def _mask(evidence: Evidence, value: ir.Value, lowest: float) -> list[Guard]:
    path = _way_to_softmax(evidence, value)
    if not path:
        return []
    added = next((n for n in path if n.op_type in ("Add", "Sub", "Sum")), None)
    end = path[-1]
    message = (
        f"mask constant {value.name} = {lowest:.2g} plus a score goes beyond "
        f"{evidence.format_name}'s {-evidence.fmt.max:.6g} to -inf before {end.name} "
        f"({end.op_type}), and a row masked as a whole becomes NaN"
        if added is not None
        else f"mask constant {value.name} = {lowest:.2g} is selected before {end.name} "
        f"({end.op_type}), at or beyond the edge of {evidence.format_name}'s range"
    )
    return evidence.guard(
        "mask",
        added or end,
        value,
        message=message,
        fix="Mask with -1e4 instead: its exponential is zero as well beside scores within ±4000. "
        "Rows masked as a whole come out differently.",
        nodes=path,
        severity=_SEVERITY_OF_SUM if added is not None else _SEVERITY_OF_CHOICE,
    )


def _way_to_softmax(evidence: Evidence, value: ir.Value) -> list[ir.Node]:
    """Return the compute nodes from `value` to the nearest Softmax behind it, the Softmax last."""
    paths: list[tuple[ir.Value, list[ir.Node]]] = [(value, [])]
    seen = {value}
    for current, path in paths:
        readers = [n for n, _ in consumers(current, evidence.roles)]
        for node in readers:
            if node.op_type in ("Softmax", "LogSoftmax"):
                return [*path, node]
        if written := _written_softmax(evidence, current):
            return [*path, *written]
        for node in readers:
            output = node.outputs[0]
            if node.op_type in _PATH and output not in seen and len(path) < _LONGEST_PATH:
                seen.add(output)
                paths.append((output, [*path, node]))
    return []


def _written_softmax(evidence: Evidence, value: ir.Value) -> list[ir.Node]:
    """Return the ReduceMax, the Sub and its Exp that begin a written-out Softmax of `value`."""
    begin = low_consumers(value, evidence.roles)
    subtract = [n for n in begin if n.op_type == "Sub"]
    exps = [
        e
        for s in subtract
        for e in low_consumers(s.outputs[0], evidence.roles)
        if e.op_type == "Exp"
    ]
    return [*(n for n in begin if n.op_type == "ReduceMax"), *subtract, *exps] if exps else []
