"""Groups of nodes that are tried together: stretches, places in repeated blocks, suspicions."""

from collections.abc import Mapping, Sequence

from halfwise.records import NodeName

Nodes = frozenset[NodeName]

Classes = Mapping[NodeName, int]
"""Structural class of each node; equal for the same place in repeated blocks."""

COARSE_GROUPS = 8
"""Groups whose contributions are measured first: with three trials they give a plan. Our choice."""


def union(groups: Sequence[Nodes]) -> Nodes:
    """Return everything in any of them."""
    return frozenset[NodeName]().union(*groups)


def stretches(nodes: Sequence[NodeName], classes: Classes) -> list[list[NodeName]]:
    """Return a few groups by place if blocks repeat, else by stretches of the graph."""
    groups = places(nodes, classes)
    if len(groups) * 3 <= len(nodes):
        nodes = [n for place in groups for n in nodes if n in place]
    length = max(1, -(-len(nodes) // COARSE_GROUPS))
    return [list(nodes[i : i + length]) for i in range(0, len(nodes), length)]


def suspicions(suspects: Sequence[Nodes], classes: Classes) -> list[Nodes]:
    """Return guards about the same places as one group each, mildest first."""
    merged: dict[tuple[int, ...], Nodes] = {}
    for group in suspects:
        key = tuple(sorted({classes[n] for n in group}))
        merged[key] = merged.get(key, frozenset()) | group
    return list(reversed(merged.values()))


def places(nodes: Sequence[NodeName], classes: Classes) -> list[Nodes]:
    """Return nodes of one class as a group each, in the order of their first nodes."""
    groups: dict[int, list[NodeName]] = {}
    for node in nodes:
        groups.setdefault(classes[node], []).append(node)
    return [frozenset(place) for place in groups.values()]
