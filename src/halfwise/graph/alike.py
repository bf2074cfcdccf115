"""Whether two bodies are the same, whatever their inner values are called."""

import numpy as np
import onnx_ir as ir

Pairs = dict[ir.Value, ir.Value]


def alike(one: ir.Graph, other: ir.Graph, pairs: Pairs | None = None) -> bool:
    """Return whether graphs have the same nodes in the same order, attributes and constants.

    A value from outside is the same where its name is, or that of what a Cast makes it of: one is
    FP32 in a model, and read through a Cast in another.

    Args:
        one: A body.
        other: A body, of another model.
        pairs: Values around them that are known to be the same; of a nested body.
    """
    nodes, others = list(one), list(other)
    sizes = [(len(g.inputs), len(g.outputs), g.num_nodes()) for g in (one, other)]
    if sizes[0] != sizes[1]:
        return False
    known = {**(pairs or {}), **dict(zip(one.inputs, other.inputs, strict=True))}
    for node, twin in zip(nodes, others, strict=True):
        if not _same_node(node, twin, known):
            return False
        known |= dict(zip(node.outputs, twin.outputs, strict=True))
    return all(map(_same_value, one.outputs, other.outputs, [known] * len(one.outputs)))


def _same_node(node: ir.Node, twin: ir.Node, known: Pairs) -> bool:
    shapes = [(n.domain, n.op_type, len(n.inputs), len(n.outputs)) for n in (node, twin)]
    if shapes[0] != shapes[1] or node.attributes.keys() != twin.attributes.keys():
        return False
    operands = zip(node.inputs, twin.inputs, strict=True)
    return all(_same_value(a, b, known) for a, b in operands) and all(
        _same_attribute(attribute, twin.attributes[name], known)
        for name, attribute in node.attributes.items()
    )


def _same_attribute(one: ir.Attr, other: ir.Attr, known: Pairs) -> bool:
    if one.type != other.type:
        return False
    if one.type == ir.AttributeType.GRAPH:
        return alike(one.as_graph(), other.as_graph(), known)
    if one.type == ir.AttributeType.TENSOR:
        return _same_tensor(one.as_tensor(), other.as_tensor())
    return bool(one.value == other.value)


def _same_value(one: ir.Value | None, other: ir.Value | None, known: Pairs) -> bool:
    if one is None or other is None:
        return one is other
    if one in known:
        return known[one] is other
    if one.const_value is not None and other.const_value is not None:
        return _same_tensor(one.const_value, other.const_value)
    return _source(one).name == _source(other).name


def _same_tensor(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    return one.dtype == other.dtype and np.array_equal(one.numpy(), other.numpy(), equal_nan=False)


def _source(value: ir.Value) -> ir.Value:
    """Return what Casts make a value of, or the value."""
    node = value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value
