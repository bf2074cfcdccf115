"""The bodies of a low If, Loop or Scan, inside the switched model."""

from collections.abc import Collection, Iterable, Mapping
from copy import copy

import onnx_ir as ir

from halfwise.emulation.typed import widen_body
from halfwise.graph.casts import lower_bodies
from halfwise.graph.roles import Roles
from halfwise.graph.weights import LowWeights


def emulate_bodies(
    node: ir.Node,
    roles: Roles,
    weights: LowWeights,
    rounded: Mapping[str, ir.Value],
    *,
    low_sums_from: int | None,
) -> None:
    """Give `node` low bodies of its own, emulated as those of the rewritten model are.

    Args:
        node: A low If, Loop or Scan; its bodies are replaced, not changed.
        roles: Roles of the network's nodes.
        weights: The network's weights in the low format.
        rounded: Rounded versions of what low nodes of the main graph read, by name: FP32 values
            that are rounded, or weights in the low type.
        low_sums_from: The opset where sums of low nodes are to be low, None for FP32 sums.
    """
    for attribute in list(node.attributes.values()):
        if attribute.type != ir.AttributeType.GRAPH:
            continue
        clone = attribute.as_graph().clone(allow_outer_scope_values=True)
        node.attributes[attribute.name] = ir.AttrGraph(attribute.name, clone)
        graphs = (clone, *clone.subgraphs())
        captured = _read_rounded(graphs, roles, rounded)
        lower_bodies(graphs, roles, weights)
        formats = dict.fromkeys(captured, weights.fmt)
        widen_body(clone, formats, low_sums_from=low_sums_from, large=weights.large)
        _rename((clone, *clone.subgraphs()), "::body")


def _read_rounded(
    graphs: Collection[ir.Graph], roles: Roles, rounded: Mapping[str, ir.Value]
) -> list[ir.Value]:
    """Let bodies read rounded versions of what they take low from outside; return these."""
    captured = []
    for node in (n for graph in graphs for n in graph):
        part = roles.part(node)
        for slot, value in enumerate(node.inputs):
            if value is not None and value.graph not in graphs and part.reads_low(slot):
                version = rounded[value.name or ""]
                version.shape = value.shape
                node.replace_input_with(slot, version)
                captured.append(version)
    return captured


def _rename(graphs: Iterable[ir.Graph], suffix: str) -> None:
    """Append `suffix` to every name in bodies: their originals are in the model too."""
    for graph in graphs:
        own = [*graph.inputs, *graph.initializers.values()]
        for value in (*own, *(v for node in graph for v in node.outputs)):
            if value.const_value is not None:
                # The tensor is shared, and has the name of the value.
                value.const_value = copy(value.const_value)
            if value.name:
                value.name += suffix
        for node in graph:
            node.name = f"{node.name}{suffix}"
