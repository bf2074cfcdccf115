"""Where a model turns floats into something discrete, and what leads there."""

from collections import deque
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from halfwise.graph.captured import operands, uses_in
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import NodeName, TensorName

_STEPS = frozenset(("Ceil", "Floor", "Round", "Sign"))
"""Operators that give whole numbers as floats."""
_BLIND = frozenset(("Shape", "Size"))
FARTHEST = 24
"""Compute nodes after which the way to a decision is not followed further."""


def decisions(network: Network) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph that make whole numbers or Booleans of computed floats."""
    for node in network.nodes():
        floats = [v for v in operands(node) if is_float(v) and not v.is_initializer()]
        if floats and not is_standard(node, *_BLIND) and _decided(node):
            yield node


def decided(node: ir.Node) -> tuple[TensorName, ...]:
    """Return the discrete outputs of a decision that something reads or the model gives out."""
    used = (v for v in _decided(node) if v.uses() or v.is_graph_output())
    return tuple(TensorName(v.name) for v in used if v.name)


def _decided(node: ir.Node) -> list[ir.Value]:
    if is_standard(node, *_STEPS):
        return list(node.outputs)
    return [
        v
        for v in node.outputs
        if v.dtype is not None and (v.dtype.is_integer() or v.dtype == ir.DataType.BOOL)
    ]


def first_of(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return those of `nodes`, of one graph, that nothing among them leads to."""
    every = list(nodes)
    uses = uses_in(every[0].graph or ()) if every else {}
    behind: set[ir.Node] = set()
    waiting = list(every)
    while waiting:
        for value in waiting.pop().outputs:
            readers = {node for node, _ in uses.get(value, ())} - behind
            behind |= readers
            waiting += readers
    return [node for node in every if node not in behind]


def leading_to(decision: ir.Node, roles: Roles) -> list[NodeName]:
    """Return the compute nodes that a decision comes from, itself included, nearest first.

    Floats alone are followed, through data movement, to integers, constants and inputs; at most
    `FARTHEST` nodes.
    """
    found: dict[NodeName, None] = {}
    seen = {decision}
    waiting = deque([decision])
    while waiting and len(found) < FARTHEST:
        node = waiting.popleft()
        if roles[node_name(node)].role is Role.COMPUTE:
            found[node_name(node)] = None
        producers = [v.producer() for v in operands(node) if is_float(v)]
        for producer in producers:
            if producer is not None and producer not in seen:
                seen.add(producer)
                waiting.append(producer)
    return list(found)
