"""Repair flaws that ONNX Runtime ignores but ONNX's tools refuse, and infer types with ONNX.

Exporters and editors leave files that run although they break a rule of ONNX: a graph without a
name, an output without a shape, sizes that the model does not compute. Declared shapes of computed
values are only claims: if they are wrong, ONNX Runtime warns and goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.graph.declared import forget_shapes, forget_sizes
from halfwise.graph.serialisation import bodies_of, graphs_in
from halfwise.graph.weights import PROTOBUF_BYTES
from halfwise.wording import number

ONNX_DOMAINS = ("", "ai.onnx")
UNKNOWN = "halfwise.unknown"
"""Domain of operators that ONNX does not know, and from which it therefore infers nothing."""
DROPPED = frozenset(
    (
        *("ATen", "Affine", "ConstantFill", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill"),
        *("ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"),
    )
)
"""Experimental operators that ONNX 1.5 dropped (onnx/checker.cc). ONNX Runtime still runs most."""
OF_ONNX_RUNTIME = frozenset(("LayerNormalization", "SimplifiedLayerNormalization"))
"""Operators that ONNX Runtime's optimiser puts into ONNX's own domain at any opset: ONNX has the
first since opset 17, and the second not at all."""
LONGEST_SHAPE = 64
"""Elements of the longest vector that may be a shape."""


class Flaw(Enum):
    """A flaw in a file that does not change what the model computes."""

    NAMELESS = "a graph has no name"
    SPARSE = "a constant is stored sparse"
    REPEATED = "a value is described more than once"
    SHAPELESS = "an input or output has no shape"
    UNSORTED = "a node comes before one that it reads from"
    MISDECLARED = "the declared shape of a value differs from the one that ONNX infers"


@dataclass(frozen=True)
class Repair:
    """One repaired flaw.

    Attributes:
        flaw: What was wrong.
        names: The affected values, in graph order; empty if the flaw concerns a graph or nodes.
    """

    flaw: Flaw
    names: tuple[str, ...] = ()


def refuse_maps(proto: onnx.ModelProto) -> None:
    """Refuse inputs and outputs that hold maps, which onnx-ir cannot read.

    Classifiers from skl2onnx and onnxmltools have one by default: the output of a ZipMap.

    Raises:
        CaseError: an input or output holds a map.
    """
    for side, values in (("Input", proto.graph.input), ("Output", proto.graph.output)):
        for value in values:
            kind = value.type
            while (inner := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
                kind = getattr(kind, inner).elem_type
            if inner == "map_type":
                raise CaseError(
                    f"{side} {value.name!r} holds maps, not a tensor.",
                    "Export the model without ZipMap: options={'zipmap': False} in skl2onnx, "
                    "zipmap=False in onnxmltools.",
                )


def repair(proto: onnx.ModelProto) -> tuple[Repair, ...]:
    """Name graphs, make sparse constants dense and drop repeated value descriptions, in place.

    Inputs and outputs without a shape are listed too; inference gives outputs one where it can.

    Raises:
        ValueError: a sparse constant is malformed, or too large to be dense.
    """
    graphs = [*graphs_in(proto.graph)]
    for function in proto.functions:
        graphs += [g for n in function.node for body in bodies_of(n) for g in graphs_in(body)]
    nameless = [graph for graph in graphs if not graph.name]
    for graph in nameless:
        graph.name = "graph"
    nodes = [n for owner in (*graphs, *proto.functions) for n in owner.node]
    dense = [name for graph in graphs for name in _densify_initializers(graph)]
    dense += [name for node in nodes for name in _densify_constant(node)]
    _describe_given(proto.graph)
    ends = (*proto.graph.input, *proto.graph.output)
    found = {
        Flaw.SPARSE: dense,
        Flaw.REPEATED: [name for graph in graphs for name in _drop_repeated(graph)],
        Flaw.SHAPELESS: [info.name for info in ends if _lacks_shape(info)],
    }
    named = [Repair(flaw, tuple(dict.fromkeys(names))) for flaw, names in found.items() if names]
    return (*([Repair(Flaw.NAMELESS)] if nameless else []), *named)


def checkable(proto: onnx.ModelProto, *, any_operator: bool = False) -> onnx.ModelProto:
    """Return a copy in a form that lets ONNX's checker check the nodes.

    The checker demands a shape for every input and output. Outputs without one are left out, and
    inputs without one become outputs of an unknown operator. Operators that only ONNX Runtime knows
    become unknown too.

    Args:
        proto: The model; not changed.
        any_operator: Whether to let any operator pass that ONNX does not know.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    graph = checked.graph
    hide_unknown(checked, any_operator=any_operator)
    for info in [info for info in graph.output if _lacks_shape(info)]:
        graph.output.remove(info)
    unshaped = [info for info in graph.input if _lacks_shape(info)]
    for info in unshaped:
        graph.input.remove(info)
    if unshaped:
        names = [info.name for info in unshaped]
        nodes = [onnx.helper.make_node("Input", [], names, domain=UNKNOWN), *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return checked


def hide_unknown(proto: onnx.ModelProto, *, any_operator: bool = False) -> None:
    """Move operators that ONNX Runtime knows but ONNX does not to the domain `UNKNOWN`, in place.

    Args:
        proto: The model.
        any_operator: Whether to move every operator that no opset of ONNX has.
    """
    opset = max((i.version for i in proto.opset_import if i.domain in ONNX_DOMAINS), default=1)
    for node in (n for g in graphs_in(proto.graph) for n in g.node if n.domain in ONNX_DOMAINS):
        early = node.op_type in OF_ONNX_RUNTIME and not onnx.defs.has(node.op_type, opset)
        if early or node.op_type in DROPPED or (any_operator and not onnx.defs.has(node.op_type)):
            node.domain = UNKNOWN
    proto.opset_import.append(onnx.helper.make_opsetid(UNKNOWN, 1))


def _lacks_shape(info: onnx.ValueInfoProto) -> bool:
    """Return whether a value is a tensor without a shape, or has no type at all."""
    if info.type.WhichOneof("value") is None:
        return True
    return info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")


def _describe_given(graph: onnx.GraphProto) -> None:
    """Give outputs that are themselves inputs or constants the type of these, in place.

    Otherwise, an output without a shape would make the input shapeless too.
    """
    given = {info.name: info.type for info in graph.input}
    for tensor in graph.initializer:
        shape = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        given.setdefault(tensor.name, shape)
    for info in graph.output:
        if info.name in given and _lacks_shape(info):
            info.type.CopyFrom(given[info.name])


def _densify_initializers(graph: onnx.GraphProto) -> Iterable[str]:
    names = [sparse.values.name for sparse in graph.sparse_initializer]
    graph.initializer.extend(_dense(sparse) for sparse in graph.sparse_initializer)
    del graph.sparse_initializer[:]
    return names


def _densify_constant(node: onnx.NodeProto) -> Iterable[str]:
    sparse = [a for a in node.attribute if a.HasField("sparse_tensor")]
    if node.op_type != "Constant" or not sparse:
        return ()
    (attribute,) = sparse
    dense = onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor))
    attribute.CopyFrom(dense)
    return list(node.output)


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return the dense form of a sparse tensor: zero where it stores no value.

    Indices are int64[n] into the flattened tensor, or int64[n, rank] (ONNX IR, SparseTensorProto).
    """
    name, shape = sparse.values.name, tuple(sparse.dims)
    too_large = prod(shape) * 8 > PROTOBUF_BYTES
    if too_large or sparse.values.data_location == onnx.TensorProto.EXTERNAL:
        why = (
            f"it has {number(prod(shape))} elements" if too_large else "its data is in another file"
        )
        raise ValueError(f"sparse constant {name!r} cannot be made dense: {why}")
    values, indices = map(onnx.numpy_helper.to_array, (sparse.values, sparse.indices))
    try:
        return onnx.numpy_helper.from_array(_scattered(values, indices, shape), name)
    except (ValueError, IndexError) as error:
        raise ValueError(f"sparse constant {name!r} cannot be made dense: {error}") from None


def _scattered(
    values: NDArray[np.generic], indices: NDArray[np.generic], shape: tuple[int, ...]
) -> NDArray[np.generic]:
    dense = np.zeros(shape, values.dtype)
    places = tuple(indices.T) if indices.ndim == 2 else (indices,)
    flat = np.ravel_multi_index(places, shape) if indices.ndim == 2 else indices
    dense.reshape(-1)[flat] = values
    return dense


def _drop_repeated(graph: onnx.GraphProto) -> Iterable[str]:
    seen: dict[str, onnx.ValueInfoProto] = {}
    repeated = [v.name for v in graph.value_info if seen.setdefault(v.name, v) is not v]
    if repeated:
        kept = list(seen.values())
        del graph.value_info[:]
        graph.value_info.extend(kept)
    return repeated


def checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph that ONNX's checker accepts, with the types and shapes that ONNX infers.

    Args:
        proto: The model, without large tensors; it loses the declared sizes of computed values.

    Raises:
        ValidationError, InferenceError: ONNX refuses a node, or types contradict each other.
    """
    onnx.checker.check_model(checkable(proto))
    forget_sizes(graphs_in(proto.graph))
    try:
        inferred = infer_shapes(proto, strict=True)
    except onnx.shape_inference.InferenceError:
        # Declared ranks may be wrong too; or the inference is, which fails for some ONNX functions.
        forget_shapes(graphs_in(proto.graph))
        inferred = infer_shapes(proto, check_type=True)
    onnx.checker.check_model(checkable(inferred))
    return inferred


def infer_shapes(
    proto: onnx.ModelProto, *, check_type: bool = False, strict: bool = False
) -> onnx.ModelProto:
    """Return a model with the types and shapes that ONNX infers, also from constants' values.

    Args:
        proto: The model, without large tensors.
        check_type: Raise an InferenceError if types contradict each other; else leave them open.
        strict: Raise it also if shapes contradict each other.
    """
    check_type |= strict
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=check_type, strict_mode=strict)
    if not any(is_long_vector(info) for info in inferred.graph.value_info):
        # Propagating values finds more shapes, but takes minutes for a long vector.
        inferred = onnx.shape_inference.infer_shapes(
            inferred, check_type=check_type, data_prop=True
        )
    return inferred


def take_types(model: ir.Model, inferred: onnx.ModelProto) -> None:
    """Give every computed value of `model` its type and shape in `inferred`, in place."""
    types = {
        info.name: info.type
        for graph in graphs_in(inferred.graph)
        for info in (*graph.input, *graph.output, *graph.value_info)
    }
    computed = [v for node in model.graph.all_nodes() for v in node.outputs]
    for value in (*computed, *(v for body in model.graph.subgraphs() for v in body.inputs)):
        if value.name in types:
            value.type = ir.serde.deserialize_type_proto_for_type(types[value.name])
            value.shape = ir.serde.deserialize_type_proto_for_shape(types[value.name])


def is_long_vector(info: onnx.ValueInfoProto) -> bool:
    """Return whether a value is a vector known to be longer than `LONGEST_SHAPE`."""
    dims = info.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONGEST_SHAPE
