"""Widen a model that stores FP16 or BF16 to FP32 everywhere, and remember what it stored.

Every FP16 and BF16 number is an FP32 number, so widening is exact: what comes out is the model
without its roundings, the reference of an FP16 export. FP64 stays as it is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.roles import Role, is_float, roles_of
from halfwise.graph.weights import widen_weights
from halfwise.records import NodeName, TensorName

LOW_TYPES: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT16: "FP16",
    ir.DataType.BFLOAT16: "BF16",
}
"""The element types that are widened, and what people call them."""

_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision")


@dataclass(frozen=True)
class Stored:
    """What a model stored in low formats before it was widened; empty for an FP32 model.

    Attributes:
        formats: Names of the low formats, FP16 first.
        io: Low graph inputs and outputs → their element type.
        islands: Compute nodes that the model computes in FP32 although they could be low and
            others are: the author's choice.
    """

    formats: tuple[str, ...] = ()
    io: Mapping[TensorName, ir.DataType] = field(default_factory=dict)
    islands: frozenset[NodeName] = frozenset()


def widened(network: Network) -> tuple[Network, Stored]:
    """Return `network` with all FP16 and BF16 storage in FP32, and what it stored before.

    Casts between float types that have become equal are removed, but for those that give out under
    a name of its own what has another: a graph input, a constant or another output. Bodies of If,
    Loop and Scan, sequences and optionals are widened too. A model without low tensors is returned
    as it is.

    A node is an island where it has an FP32 tensor and no low one, in its bodies either, and its
    operator's schema lets it be low in the model's own format. Where no compute node is low (only
    weights or inputs are), there is nothing to stand out from, and no island.
    """
    formats = {t: name for t, name in LOW_TYPES.items() if t in _element_types(network.model)}
    if not formats:
        return network, Stored()
    ends = dict.fromkeys((*network.graph.inputs, *network.graph.outputs))
    io = {tensor_name(v): v.type.dtype for v in ends if _is_low(v) and v.type is not None}
    fp32 = {node_name(n) for n in network.nodes() if _computes_fp32(n)}
    model = network.copy()
    widen_storage(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        _drop_casts(graph)
    names = {node_name(n) for n in model.graph.all_nodes()}
    original_names = {n: old for n, old in network.original_names.items() if n in names}
    wide = replace(network, model=model, original_names=original_names)
    roles = roles_of(wide, next(iter(formats)))
    computing = frozenset(n for n, role in roles.items() if role.role is Role.COMPUTE)
    islands = computing & fp32 if computing - fp32 else frozenset[NodeName]()
    return wide, Stored(tuple(formats.values()), io, islands)


def low_nodes(network: Network) -> frozenset[NodeName]:
    """Return the nodes of the main graph that read or give a low tensor, in their bodies too."""
    return frozenset(node_name(n) for n in network.nodes() if any(map(_is_low, _touched(n))))


def widen_storage(model: ir.Model) -> None:
    """Give every low value, constant and type attribute of `model` FP32 instead, in place.

    Raises:
        CaseError: the weights of a large model find not enough temporary space.
    """
    widen_weights(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in _values(graph):
            value.type = wide_type(value.type)
            if value.const_value is not None:
                value.const_value = wide_tensor(value.const_value)
        for node in graph:
            for attribute in list(node.attributes.values()):
                widen_attribute(node, attribute)


def wide_type(given: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """Return `given` with FP32 for FP16 and BF16 elements, in sequences and optionals too."""
    if isinstance(given, ir.SequenceType | ir.OptionalType):
        element = wide_type(given.elem_type)
        assert element is not None
        return type(given)(element)
    if isinstance(given, ir.TensorType | ir.SparseTensorType) and given.dtype in LOW_TYPES:
        return type(given)(ir.DataType.FLOAT)
    return given


def wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor in FP32 if it is FP16 or BF16, else itself; exact."""
    if tensor.dtype not in LOW_TYPES:
        return tensor
    return ir.tensor(np.asarray(tensor.numpy()).astype(np.float32), name=tensor.name)


def widen_attribute(node: ir.Node, attribute: ir.Attr) -> None:
    """Put FP32 in place of FP16 and BF16 in a tensor, a type or the number of an element type.

    Other attributes stay, graphs too.
    """
    name = attribute.name
    if attribute.type == ir.AttributeType.TENSOR:
        node.attributes[name] = ir.AttrTensor(name, wide_tensor(attribute.as_tensor()))
    elif attribute.type == ir.AttributeType.TYPE_PROTO:
        given = attribute.value
        kind = wide_type(given.type)
        assert kind is not None
        node.attributes[name] = ir.AttrTypeProto(name, ir.TypeAndShape(kind, given.shape))
    elif attribute.type != ir.AttributeType.INT or name not in _TYPE_ATTRIBUTES:
        return
    elif attribute.as_int() in LOW_TYPES:
        node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _element_types(model: ir.Model) -> set[ir.DataType]:
    graphs = (model.graph, *model.graph.subgraphs())
    return {v.type.dtype for graph in graphs for v in _values(graph) if v.type is not None}


def _is_low(value: ir.Value) -> bool:
    return value.type is not None and value.type.dtype in LOW_TYPES


def _computes_fp32(node: ir.Node) -> bool:
    # An output without a type is one of a custom operator: nothing is known of it.
    values = [v for v in _touched(node) if v.name]
    known = all(v.type is not None for v in values)
    return known and any(map(is_float, values)) and not any(map(_is_low, values))


def _touched(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what the node and those in its bodies read and give."""
    yield from (v for v in (*node.inputs, *node.outputs) if v is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield from _touched(inner)


def _drop_casts(graph: ir.Graph) -> None:
    """Remove the Casts from FP32 to FP32, where nothing needs the name that they give."""
    for node in list(graph):
        if not is_standard(node, "Cast"):
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source is None or not (is_float(source) and is_float(result)):
            continue
        if result.is_graph_output():
            producer = source.producer()
            if producer is None or producer.graph is not graph or source.is_graph_output():
                continue
            source.name, source.shape, result.name = result.name, result.shape, None
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
