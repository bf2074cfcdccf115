"""Steps of loading: repair what ONNX's tools refuse, infer types, and bring into normal form.

Exporters and editors leave files that run although they break a rule of ONNX: a graph without a
name, an output without a shape, sizes that the model does not compute. Declared shapes of computed
values are only claims until inference confirms them: if they are wrong, ONNX Runtime warns and goes
on.
"""

from collections.abc import Iterable, Mapping
from functools import cache

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.model import ONNX_DOMAINS, Names, graphs_of, is_standard, values_of
from halfwise.graph.protobufs import graphs_in

Axes = tuple[int | str | None, ...]
"""A declared shape: for each axis its size, its name, or None for neither."""


def restore_sizes(outputs: Iterable[ir.Value], declared: Mapping[str, Axes]) -> None:
    """Give outputs their declared sizes where ONNX infers none, in place.

    Who calls the model may rely on them. Axes with an inferred size, and outputs with an inferred
    rank other than the declared one, stay as they are. So do outputs that nodes read too: what
    follows from a wrong size, such as a folded Shape, would be wrong.
    """
    for value in outputs:
        axes = declared.get(value.name or "", ())
        if value.shape is None or len(axes) != len(value.shape) or value.uses():
            continue
        sizes = [
            inferred if isinstance(inferred, int) or not isinstance(claim, int) else claim
            for inferred, claim in zip(value.shape, axes, strict=True)
        ]
        value.shape = ir.Shape(sizes)


def declared_shapes(graphs: Iterable[onnx.GraphProto]) -> dict[str, Axes]:
    """Return the declared shapes of computed values, by name; values without one are left out."""
    return {
        info.name: tuple(
            getattr(d, kind) if (kind := d.WhichOneof("value")) else None for d in shape.dim
        )
        for graph in graphs
        for info in (*graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
        for shape in (info.type.tensor_type.shape,)
    }


def contradicted(declared: Mapping[str, Axes], inferred: Mapping[str, Axes]) -> bool:
    """Return whether the declared rank or sizes of a value differ from the inferred ones."""
    return any(
        len(axes) != len(inferred[name])
        or any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for a, b in zip(axes, inferred[name], strict=True)
        )
        for name, axes in declared.items()
        if name in inferred
    )


def forget_shapes(graphs: Iterable[onnx.GraphProto], *, ranks: bool = False) -> None:
    """Drop declared sizes of computed values, in place, and their ranks too if `ranks`.

    Names of axes stay with the ranks. Wrong sizes remain in a file if only the sizes of its inputs
    were changed. ONNX Runtime ignores them, except for outputs of an If, whose sizes it trusts.
    """
    for graph in graphs:
        for info in _declared(graph):
            for dimension in info.type.tensor_type.shape.dim:
                dimension.ClearField("dim_value")
            if ranks and info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")


def _declared(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the declarations of computed values; those of inputs and constants are facts."""
    facts = {value.name for value in (*graph.input, *graph.initializer)}
    return [info for info in (*graph.value_info, *graph.output) if info.name not in facts]


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


def refuse_unreadable(proto: onnx.ModelProto) -> None:
    """Refuse what onnx-ir cannot read: inputs and outputs that hold maps, and sparse constants.

    Classifiers from skl2onnx and onnxmltools have a map by default: the output of a ZipMap.

    Raises:
        CaseError: the model has one of them.
    """
    for sparse in (s for graph in graphs_in(proto.graph) for s in graph.sparse_initializer):
        raise CaseError(
            f"Constant {sparse.values.name!r} is stored sparse.",
            "Store it dense: onnx.numpy_helper.from_array makes an initializer of an array.",
        )
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


def checkable(proto: onnx.ModelProto, *, any_operator: bool = False) -> onnx.ModelProto:
    """Return a copy in a form that lets ONNX's checker check the nodes.

    The checker demands a type and a shape of every input and output, but compares them with
    nothing: those without one get one. Operators that only ONNX Runtime knows become unknown.

    Args:
        proto: The model; not changed.
        any_operator: Whether to let any operator pass that ONNX does not know.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    hide_unknown(checked, any_operator=any_operator)
    for info in filter(_lacks_shape, (*checked.graph.input, *checked.graph.output)):
        kind = info.type.tensor_type
        kind.elem_type = kind.elem_type or onnx.TensorProto.FLOAT
        kind.shape.SetInParent()
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
    if all(i.domain != UNKNOWN for i in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid(UNKNOWN, 1))


def _lacks_shape(info: onnx.ValueInfoProto) -> bool:
    """Return whether a value is a tensor without a shape, or has no type at all."""
    if info.type.WhichOneof("value") is None:
        return True
    return info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")


def describe_given(graph: onnx.GraphProto) -> None:
    """Give outputs that are themselves inputs or constants the type of these, in place.

    Otherwise, an output without a shape would make the input shapeless too.
    """
    types = {info.name: info.type for info in graph.input}
    for tensor in graph.initializer:
        shape = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        types.setdefault(tensor.name, shape)
    for info in graph.output:
        if info.name in types and _lacks_shape(info):
            info.type.CopyFrom(types[info.name])


def checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph that ONNX's checker accepts, with the types and shapes that ONNX infers.

    Args:
        proto: The model, without large tensors; it loses the declared sizes of computed values.

    Raises:
        ValidationError, InferenceError: ONNX refuses a node, or types contradict each other.
    """
    hide_unknown(proto, any_operator=True)
    onnx.checker.check_model(checkable(proto))
    forget_shapes(graphs_in(proto.graph))
    try:
        inferred = infer_shapes(proto, strict=True)
    except onnx.shape_inference.InferenceError:
        # Declared ranks may be wrong too; or the inference is, which fails for some ONNX functions.
        forget_shapes(graphs_in(proto.graph), ranks=True)
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


MOST_NODES = 1_000_000
"""A hundred times a large model. Forty functions that each call the next twice make 10^12 nodes."""
_CALL = "halfwise.call."
_OWN = "halfwise.name"


def refuse_unusable(proto: onnx.ModelProto, what: object) -> None:
    """Refuse a model, called `what`, that has no outputs or is newer than the installed onnx.

    Raises:
        CaseError: it is one.
    """
    if not proto.graph.output:
        raise CaseError(
            f"{what} has no outputs, so there is nothing to judge.",
            "Export it again, with at least one output.",
        )
    opset = max((i.version for i in proto.opset_import if i.domain in ONNX_DOMAINS), default=1)
    versions = {
        "opset": (opset, onnx.defs.onnx_opset_version()),
        "IR version": (proto.ir_version, onnx.IR_VERSION),
    }
    for kind, (version, newest) in versions.items():
        if version > newest:
            raise CaseError(
                f"{what} has {kind} {version}; onnx {onnx.__version__} here reads up to {newest}.",
                f"Export it for an older {kind}, or install a newer onnx and onnxruntime.",
            )


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a model-local function by the function's body, in place.

    A node's name consists of the calls that lead to it from the main graph, and its own name:
    `/encoder/block/gelu/Mul`. Operator types replace missing names.

    Raises:
        CaseError: a function uses another version of an operator set than the model, or calls
            expand to more than `MOST_NODES` nodes.
        ValueError, ir.passes.PreconditionError: a function calls itself, or gets a graph or too
            many inputs.
    """
    if not model.functions:
        return
    _check_versions(model)
    _check_growth(model)
    _mark(model)
    passes.InlinePass()(model)
    for node in model.graph.all_nodes():
        marks = node.metadata_props
        path = [marks.pop(key) for key in list(marks) if key.startswith(_CALL)]
        if path:
            node.name = "/".join((*path, marks.pop(_OWN, node.op_type)))


def _mark(model: ir.Model) -> None:
    """Mark nodes with metadata that inlining passes on: a call's marks before the node's own.

    Functions do not call themselves, so each has at most one call on the path to a node.
    """
    bodies = {"": model.graph, **{str(name): f.graph for name, f in model.functions.items()}}
    for owner, body in bodies.items():
        for node in body.all_nodes():
            name = node.name or node.op_type
            if node.op_identifier() in model.functions:
                node.metadata_props[f"{_CALL}{owner}"] = name
            elif owner:
                node.metadata_props[_OWN] = name


def _check_growth(model: ir.Model) -> None:
    """Refuse functions that expand to more nodes than any model has."""
    graphs = {str(key): f.graph for key, f in model.functions.items()} | {"": model.graph}
    calls = {k: [str(n.op_identifier()) for n in g.all_nodes()] for k, g in graphs.items()}

    @cache
    def nodes(key: str) -> int:
        return sum(nodes(called) if called in calls else 1 for called in calls[key])

    try:
        size = nodes("")
    except RecursionError:  # inlining refuses it
        return
    if size > MOST_NODES:
        raise CaseError(
            f"The model's functions expand to {size:,} nodes; the limit is {MOST_NODES:,}.",
            "Check whether the functions call each other more often than intended.",
        )


def _check_versions(model: ir.Model) -> None:
    graphs = (model.graph, *(f.graph for f in model.functions.values()))
    called = {node.op_identifier() for graph in graphs for node in graph.all_nodes()}
    for name, function in model.functions.items():
        for domain, version in function.opset_imports.items():
            imported = model.opset_imports.get(domain, version)
            if name in called and imported != version:
                raise CaseError(
                    f"Function {function.domain}::{function.name} is written for version {version} "
                    f"of operator set {domain or 'ai.onnx'!r}, but the model uses version "
                    f"{imported}.",
                    "Inline it first: onnx.inliner.inline_local_functions(model, "
                    "convert_version=True).",
                )


def name_cast_types(graphs: Iterable[ir.Graph]) -> None:
    """Replace each CastLike by a Cast to the type of its second input, in place.

    Names, outputs and attributes (`saturate`, `round_mode`) stay: in every opset with CastLike,
    Cast has the same attributes. A CastLike to an unknown type stays.
    """
    for node in [n for graph in graphs for n in graph]:
        like = node.inputs[1] if is_standard(node, "CastLike") else None
        if like is None or like.dtype is None:
            continue
        node.op_type = "Cast"
        node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
        node.resize_inputs(1)


def drop_unused_constants(graphs: Iterable[ir.Graph]) -> None:
    """Remove initializers that no node reads and that are not outputs, in place.

    ONNX Runtime would remove them itself, and then refuse the arrays passed for them.
    """
    for graph in graphs:
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]


def name_graphs(graphs: Iterable[ir.Graph]) -> None:
    """Name graphs without a name, in place: ONNX's checker demands one."""
    for graph in graphs:
        graph.name = graph.name or "graph"


def name_uniquely(model: ir.Model) -> dict[str, str]:
    """Rename nodes and values without a unique name, in place.

    ONNX lets bodies of If, Loop and Scan share value names with each other, and does not require
    node names to be unique. Names of graph inputs and outputs stay; next, names of the main graph
    take precedence. An omitted output stays nameless.

    Returns:
        The old name of each renamed node, by its new name ("" for unnamed).
    """
    graphs, names, former = graphs_of(model), Names(), dict[str, str]()
    inner = (value for graph in graphs for value in values_of(graph))
    for value in dict.fromkeys((*model.graph.inputs, *model.graph.outputs, *inner)):
        ends = value.is_graph_input() or value.is_graph_output()
        if value.name or value.uses() or ends:
            value.name = names.take(value.name or "v")
    names = Names()
    # Names of the file come first, so that no unnamed node takes one of them.
    nodes = [node for graph in graphs for node in graph]
    for node in sorted(nodes, key=lambda node: not node.name):
        old, node.name = node.name or "", names.take(node.name or node.op_type)
        if old != node.name:
            former[node.name] = old
    return former


def open_negative_sizes(graphs: Iterable[ir.Graph]) -> None:
    """Make axes of negative size dynamic, in place: ONNX Runtime reads exporters' -1 as dynamic.

    A size of 0 stays: ONNX Runtime refuses any other size for it.
    """
    for graph in graphs:
        computed = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *computed):
            sizes = tuple(value.shape or ())
            if any(isinstance(size, int) and size < 0 for size in sizes):
                value.shape = ir.Shape(
                    None if isinstance(size, int) and size < 0 else size for size in sizes
                )
