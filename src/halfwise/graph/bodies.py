"""Bodies of If, Loop and Scan: finding and comparing them."""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from halfwise.graph.dataflow import reached
from halfwise.graph.model import constant_array, node_name
from halfwise.graph.roles import DATA_MOVEMENT, TYPE_BLIND
from halfwise.graph.weights import FLOATS, LOW_TYPES
from halfwise.records import NodeName

Key = tuple[NodeName, str]
"""Key of a body: its node's name and the attribute that holds it."""
Pairs = dict[ir.Value, ir.Value]


@dataclass(frozen=True)
class Body:
    """A body of an If, Loop or Scan.

    Attributes:
        key: Its key.
        node: The node that holds it.
        graph: The body itself.
        around: The enclosing bodies, outermost first.
    """

    key: Key
    node: ir.Node
    graph: ir.Graph
    around: tuple[Key, ...]

    def computes(self, *, low: bool) -> bool:
        """Return whether a node in it, at any depth, computes with floats (if `low`: low floats).

        Data movement, shape computations and constants lose no precision and do not count.
        """
        types = LOW_TYPES if low else FLOATS
        return any(_computes(node, types) for node in self.graph.all_nodes())

    @property
    def can_run(self) -> bool:
        """Whether inputs may decide if it runs; false for an If with the same condition always."""
        return self.node.op_type != "If" or not is_fixed(self.node.inputs[0])

    def inputs(self, graph: ir.Graph) -> tuple[str, ...]:
        """Return the inputs of the main graph, `graph`, that the body's own condition reads."""
        own = self.node.inputs[: {"If": 1, "Loop": 2}.get(self.node.op_type, 0)]

        def read(value: ir.Value | None) -> Sequence[ir.Value | None]:
            node = None if value is None else value.producer()
            return () if node is None else node.inputs

        seen = reached(own, read)
        return tuple(value.name or "" for value in graph.inputs if value in seen)


def bodies_in(graph: ir.Graph, around: tuple[Key, ...] = ()) -> dict[Key, Body]:
    """Return the bodies in a typed graph, at any depth, outermost first."""
    found: dict[Key, Body] = {}
    for node in graph:
        for attribute, body in bodies_of(node):
            key = node_name(node), attribute
            found[key] = Body(key, node, body, around)
            found |= bodies_in(body, (*around, key))
    return found


def bodies_of(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """Return (attribute name, body) for each body of an If, Loop or Scan; empty for other nodes."""
    if node.op_type not in ("If", "Loop", "Scan") or node.domain:
        return []
    graphs = (a for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH)
    return [(attribute.name, attribute.as_graph()) for attribute in graphs]


def carried(node: ir.Node) -> Sequence[ir.Value]:
    """Return the outputs of a Loop or Scan that hold its state; empty for other nodes.

    The next run of the body reads them, whether or not anything reads the last of them. Their
    number follows from the inputs: a Loop has two more, a Scan as many more as it scans.
    """
    if node.domain or node.op_type not in ("Loop", "Scan"):
        return ()
    scanned = node.attributes.get("num_scan_inputs")
    others = 2 if scanned is None else scanned.as_int()
    return node.outputs[: max(0, len(node.inputs) - others)]


def _computes(node: ir.Node, types: Container[ir.DataType | None]) -> bool:
    if node.op_type in DATA_MOVEMENT | TYPE_BLIND | {"Constant"} or bodies_of(node):
        return False
    return any(v is not None and v.dtype in types for v in (*node.inputs, *node.outputs))


def is_fixed(value: ir.Value | None) -> bool:
    """Return whether a value is the same for all inputs: it depends on none, or on fixed shapes."""

    def varies(one: ir.Value | None) -> bool:
        node = None if one is None else one.producer()
        return (
            one is not None and one.const_value is None and (node is None or bool(bodies_of(node)))
        )

    def behind(one: ir.Value | None) -> Sequence[ir.Value | None]:
        node = None if one is None or one.const_value is not None else one.producer()
        sizes = None if node is None else _sizes_read(node)
        known = sizes is not None and all(isinstance(size, int) for size in sizes)
        return () if node is None or known or varies(one) else node.inputs

    return not any(map(varies, reached([value], behind)))


def _sizes_read(node: ir.Node) -> Sequence[int | ir.SymbolicDim] | None:
    """Return the sizes that determine a node's outputs; None if unknown, or if it reads values.

    This follows Gather: one size of a shape may be fixed while others are not.
    """
    value = node.inputs[0] if node.inputs else None
    if node.op_type == "Gather" and value is not None and node.inputs[1] is not None:
        shape, picked = value.producer(), node.inputs[1]
        sizes = _sizes_read(shape) if shape is not None and shape.op_type == "Shape" else None
        if sizes is None or picked.const_value is None:
            return None
        chosen = np.ravel(constant_array(picked)).tolist()
        inside = all(-len(sizes) <= index < len(sizes) for index in chosen)
        return [sizes[index] for index in chosen] if inside else None
    if node.op_type not in TYPE_BLIND or value is None or value.shape is None:
        return None
    first, last = (node.attributes.get(name) for name in ("start", "end"))
    return value.shape.dims[first.as_int() if first else None : last.as_int() if last else None]


def alike(one: ir.Graph, other: ir.Graph, pairs: Pairs | None = None) -> bool:
    """Return whether two graphs have equal nodes, attributes and constants in the same order.

    Values from outside are compared by name, past Casts: a value that one model reads in FP32, the
    other may read through a Cast. Constants with NaN count as different.

    Args:
        one: A body.
        other: A body of another model.
        pairs: Values around them that are known to be the same; for a nested body.
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
    """Return the source of a chain of Casts, or the value itself."""
    node = value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value
