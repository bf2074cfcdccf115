"""Inline model-local functions, and name what comes of them after the calls that lead there."""

from collections import Counter
from graphlib import CycleError, TopologicalSorter

import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError

MOST_NODES = 1_000_000
"""A hundred times a large model. Forty functions that call the next twice would be 10^12 nodes."""
MOST_CALLS = 200
"""How deep functions may call each other: names of nodes grow with it, and so does the time."""

_CALL = "halfwise.call."
_OWN = "halfwise.name"
_UNCOUNTED = 10**15
_SHOWN = 5


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a model-local function by the function's body, in place.

    A node is named after the calls that lead to it, from the main graph on, and itself:
    `/encoder/block/gelu/Mul`. Operator types stand in for names that are missing.

    Raises:
        CaseError: a function is written for another version of an operator set than the model, or
            the calls expand to more than `MOST_NODES` nodes, or `MOST_CALLS` deep.
        ValueError, ir.passes.PreconditionError: a function calls itself, is given a graph, or more
            inputs than it takes.
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
    """Give nodes what inlining hands on: the marks of a call, before those of the node itself.

    Functions do not call themselves, so on the way to a node each has one call at most.
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
            # What is no call is one node; a call counts as often as it is made.
            own = sum(nodes.get(callee, 1) * n for callee, n in calls[owner].items())
            nodes[owner] = min(own, _UNCOUNTED)
    except CycleError as error:
        circle = " -> ".join(error.args[1][:_SHOWN])
        raise ValueError(f"functions call themselves: {circle}") from None
    if depth[""] > MOST_CALLS:
        raise CaseError(
            f"The model's functions call each other {depth['']:,} deep; at most {MOST_CALLS} is "
            "taken.",
            "Inline them first: onnx.inliner.inline_local_functions(model).",
        )
    if nodes[""] > MOST_NODES:
        raise CaseError(
            f"The model's functions expand to {'at least ' * (nodes[''] == _UNCOUNTED)}"
            f"{nodes['']:,} nodes; at most {MOST_NODES:,} are taken.",
            "Check the functions: they may call each other more often than was meant.",
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
                    f"of the operator set {domain or 'ai.onnx'!r}, and the model uses {own}.",
                    "Inline it first: onnx.inliner.inline_local_functions(model, "
                    "convert_version=True).",
                )
