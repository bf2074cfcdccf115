"""Steps to the normal form: inlined calls, Cast for CastLike, unique names, complete constants."""

from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.intake import ONNX_DOMAINS

MOST_NODES = 1_000_000
"""A hundred times a large model. Forty functions that each call the next twice make 10^12 nodes."""
MOST_CALLS = 200
"""Greatest depth of function calls; node names and time grow with it."""
_CALL = "halfwise.call."
_OWN = "halfwise.name"
_UNCOUNTED = 10**15
_SHOWN = 5


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
    known = {
        "opset": (opset, onnx.defs.onnx_opset_version()),
        "IR version": (proto.ir_version, onnx.IR_VERSION),
    }
    for kind, (own, newest) in known.items():
        if own > newest:
            raise CaseError(
                f"{what} has {kind} {own}; onnx {onnx.__version__} here reads up to {newest}.",
                f"Export it for an older {kind}, or install a newer onnx and onnxruntime.",
            )


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a model-local function by the function's body, in place.

    A node's name consists of the calls that lead to it from the main graph, and its own name:
    `/encoder/block/gelu/Mul`. Operator types replace missing names.

    Raises:
        CaseError: a function uses another version of an operator set than the model, or calls
            expand to more than `MOST_NODES` nodes, or `MOST_CALLS` deep.
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
    """Refuse functions that call themselves, or expand to more nodes than any model has."""
    names = {key: f"{key[0]}::{key[1]}{f':{key[2]}' if key[2] else ''}" for key in model.functions}
    graphs = {"": model.graph, **{names[key]: f.graph for key, f in model.functions.items()}}
    calls = {
        owner: Counter(names.get(node.op_identifier(), "") for node in graph.all_nodes())
        for owner, graph in graphs.items()
    }
    nodes: dict[str, int] = {}
    depth: dict[str, int] = {}
    called = {owner: counts.keys() - {""} for owner, counts in calls.items()}
    try:
        for owner in TopologicalSorter(called).static_order():
            depth[owner] = 1 + max((depth[callee] for callee in called[owner]), default=0)
            # A node that is not a call counts as one; a called function counts once per call.
            own = sum(nodes.get(callee, 1) * n for callee, n in calls[owner].items())
            nodes[owner] = min(own, _UNCOUNTED)
    except CycleError as error:
        circle = " -> ".join(error.args[1][:_SHOWN])
        raise ValueError(f"functions call themselves: {circle}") from None
    if depth[""] > MOST_CALLS:
        raise CaseError(
            f"The model nests function calls {depth['']:,} deep; the limit is {MOST_CALLS}.",
            "Inline them first: onnx.inliner.inline_local_functions(model).",
        )
    if nodes[""] > MOST_NODES:
        raise CaseError(
            f"The model's functions expand to {'at least ' * (nodes[''] == _UNCOUNTED)}"
            f"{nodes['']:,} nodes; the limit is {MOST_NODES:,}.",
            "Check whether the functions call each other more often than intended.",
        )


def _check_versions(model: ir.Model) -> None:
    graphs = (model.graph, *(f.graph for f in model.functions.values()))
    called = {node.op_identifier() for graph in graphs for node in graph.all_nodes()}
    for name, function in model.functions.items():
        for domain, version in function.opset_imports.items():
            own = model.opset_imports.get(domain, version)
            if name in called and own != version:
                raise CaseError(
                    f"Function {function.domain}::{function.name} is written for version {version} "
                    f"of operator set {domain or 'ai.onnx'!r}, but the model uses version {own}.",
                    "Inline it first: onnx.inliner.inline_local_functions(model, "
                    "convert_version=True).",
                )


def name_cast_types(graphs: Iterable[ir.Graph]) -> None:
    """Replace each CastLike by a Cast to the type of its second input, in place.

    Names, outputs and attributes (`saturate`, `round_mode`) stay: in every opset with CastLike,
    Cast has the same attributes. A CastLike to an unknown type stays.
    """
    for node in [n for graph in graphs for n in graph]:
        if node.op_type != "CastLike" or node.domain not in ("", "ai.onnx"):
            continue
        like = node.inputs[1]
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


def unreadable_constants(
    graphs: Iterable[ir.Graph], errors: tuple[type[Exception], ...]
) -> Iterator[tuple[ir.Value, Exception]]:
    """Yield the constants whose data is missing or does not fill their shape, with the error.

    Args:
        graphs: The graphs to search.
        errors: Types of errors to yield; others are raised.
    """
    for value in (v for graph in graphs for v in graph.initializers.values()):
        if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING:
            try:
                value.const_value.numpy()
            except errors as error:
                yield value, error


def check_constants(graphs: Iterable[ir.Graph]) -> None:
    """Raise a ValueError for a constant whose data is missing or does not fill its shape."""
    for value, error in unreadable_constants(graphs, (ValueError, OSError)):
        raise ValueError(f"the data of constant {value.name!r} is incomplete: {error}")


def name_uniquely(model: ir.Model) -> dict[str, str]:
    """Rename nodes and values without a unique name, in place.

    ONNX lets bodies of If, Loop and Scan share value names with each other, and does not require
    node names to be unique. Names of graph inputs and outputs stay; next, names of the main graph
    take precedence. An omitted output stays nameless.

    Returns:
        The old name of each renamed node, by its new name ("" for unnamed).
    """
    graphs = (model.graph, *model.graph.subgraphs())
    names = Names()
    for value in dict.fromkeys((*model.graph.inputs, *model.graph.outputs)):
        value.name = names.take(value.name or "v")
    done = {*model.graph.inputs, *model.graph.outputs}
    for graph in graphs:
        for value in values_of(graph):
            if value not in done and (value.name or value.uses() or value.is_graph_output()):
                done.add(value)
                value.name = names.take(value.name or "v")
    former = {}
    names = Names()
    for graph in graphs:
        for node in graph:
            old, node.name = node.name or "", names.take(node.name or "node")
            if old != node.name:
                former[node.name] = old
    return former


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the inputs, initializers and computed values of a graph, without its bodies."""
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs


class Names:
    """Names in use, each with the last number tried."""

    def __init__(self, graphs: Iterable[ir.Graph] = ()) -> None:
        """Take the names of all nodes and values in `graphs`."""
        named = (one for graph in graphs for one in (*values_of(graph), *graph))
        self._taken = {one.name: 0 for one in named if one.name}

    def take(self, wanted: str) -> str:
        """Return `wanted`, numbered if already in use, and mark it as used."""
        name = wanted
        while name in self._taken:
            self._taken[wanted] += 1
            name = f"{wanted}_{self._taken[wanted]}"
        self._taken[name] = 0
        return name


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
