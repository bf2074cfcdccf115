"""Decomposed Softmax and LogSoftmax, read exactly: one axis, nothing added to the sum."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.graph.model import Network, constant_array, is_standard
from halfwise.graph.patterns.reading import axes_of, scalar

BY_AXIS = 13
"""From this opset on, Softmax reduces one axis; before, it reduced all axes from its axis on."""


@dataclass(frozen=True, eq=False)
class WrittenSoftmax:
    """A Softmax or LogSoftmax that was read; `axis` is not negative."""

    op: str
    x: ir.Value
    output: ir.Value
    axis: int


def read_softmaxes(network: Network) -> Iterator[WrittenSoftmax]:
    """Yield exp(x) / Σ exp(x), exp(x) · (1 / Σ exp(x)) and x - log Σ exp(x), in graph order."""
    for node in network.nodes():
        exp = exponential_of(node)
        axis = None if exp is None else summed_axis(node)
        if exp is None or axis is None:
            continue
        x, total = exp.inputs[0], node.outputs[0]
        assert x is not None
        assert x.shape is not None
        if network.opset < BY_AXIS and axis != x.shape.rank() - 1:
            continue
        for output, op in _ends(total, exp, x):
            yield WrittenSoftmax(op, x, output, axis)


def exponential_of(node: ir.Node) -> ir.Node | None:
    """Return the Exp whose result a ReduceSum sums; None for others."""
    value = node.inputs[0] if is_standard(node, "ReduceSum") else None
    exp = None if value is None else value.producer()
    return exp if exp is not None and is_standard(exp, "Exp") and exp.inputs[0] else None


def summed_axis(node: ir.Node) -> int | None:
    """Return the axis, not negative, of a reduction over one axis that it keeps; else None."""
    x, axes = node.inputs[0], axes_of(node)
    if x is None or not x.shape or axes is None or len(axes) != 1:
        return None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    known = given is None or (given.const_value is not None and constant_array(given).size == 1)
    kept = bool(node.attributes.get_int("keepdims", 1))
    return axes[0] % x.shape.rank() if kept and known else None


def _ends(total: ir.Value, exp: ir.Node, x: ir.Value) -> Iterator[tuple[ir.Value, str]]:
    """Yield the results of a sum of exponentials, and which operator of x each is."""
    for use in total.uses():
        node, result = use.node, use.node.outputs[0]
        if is_standard(node, "Div") and list(node.inputs) == [exp.outputs[0], total]:
            yield result, "Softmax"
        elif is_standard(node, "Reciprocal") or (
            is_standard(node, "Div") and use.idx == 1 and scalar(node.inputs[0]) == 1.0
        ):
            yield from (
                (u.node.outputs[0], "Softmax")
                for u in result.uses()
                if is_standard(u.node, "Mul") and set(u.node.inputs) == {exp.outputs[0], result}
            )
        elif is_standard(node, "Log"):
            yield from (
                (u.node.outputs[0], "LogSoftmax")
                for u in result.uses()
                if is_standard(u.node, "Sub") and list(u.node.inputs) == [x, result]
            )
