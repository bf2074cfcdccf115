"""Find operators that an exporter decomposed into several nodes.

Norms are read as polynomials (`graph.norms`), activations by their values (`graph.functions`). A
Softmax is found from the sum of its exponentials, and an attention from the Softmax between its
two products: squares, division or multiplication by a reciprocal, operands in either order, axes as
attribute or input, and data movement anywhere in between.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.graph.model import Network, constant_array, is_standard, node_name
from halfwise.graph.norms import NORMALISATIONS, normalisations
from halfwise.graph.reading import (
    ACTIVATIONS,
    NO_NODES,
    Nodes,
    Seen,
    activations,
    axes_of,
    behind,
    is_constant,
    maker,
    other_operand,
    readers,
    same,
    scalar,
    split_constant,
    way,
)
from halfwise.records import NodeName

_MASKS = ("Add", "Sub", "Mul", "Div", "Where", "Clip", "Max", "Min")
"""Operators between the scores and the softmax: scale, bias, mask."""
_LONGEST_WAY = 8
"""Most nodes between product and softmax; exporters write at most Mul, Sub, Mul, Add, Clip."""


def softmaxes(network: Network) -> Iterator[Nodes]:
    """Yield exp(z) / Σ exp(z), with z = x or x - max(x), and perhaps an eps added to Σ."""
    for node in network.nodes():
        if node.op_type != "ReduceSum" or (exp := maker(node.inputs[0], "Exp")) is None:
            continue
        if (end := _divided(node.outputs[0], exp)) and node.inputs[0] is not None:
            yield end | {node} | way(node.inputs[0]) | _shifted(exp.inputs[0])[1]


def _divided(total: ir.Value, exp: ir.Node, *, eps: bool = True) -> Nodes:
    """Return the nodes from the sum to exp / sum; if `eps`, one bound or addend may be between."""
    for node, slot, passed in readers(total):
        other = other_operand(node, slot)
        nodes = passed | {node}
        if node.op_type == "Div" and slot == 1 and same(other, exp.outputs[0]):
            return nodes
        if eps and node.op_type in ("Add", "Max") and scalar(other) is not None:
            if rest := _divided(node.outputs[0], exp, eps=False):
                return nodes | rest
        elif _inverts(node, slot):
            for product, place, between in readers(node.outputs[0]):
                factor = other_operand(product, place)
                if product.op_type == "Mul" and same(factor, exp.outputs[0]):
                    return nodes | between | {product}
    return NO_NODES


def _inverts(node: ir.Node, slot: int) -> bool:
    if node.op_type == "Div":
        return slot == 1 and scalar(node.inputs[0]) == 1.0
    return node.op_type == "Reciprocal"


def _shifted(value: ir.Value | None) -> tuple[ir.Value | None, Nodes]:
    """Return x and the nodes of `value = x - max(x)`; otherwise `value` and no nodes."""
    node = maker(value, "Sub")
    if value is None or node is None or node.inputs[1] is None:
        return value, NO_NODES
    # JAX writes max(-inf, max(x)).
    bounded = split_constant(node.inputs[1], "Max")
    found = bounded[0] if bounded else Seen(node.inputs[1])
    largest = maker(found.value, "ReduceMax")
    if largest is None or not same(largest.inputs[0], node.inputs[0]):
        return value, NO_NODES
    return node.inputs[0], way(value) | found.nodes | way(found.value)


def log_softmaxes(network: Network) -> Iterator[Nodes]:
    """Yield z - log Σ exp(z), x - (max + log Σ exp(z)), x - ReduceLogSumExp(x), log(Softmax(x))."""
    divisions: dict[ir.Value, Nodes] = {}
    for nodes in softmaxes(network):
        divisions |= {n.outputs[0]: nodes for n in nodes if n.op_type in ("Div", "Mul")}
    for node in network.nodes():
        if node.op_type == "Log" and node.inputs[0] is not None:
            before = behind(node.inputs[0])
            if maker(node.inputs[0], "Softmax"):
                yield way(node.inputs[0]) | {node}
            elif before.value in divisions:
                yield divisions[before.value] | before.nodes | {node}
            elif nodes := _from_log_of_sum(node):
                yield nodes
        elif node.op_type == "ReduceLogSumExp":
            for end, slot, passed in readers(node.outputs[0]):
                if end.op_type == "Sub" and slot == 1 and same(end.inputs[0], node.inputs[0]):
                    yield passed | {node, end}


def _from_log_of_sum(log: ir.Node) -> Nodes:
    total = maker(log.inputs[0], "ReduceSum")
    exp = maker(total.inputs[0], "Exp") if total else None
    if total is None or exp is None or log.inputs[0] is None or total.inputs[0] is None:
        return NO_NODES
    x, shift = _shifted(exp.inputs[0])
    nodes = way(log.inputs[0]) | way(total.inputs[0]) | shift | {log}
    for node, slot, passed in readers(log.outputs[0]):
        other = other_operand(node, slot)
        if node.op_type == "Sub" and slot == 1 and same(other, exp.inputs[0]):
            return nodes | passed | {node}
        largest = maker(other, "ReduceMax")
        if node.op_type == "Add" and largest is not None and same(largest.inputs[0], x):
            for end, place, between in readers(node.outputs[0]):
                if end.op_type == "Sub" and place == 1 and same(end.inputs[0], x):
                    return nodes | passed | between | {node, end}
    return NO_NODES


def attentions(network: Network) -> Iterator[Nodes]:
    """Yield softmax(scale · Q Kᵀ + mask) V, where both products read only computed values.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1. A product with a constant
    is not part of attention. Softmax must be one node.
    """
    for node in network.nodes():
        if node.op_type != "Softmax" or not node.inputs or node.inputs[0] is None:
            continue
        scores = _scores(node.inputs[0], _LONGEST_WAY)
        if not scores:
            continue
        for end, slot, passed in readers(node.outputs[0]):
            masked = end.op_type == "Where"
            uses = readers(end.outputs[0]) if masked else [(end, slot, NO_NODES)]
            for product, place, between in uses:
                if product.op_type == "MatMul" and place == 0 and not is_constant(_second(product)):
                    yield scores | passed | between | {node, end, product}


def _scores(value: ir.Value, steps: int) -> Nodes:
    """Return the nodes from the product that feeds `value` to it; empty if there is none."""
    product = maker(value, "MatMul")
    if product is not None:
        computed = not any(is_constant(operand) for operand in product.inputs)
        return way(value) if computed else NO_NODES
    node = maker(value, *_MASKS)
    if node is None or not steps:
        return NO_NODES
    for operand in node.inputs:
        if operand is not None and (found := _scores(operand, steps - 1)):
            return found | way(value)
    return NO_NODES


def _second(product: ir.Node) -> ir.Value | None:
    return product.inputs[1] if len(product.inputs) > 1 else None


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


_SOFTMAXES: Mapping[str, Callable[[Network], Iterator[Nodes]]] = {
    "LogSoftmax": log_softmaxes,
    "Softmax": softmaxes,
}
PATTERNS: tuple[str, ...] = tuple(sorted((*NORMALISATIONS, *_SOFTMAXES, *ACTIVATIONS, "Silu")))
"""Operators whose decomposed forms are known; `Silu` is another name for ONNX's `Swish`."""


def written_out(network: Network, op: str) -> list[frozenset[NodeName]]:
    """Return the groups of nodes that form a decomposed operator `op`.

    Not returned: one-node (native) forms, and groups with an operator of a custom domain.

    Args:
        network: The model; only its main graph is searched.
        op: One of `PATTERNS`.

    Returns:
        One set of node names per occurrence, in graph order. Sets of one operator are usually
        disjoint, but two norms may share a mean.

    Raises:
        KeyError: `op` is not in `PATTERNS`.
    """
    groups: Iterator[Nodes]
    if op in NORMALISATIONS:
        groups = (nodes for kind, nodes in normalisations(network) if kind == op)
    elif op in _SOFTMAXES:
        groups = _SOFTMAXES[op](network)
    else:
        written = activations(network, "Swish" if op == "Silu" else op)
        groups = (function.nodes for function in written)
    # Names of operators alone are compared above; another domain's may compute anything.
    own = (nodes for nodes in groups if all(map(is_standard, nodes)))
    return list(dict.fromkeys(frozenset(node_name(n) for n in nodes) for nodes in own))
