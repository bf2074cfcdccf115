"""Convert a whole network: upcast FP16 and BF16 storage to FP32, or raise the operator set.

Every FP16 and BF16 number is an FP32 number, so upcasting is exact: the result is the model without
its roundings, which is the reference of an FP16 export. FP64 stays. Callers must check that a model
with a raised operator set computes the same: ONNX's adapters have had bugs.
"""

from collections.abc import Collection, Container, Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from onnx import version_converter

from halfwise.errors import CaseError
from halfwise.graph.anchors import is_anchor
from halfwise.graph.intake import UNKNOWN, hide_unknown
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, is_standard, node_name, tensor_name, values_of
from halfwise.graph.protobufs import graphs_in, said, skeleton
from halfwise.graph.roles import FIRST_BF16_OPSET, TYPE_BLIND, is_float, roles_of
from halfwise.graph.weights import LOW_TYPES, widen_weights
from halfwise.records import NodeName, TensorName, replace

TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision")
"""Attributes that hold an element type's number."""
BF16_OPSET = 22
"""First opset in which convolutions, pooling, sines and more take BF16 (operator changelog)."""
_FAILURES = (
    version_converter.ConvertError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    *(IndexError, KeyError, RuntimeError, TypeError, ValueError),
)
"""Exceptions of the converter, including those that escape from its C++ containers."""
_SUCCESSORS = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""Operators that a later opset renamed (ONNX operator changelog)."""


class Stored(Struct, frozen=True):
    """What a model stored in low formats before it was upcast; empty for an FP32 model.

    Attributes:
        formats: Names of the low formats, FP16 first.
        io: Element types of the low graph inputs and outputs, by name.
        islands: Compute nodes in FP32 that could be low while others are: the author's choice.
    """

    formats: tuple[str, ...] = ()
    io: Mapping[TensorName, ir.DataType] = {}
    islands: frozenset[NodeName] = frozenset()


def upcast(network: Network) -> tuple[Network, Stored]:
    """Return `network` with all FP16 and BF16 storage in FP32, and what it stored before.

    Casts between float types that have become equal are removed, unless their output is a second
    name for a graph input, a constant or another output. Bodies of If, Loop and Scan, sequences
    and optionals are upcast too. A model without low tensors is returned unchanged.

    A node is an island if it has an FP32 tensor but no low one, and its operator's schema lets it
    be low in the model's own format. If no compute node is low (only weights or inputs are), there
    are no islands.

    Raises:
        CaseError: not enough temporary space for the weights of a large model, or the model stores
            BF16 and its opset has no Cast to BF16.
    """
    formats = {t: name for t, name in LOW_TYPES.items() if t in _element_types(network.model)}
    if not formats:
        return network, Stored()
    ends = dict.fromkeys((*network.graph.inputs, *network.graph.outputs))
    io = {tensor_name(v): v.type.dtype for v in ends if _is_low(v) and v.type is not None}
    fp32 = {node_name(n) for n in network.all_nodes() if _computes_fp32(n)}
    model = network.copy()
    upcast_storage(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        _drop_casts(graph)
    names = {node_name(n) for n in model.graph.all_nodes()}
    original_names = {n: old for n, old in network.original_names.items() if n in names}
    wide = replace(network, model=model, original_names=original_names)
    roles = roles_of(wide, next(iter(formats)))
    computing = roles.computing
    islands = computing & fp32 if computing - fp32 else frozenset[NodeName]()
    return wide, Stored(tuple(formats.values()), io, islands)


def low_nodes(
    network: Network, types: Collection[ir.DataType] = tuple(LOW_TYPES)
) -> frozenset[NodeName]:
    """Return the nodes that read or output low tensors."""
    nodes = network.all_nodes()
    return frozenset(node_name(n) for n in nodes if any(v.dtype in types for v in _touched(n)))


def upcast_storage(model: ir.Model, *, but: Collection[ir.Value] = ()) -> None:
    """Widen every low value, constant and type attribute of `model` to FP32, in place.

    Values `but` stay as they are.

    Raises:
        CaseError: not enough temporary space for the weights of a large model.
    """
    if not but:
        widen_weights(model)
    kept = frozenset(but)
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in filter(lambda v: v not in kept, values_of(graph)):
            value.type = upcast_type(value.type)
            if value.const_value is not None:
                value.const_value = upcast_tensor(value.const_value)
        for node in graph:
            for attribute in list(node.attributes.values()):
                upcast_attribute(node, attribute)


def upcast_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """Return `kind` with its element type widened, also in sequences and optionals."""
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        element = upcast_type(kind.elem_type)
        assert element is not None
        return type(kind)(element)
    if isinstance(kind, ir.TensorType | ir.SparseTensorType) and kind.dtype in LOW_TYPES:
        return type(kind)(ir.DataType.FLOAT)
    return kind


def upcast_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor widened exactly, or itself if it is not low."""
    if tensor.dtype not in LOW_TYPES:
        return tensor
    return ir.Tensor(np.asarray(tensor.numpy()).astype(np.float32), name=tensor.name)


def upcast_attribute(node: ir.Node, attribute: ir.Attr) -> None:
    """Widen an attribute of `node` in place: a tensor, a type or the number of an element type.

    Other attributes stay, including graphs.
    """
    name = attribute.name
    if attribute.type == ir.AttributeType.TENSOR:
        node.attributes[name] = ir.AttrTensor(name, upcast_tensor(attribute.as_tensor()))
    elif attribute.type == ir.AttributeType.TYPE_PROTO:
        value = attribute.value
        kind = upcast_type(value.type)
        assert kind is not None
        node.attributes[name] = ir.AttrTypeProto(name, ir.TypeAndShape(kind, value.shape))
    elif attribute.type != ir.AttributeType.INT or name not in TYPE_ATTRIBUTES:
        return
    elif attribute.as_int() in LOW_TYPES:
        node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _element_types(model: ir.Model) -> set[ir.DataType]:
    graphs = (model.graph, *model.graph.subgraphs())
    return {v.type.dtype for graph in graphs for v in values_of(graph) if v.type is not None}


def _is_low(value: ir.Value) -> bool:
    return value.type is not None and value.type.dtype in LOW_TYPES


def _computes_fp32(node: ir.Node) -> bool:
    # An output without a type comes from a custom operator, of which nothing is known.
    values = [v for v in _touched(node) if v.name]
    typed = all(v.type is not None for v in values)
    return typed and any(map(is_float, values)) and not any(map(_is_low, values))


def _touched(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values whose elements the node reads or outputs."""
    read = () if is_standard(node, *TYPE_BLIND) else node.inputs
    yield from (v for v in (*read, *node.outputs) if v is not None)


def _drop_casts(graph: ir.Graph) -> None:
    """Remove anchors, and Casts from FP32 to FP32, whose output name is not needed."""
    for node in list(graph):
        if not (is_standard(node, "Cast") or is_anchor(node)):
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


def gaining(network: Network) -> tuple[str, ...]:
    """Return the op types that take BF16 at `BF16_OPSET` but not at the model's own opset."""
    if network.opset >= BF16_OPSET:
        return ()
    low = ir.DataType.BFLOAT16
    now = roles_of(network, low) if network.opset >= FIRST_BF16_OPSET else {}
    later = roles_of(network, low, opset=BF16_OPSET)
    names = {n for n, role in later.items() if role.free and not (n in now and now[n].free)}
    return tuple(sorted({n.op_type for n in network.all_nodes() if node_name(n) in names}))


def raise_opset(network: Network, opset: int = BF16_OPSET) -> Network:
    """Return `network` at a later opset, in normal form; constants are shared, not copied.

    Inputs, outputs and nodes keep their names and types, even if their operator is renamed
    (Upsample). Nodes that the converter adds get new names.

    Raises:
        CaseError: ONNX's converter fails, produces a model that ONNX refuses, or replaces a node by
            nodes that cannot be traced back to it.
    """
    proto, arrays = skeleton(network.model)
    try:
        hide_unknown(proto)
        proto = version_converter.convert_version(proto, opset)
        _show_unknown(proto)
        # The converter gives a wrong rank to some of the values that it adds.
        for graph in graphs_in(proto.graph):
            del graph.value_info[:]
        model = ir.serde.deserialize_model(proto)
    except _FAILURES as error:
        raise CaseError(
            f"ONNX cannot raise the model from opset {network.opset} to {opset}: {said(error)}",
            "Export the model at that opset.",
        ) from error
    _return_constants(network.graph, model.graph, arrays)
    _return_nodes(network.graph, model.graph)
    raised = normalise(model, path=network.path, sha256=network.sha256)
    return replace(network, model=raised.model)


def _show_unknown(proto: onnx.ModelProto) -> None:
    """Undo `hide_unknown`, in place."""
    for node in (n for g in graphs_in(proto.graph) for n in g.node if n.domain == UNKNOWN):
        node.domain = ""
    imports = [i for i in proto.opset_import if i.domain != UNKNOWN]
    del proto.opset_import[:]
    proto.opset_import.extend(imports)


def _return_constants(source: ir.Graph, graph: ir.Graph, names: Container[str | None]) -> None:
    tensors = {
        name: value.const_value
        for owner in (source, *source.subgraphs())
        for name, value in owner.initializers.items()
    }
    for value in [v for v in graph.inputs if v.name in names]:
        graph.inputs.remove(value)
        value.const_value = tensors[tensor_name(value)]
        graph.register_initializer(value)


def _return_nodes(source: ir.Graph, graph: ir.Graph) -> None:
    """Restore what the converter drops of nodes; those that it adds get nothing.

    Rules use the names of nodes whose operators it renames, reports exporters' metadata; and ONNX
    infers no types after operators of custom domains.
    """
    made = {node.name: node for node in graph.all_nodes() if node.name}
    added = [node for node in graph.all_nodes() if not node.name]
    pairs = list(zip(source.inputs, graph.inputs, strict=True))
    for old in source.all_nodes():
        new = made.get(node_name(old)) or next((n for n in added if _succeeds(n, old)), None)
        if new is None:
            raise CaseError(
                f"ONNX's converter replaces node {node_name(old)} ({old.op_type}) by other nodes.",
                "Export the model at that opset.",
            )
        if not new.name:
            new.name, new.outputs[0].name = old.name, old.outputs[0].name
            added.remove(new)
        new.metadata_props.update(old.metadata_props)
        pairs += zip(old.outputs, new.outputs, strict=False)
    for old_value, new_value in pairs:
        new_value.type, new_value.shape = old_value.type, old_value.shape


def _succeeds(new: ir.Node, old: ir.Node) -> bool:
    read = ({v.name for v in node.inputs if v is not None} for node in (old, new))
    return new.op_type == _SUCCESSORS.get(old.op_type) and next(read) <= next(read)
