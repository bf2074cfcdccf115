"""Inline model-local functions, and name what comes of them after the calls that lead there."""

import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError

_CALL = "halfwise.call."
_OWN = "halfwise.name"


def inline_functions(model: ir.Model) -> None:
    """Replace every call of a model-local function by the function's body, in place.

    A node is named after the calls that lead to it, from the main graph on, and itself:
    `/encoder/block/gelu/Mul`. Operator types stand in for names that are missing.

    Raises:
        CaseError: a function is written for another version of an operator set than the model.
        ValueError, ir.passes.PreconditionError: a function calls itself, is given a graph, or more
            inputs than it takes.
    """
    if not model.functions:
        return
    _check_versions(model)
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
