"""Whether two graphs differ only in Casts and types, as a model and its lowered version do."""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import zip_longest

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from halfwise.graph.anchors import is_anchor
from halfwise.graph.casts import FORMATS
from halfwise.graph.conversion import TYPE_ATTRIBUTES
from halfwise.graph.dataflow import captured_by, operands, reached
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import DATA_MOVEMENT, TYPE_BLIND
from halfwise.graph.sizes import sizes_read
from halfwise.graph.weights import FLOATS, LOW_TYPES
from halfwise.records import NodeName

Key = tuple[NodeName, str]
"""Key of a body: its node's name and the attribute that holds it."""
_Equal = Callable[[ir.Value | None, ir.Value | None], bool]
"""Tells whether values of two graphs are the same; None is an input that a node leaves out."""


class Body(Struct, frozen=True):
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
        condition = self.node.inputs[: {"If": 1, "Loop": 2}.get(self.node.op_type, 0)]

        def read(value: ir.Value | None) -> Sequence[ir.Value | None]:
            node = None if value is None else value.producer()
            return () if node is None else node.inputs

        seen = reached(condition, read)
        return tuple(value.name or "" for value in graph.inputs if value in seen)


def bodies_in(graph: ir.Graph, around: tuple[Key, ...] = ()) -> dict[Key, Body]:
    """Return the bodies in a typed graph, at any depth, outermost first."""
    inside: dict[Key, Body] = {}
    for node in graph:
        for attribute, body in bodies_of(node):
            key = node_name(node), attribute
            inside[key] = Body(key, node, body, around)
            inside |= bodies_in(body, (*around, key))
    return inside


def bodies_of(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """Return (attribute name, body) for each body of an If, Loop or Scan; empty for other nodes."""
    if node.op_type not in ("If", "Loop", "Scan") or node.domain:
        return []
    graphs = (a for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH)
    return [(attribute.name, attribute.as_graph()) for attribute in graphs]


def is_observable(node: ir.Node, opset: int) -> bool:
    """Return whether the bodies of a node can be networks of their own.

    All they read and give out has to be tensors. Before opset 9, a Scan has an axis for the batch,
    and few models have bodies.
    """
    inner = (v for _, body in bodies_of(node) for v in (*body.inputs, *body.outputs))
    values = (*operands(node), *node.outputs, *inner)
    tensors = all(isinstance(value.type, ir.TensorType) for value in values if value.name)
    return tensors and opset >= OBSERVABLE_OPSET


OBSERVABLE_OPSET = 9


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
        sizes = None if node is None else sizes_read(node)
        sized = sizes is not None and all(isinstance(size, int) for size in sizes)
        return () if node is None or sized or varies(one) else node.inputs

    return not any(map(varies, reached([value], behind)))


def first_difference(network: Network, lowered: Network) -> str | None:
    """Return the name of the first node or output in which two models differ; None if equal.

    Casts between FP32, FP16 and BF16, and anchors, are skipped, differences among these types do
    not count, and constants in a low format must be stored as `Format.store_constant` stores them,
    but for what is beyond its range. Nodes are matched by name, also in bodies of If, Loop and
    Scan. An operator that ONNX changed between the two opsets
    counts as different.
    """
    nodes = {node_name(node): node for graph in network.graphs() for node in graph}
    other = {node_name(node): node for graph in lowered.graphs() for node in graph}
    for name, node in other.items():
        if name not in nodes and not _casts_floats(node):
            return name
    for name, node in nodes.items():
        if name not in other or not _alike(node, other[name], _same):
            return name
        if _version(node, network.opset) != _version(other[name], lowered.opset):
            return name
    outputs = {value.name: value for value in lowered.graph.outputs}
    for value in network.graph.outputs:
        if not _same(value, outputs.get(value.name)):
            return value.name
    return None


def alike(one: ir.Graph, other: ir.Graph) -> bool:
    """Return whether two bodies compute the same of what they capture; see `difference_behind`."""
    outside = [v.name for v in captured_by(one) if v.const_value is None]
    return len(one.outputs) == len(other.outputs) and not difference_behind(
        zip(one.outputs, other.outputs, strict=True), outside
    )


def difference_behind(
    ends: Iterable[tuple[ir.Value, ir.Value]], known: Collection[str | None]
) -> str | None:
    """Return the first node, constant or input in which what computes two values differs.

    Operators, attributes, constants and connections count, names do not. Casts between FP32, FP16
    and BF16 are skipped, and differences among these types do not count.

    Args:
        ends: Pairs of a model's value and another model's.
        known: Values of the model that are compared elsewhere, by name.
    """
    pairs = dict.fromkeys(ends)
    todo = list(pairs)

    def paired(one: ir.Value | None, other: ir.Value | None) -> bool:
        if one is not None and other is not None and (one, other) not in pairs:
            pairs[one, other] = None
            todo.append((one, other))
        return (one is None) == (other is None)

    while todo:
        one, other = todo.pop()
        bare, twin = _uncast(one), _uncast(other)
        by, made = bare.producer(), twin.producer()
        if names := {one.name, bare.name}.intersection(known):
            equal = not names.isdisjoint((other.name, twin.name))
        elif by is not None and made is not None:
            equal = bare.index() == twin.index() and _alike(by, made, paired)
        else:
            equal = _same(bare, twin)
        if not equal:
            return one.name if by is None or names else f"{node_name(by)} ({by.op_type})"
    return None


def _casts_floats(node: ir.Node) -> bool:
    if is_anchor(node):
        return True
    source = node.inputs[0] if is_standard(node, "Cast") else None
    # An input whose type could not be inferred counts as a float.
    source_type = None if source is None else source.dtype
    return source is not None and {source_type or ir.DataType.FLOAT, _type(node, "to")} <= FLOATS


def _version(node: ir.Node, opset: int) -> int:
    """Return the last opset up to `opset` that changed an operator; 0 if it is unknown."""
    if not is_standard(node) or not onnx.defs.has(node.op_type, opset, ""):
        return 0
    return int(onnx.defs.get_schema(node.op_type, opset, "").since_version)


def _alike(node: ir.Node, other: ir.Node, same: _Equal) -> bool:
    """Return whether two nodes compute the same of inputs that are the `same`."""
    if node.op_identifier() != other.op_identifier() or len(node.outputs) != len(other.outputs):
        return False
    names = (node.attributes.keys() | other.attributes.keys()).difference(TYPE_ATTRIBUTES)
    return (
        all(same(a, b) for a, b in zip_longest(node.inputs, other.inputs))
        and all(
            _same_attribute(node.attributes.get(name), other.attributes.get(name), same)
            for name in names
        )
        and all(
            one == two or {one, two} <= FLOATS
            for one, two in ((_type(node, name), _type(other, name)) for name in TYPE_ATTRIBUTES)
        )
    )


def _type(node: ir.Node, name: str) -> int:
    """Return the number of the type that an attribute holds; FP32's if the node omits it."""
    return node.attributes.get_int(name, int(ir.DataType.FLOAT))


def _same_attribute(one: ir.Attr | None, other: ir.Attr | None, same: _Equal) -> bool:
    if one is None or other is None:
        said = one or other
        return said is None or _says_zeros(said)
    if one.type != other.type:
        return False
    if one.type == ir.AttributeType.GRAPH:
        pairs = zip(one.as_graph().outputs, other.as_graph().outputs, strict=False)
        return len(one.as_graph().outputs) == len(other.as_graph().outputs) and all(
            same(a, b) for a, b in pairs
        )
    if one.type == ir.AttributeType.TENSOR:
        return _same_constant(one.as_tensor(), other.as_tensor())
    if one.type == ir.AttributeType.TYPE_PROTO:
        return True
    return bool(one.value == other.value)


def _says_zeros(said: ir.Attr) -> bool:
    """Return whether omitting the attribute means the same: a ConstantOfShape then fills zeros."""
    if said.name != "value" or said.type != ir.AttributeType.TENSOR:
        return False
    filling = said.as_tensor()
    return filling.dtype in FLOATS and not np.any(filling.numpy())


def _same(one: ir.Value | None, other: ir.Value | None) -> bool:
    """Return whether two values are the same, by the names of what computes them."""
    if one is None or other is None:
        return one is other
    one, other = _uncast(one), _uncast(other)
    by, made = one.producer(), other.producer()
    if by is not None:
        return made is not None and (by.name, one.index()) == (made.name, other.index())
    if made is not None:
        return False
    if one.const_value is not None and other.const_value is not None:
        return _same_constant(one.const_value, other.const_value)
    return one.const_value is other.const_value and one.name == other.name


def _uncast(value: ir.Value) -> ir.Value:
    """Return what the Casts between floats before a value read."""
    while (made := value.producer()) is not None and _casts_floats(made):
        source = made.inputs[0]
        assert source is not None
        value = source
    return value


def _same_constant(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    a, b = np.asarray(one.numpy()), np.asarray(other.numpy())
    if one.dtype == ir.DataType.FLOAT and other.dtype in FORMATS:
        fmt = FORMATS[other.dtype]
        # Beyond the range, converters clamp to other limits, or let it become infinite.
        a = np.where(np.abs(a) > fmt.max, b, fmt.store_constant(a))
    return a.dtype == b.dtype and (a.tobytes() == b.tobytes() or bool(np.array_equal(a, b)))
