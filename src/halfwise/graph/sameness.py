"""Whether two graphs differ only in Casts and types, as a model and its lowered version do."""

from collections.abc import Container
from itertools import zip_longest

import numpy as np
import onnx
import onnx_ir as ir

from halfwise.graph.casts import FORMATS
from halfwise.graph.conversion import TYPE_ATTRIBUTES
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.roles import bodies, is_float
from halfwise.graph.weights import FLOATS
from halfwise.records import NodeName, TensorName


def first_difference(network: Network, lowered: Network) -> str | None:
    """Return the name of the first node or output in which two models differ; None if equal.

    Casts between FP32, FP16 and BF16 that only `lowered` has are skipped, differences among these
    types do not count, and constants in a low format must be stored as `Format.store_constant`
    stores them. Nodes are matched by name, also in bodies of If, Loop and Scan. An operator that
    ONNX changed between the two opsets counts as different.
    """
    own = {node_name(node): node for graph in network.graphs() for node in graph}
    other = {node_name(node): node for graph in lowered.graphs() for node in graph}
    casts = {node for name, node in other.items() if name not in own and _casts_floats(node)}
    for name, node in other.items():
        if name not in own and node not in casts:
            return name
    for name, node in own.items():
        if name not in other or not _alike(node, other[name], casts):
            return name
        if _version(node, network.opset) != _version(other[name], lowered.opset):
            return name
    given = {value.name: value for value in lowered.graph.outputs}
    for value in network.graph.outputs:
        if not _same_value(value, given.get(value.name), casts):
            return value.name
    return None


def shared_tensors(network: Network, other: Network) -> frozenset[TensorName]:
    """Return the float tensors that both compute alike, but that some node reads differently.

    Nodes of the main graph are alike if they and all nodes before them are the same and have no
    bodies. Anything that only `other` has between two nodes makes a difference, even a Cast.
    """
    theirs = {node_name(node): node for node in other.nodes()}
    same: set[NodeName | None] = {None}
    found: list[ir.Value] = []
    for node in network.nodes():
        name, read = node_name(node), [v.producer() for v in node.inputs if v is not None]
        before = all(made is None or made.name in same for made in read)
        if before and name in theirs and not bodies(node) and _alike(node, theirs[name], ()):
            same.add(name)
            found += [v for v in node.outputs if v.name and is_float(v)]
    away = (v for v in found if any(use.node.name not in same for use in v.uses()))
    return frozenset(map(tensor_name, away))


class _FloatCasts:
    """All Casts between float types."""

    def __contains__(self, node: object) -> bool:
        return isinstance(node, ir.Node) and _casts_floats(node)


def alike(one: ir.Graph, other: ir.Graph) -> bool:
    """Return whether two bodies have the same nodes, attributes, constants and outputs, by name.

    Casts between FP32, FP16 and BF16 that `other` reads through are skipped, and differences among
    these types do not count. A body whose nodes another tool has renamed is not alike.
    """
    nodes, theirs = list(one.all_nodes()), list(other.all_nodes())
    casts = _FloatCasts()
    return (
        [node.name for node in nodes] == [node.name for node in theirs]
        and all(_alike(node, twin, casts) for node, twin in zip(nodes, theirs, strict=True))
        and len(one.outputs) == len(other.outputs)
        and all(_same_value(a, b, casts) for a, b in zip(one.outputs, other.outputs, strict=True))
    )


def _casts_floats(node: ir.Node) -> bool:
    source = node.inputs[0] if is_standard(node, "Cast") else None
    # An input whose type could not be inferred counts as a float.
    known = None if source is None else source.dtype
    return source is not None and {known or ir.DataType.FLOAT, _type(node, "to")} <= FLOATS


def _version(node: ir.Node, opset: int) -> int:
    """Return the last opset up to `opset` that changed an operator; 0 if it is unknown."""
    if not is_standard(node) or not onnx.defs.has(node.op_type, opset, ""):
        return 0
    return int(onnx.defs.get_schema(node.op_type, opset, "").since_version)


def _alike(node: ir.Node, other: ir.Node, casts: Container[ir.Node]) -> bool:
    """Return whether two nodes compute the same, apart from these Casts before `other`."""
    if node.op_identifier() != other.op_identifier() or len(node.outputs) != len(other.outputs):
        return False
    names = (node.attributes.keys() | other.attributes.keys()).difference(TYPE_ATTRIBUTES)
    return (
        all(_same_value(a, b, casts) for a, b in zip_longest(node.inputs, other.inputs))
        and all(
            _same_attribute(node.attributes.get(name), other.attributes.get(name), casts)
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


def _same_attribute(one: ir.Attr | None, other: ir.Attr | None, casts: Container[ir.Node]) -> bool:
    if one is None or other is None:
        said = one or other
        return said is None or _says_zeros(said)
    if one.type != other.type:
        return False
    if one.type == ir.AttributeType.GRAPH:
        pairs = zip(one.as_graph().outputs, other.as_graph().outputs, strict=False)
        return len(one.as_graph().outputs) == len(other.as_graph().outputs) and all(
            _same_value(a, b, casts) for a, b in pairs
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


def _same_value(one: ir.Value | None, other: ir.Value | None, casts: Container[ir.Node]) -> bool:
    if one is None or other is None:
        return one is other
    while (made := other.producer()) is not None and made in casts:
        source = made.inputs[0]
        assert source is not None
        other = source
    if (by := one.producer()) is not None:
        return made is not None and (by.name, one.index()) == (made.name, other.index())
    if made is not None:
        return False
    if one.const_value is not None and other.const_value is not None:
        return _same_constant(one.const_value, other.const_value)
    return one.const_value is other.const_value and one.name == other.name


def _same_constant(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    a, b = np.asarray(one.numpy()), np.asarray(other.numpy())
    if one.dtype == ir.DataType.FLOAT and other.dtype in FORMATS:
        a = FORMATS[other.dtype].store_constant(a)
    return a.dtype == b.dtype and (a.tobytes() == b.tobytes() or bool(np.array_equal(a, b)))
