"""Why a tensor is not scaled into range: an operator produces or reads it unscaled."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from halfwise.graph.model import Network, node_name
from halfwise.graph.scaling import relations
from halfwise.records import Guard, GuardKind, NodeName, Remark

_RANGES: frozenset[GuardKind] = frozenset(("overflow", "square", "headroom", "underflow"))


def unscaled(
    network: Network, guards: Iterable[Guard], kept: frozenset[NodeName]
) -> Iterator[Remark]:
    """Yield, for each operator that prevents it, a tensor that a guard still names.

    Args:
        network: The model, with all repairs made.
        guards: Guards on it.
        kept: Nodes in FP32: a guard on none of them does no harm.
    """
    found = relations(network.model)
    producers = {v.name: node for node in network.nodes() for v in node.outputs}
    fixed: dict[str, ir.Node] = {}
    for name, edge in found.edges.items():
        if name in found.fixed and edge.node is not None:
            fixed.setdefault(edge.tensor, edge.node)
    told: dict[tuple[str, str], Remark] = {}
    for guard in guards:
        if guard.kind not in _RANGES or guard.tensor is None or kept.isdisjoint(guard.nodes):
            continue
        by = {"maker": producers.get(guard.tensor), "reader": fixed.get(guard.tensor)}
        if guard.tensor not in found.fixed:
            del by["maker"]
        for how, node in by.items():
            if node is not None:
                names = {"tensor": guard.tensor, how: node_name(node), "op": node.op_type}
                told.setdefault((how, node.op_type), Remark(kind="unscaled", names=names))
                break
    yield from told.values()
