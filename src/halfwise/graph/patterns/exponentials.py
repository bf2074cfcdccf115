"""Softmax and LogSoftmax that are written out, found from the sum of their exponentials."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.graph.patterns.reading import (
    NO_NODES,
    Nodes,
    Seen,
    behind,
    maker,
    other_operand,
    readers,
    same,
    scalar,
    split_constant,
    way,
)


def softmaxes(network: Network) -> Iterator[Nodes]:
    """Yield exp(z) / Σ exp(z), where z is x or x - max(x), and Σ may have an eps added."""
    for node in network.nodes():
        if node.op_type != "ReduceSum" or (exp := maker(node.inputs[0], "Exp")) is None:
            continue
        if (end := _divided(node.outputs[0], exp)) and node.inputs[0] is not None:
            yield end | {node} | way(node.inputs[0]) | _shifted(exp.inputs[0])[1]


def _divided(total: ir.Value, exp: ir.Node, *, eps: bool = True) -> Nodes:
    """Return the nodes from the sum, where `eps` with one bound or addend, to exp / sum."""
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
    """Return x and the nodes of `value = x - max(x)`; `value` itself and none otherwise."""
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
