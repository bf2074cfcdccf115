"""Try whether an error that no guard explains is born at one node: does FP32 there undo it?"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf, isinf, isnan

import onnx_ir as ir

from halfwise.graph.captured import operands
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.graph.walk import consumers, producers
from halfwise.records import Followed, Growth, NodeName, Origin
from halfwise.stages.growth import accumulates, born
from halfwise.stages.trial import Trials

MOST_TRIED = 8
"""Nodes tried of those where the error is infinite, and of all others: one run of a sample each."""
MOST = 0.5
"""The origin of an error is a node without which no more than this part of it is left."""

Nodes = frozenset[NodeName]


def follow(
    network: Network, roles: Roles, trials: Trials, kept: Nodes, growth: Sequence[Growth]
) -> Followed:
    """Return where most of the error is born with `kept` in FP32, if trials show a node.

    Relative errors along the graph only say where to look: that of a mean near zero is large, and
    no output feels it. A node is the origin if the error of the outputs falls to `MOST` of what it
    is, or less, once the node is FP32 together with the compute nodes around it (an edge is FP32
    only between kept nodes). Of these no more are taken than that needs, and none where that is
    more than half of what is low: the node alone, with its readers, with theirs, with what it
    reads. All on the worst sample.

    Args:
        network: The model.
        roles: Roles of its nodes.
        trials: On the switched emulation, headroom included.
        kept: What is FP32 beside; the compute nodes that guards and rules explain.
        growth: Relative errors in the model with `kept` in FP32, in graph order.
    """
    nodes = {node_name(n): n for n in network.nodes()}
    error = _number(trials.contribution(kept))
    places = sorted(born(growth), key=lambda g: -g.error)
    infinite = [g.node for g in places if isinf(g.error)][:MOST_TRIED]
    tried = infinite + [g.node for g in places if 0 < g.error < inf][:MOST_TRIED]

    @cache
    def left(group: Nodes) -> float:
        return _number(trials.contribution(kept | group))

    def undoes(group: Nodes) -> bool:
        return left(group) < inf and left(group) <= MOST * error

    def undone(name: NodeName) -> Nodes | None:
        *smaller, whole = _around(nodes[name], nodes, roles)
        if not undoes(whole):
            return None
        group = next(filter(undoes, sorted(smaller, key=len)), whole)
        return group if len(group - kept) <= few else None

    few = sum(r.role is Role.COMPUTE for n, r in roles.items() if n not in kept) / 2
    origin = None
    for name in tried if error > 0 else ():
        if (group := undone(name)) is not None:
            in_order = tuple(n for n in nodes if n in group)
            origin = Origin(node=name, kept=in_order, error=left(group))
            break
    return Followed(
        kept=tuple(n for n in nodes if n in kept),
        error=error,
        tried=tuple(tried),
        origin=origin,
        accumulates=origin is None and accumulates(growth),
    )


def _around(node: ir.Node, nodes: Mapping[NodeName, ir.Node], roles: Roles) -> list[Nodes]:
    """Return the node alone, with its readers, with theirs, with what it reads, and with all."""
    before = [n for v in operands(node) if is_float(v) for n in producers(v, roles)]
    after = _readers([node], nodes, roles)
    behind = _readers(after, nodes, roles)
    every = [*before, *after, *behind]
    groups: list[list[ir.Node]] = [[], after, [*after, *behind], before, every]
    return [
        frozenset(d for n in (node, *g) if roles[d := roles.part(n).decider].role is Role.COMPUTE)
        for g in groups
    ]


def _readers(
    group: Sequence[ir.Node], nodes: Mapping[NodeName, ir.Node], roles: Roles
) -> list[ir.Node]:
    """Return what reads the outputs of a group; for a node in a body, the one that has the body."""
    made = (v for n in group for v in n.outputs if is_float(v))
    return [nodes[roles.part(n).decider] for v in made for n, _ in consumers(v, roles)]


def _number(error: float) -> float:
    return inf if isnan(error) else error
