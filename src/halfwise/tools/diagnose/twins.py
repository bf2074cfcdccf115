"""Find other places in a graph with the same operators and connections."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=str)


def twins(
    part: frozenset[Node], reads: Mapping[Node, Sequence[Node]], labels: Mapping[Node, str]
) -> list[frozenset[Node]]:
    """Return disjoint parts of the graph that look like `part`, without `part` itself.

    Args:
        part: A few nodes; unconnected ones have no twins.
        reads: The nodes each node reads; acyclic.
        labels: What a node and its twin must share, such as the operator.
    """
    near = {node: {*those} for node, those in reads.items()}
    for node, those in reads.items():
        for before in those:
            near[before].add(node)
    line = _connected(part, near)
    if line is None:
        return []
    found: list[frozenset[Node]] = []
    used = set(part)
    for start in reads:
        if labels[start] != labels[line[0]] or start in used:
            continue
        match = next(_matches(line, [start], reads, labels, near), None)
        if match is not None and used.isdisjoint(match):
            used.update(match)
            found.append(frozenset(match))
    return found


def _connected(part: frozenset[Node], near: Mapping[Node, set[Node]]) -> list[Node] | None:
    """Return the nodes, each adjacent to an earlier one; None if that is impossible."""
    line = [min(part)]
    for node in line:
        line += sorted((near[node] & part).difference(line))
    return line if len(line) == len(part) else None


def _matches(
    line: Sequence[Node],
    match: list[Node],
    reads: Mapping[Node, Sequence[Node]],
    labels: Mapping[Node, str],
    near: Mapping[Node, set[Node]],
) -> Iterator[list[Node]]:
    """Yield the continuations of a match of the first nodes of `line`."""
    if len(match) == len(line):
        yield match
        return
    node = line[len(match)]
    beside = {one for known in match for one in near[known]}
    for other in sorted(beside.difference(match)):
        fits = all(
            (known in reads[node]) == (image in reads[other])
            and (node in reads[known]) == (other in reads[image])
            for known, image in zip(line, match, strict=False)
        )
        if fits and labels[other] == labels[node]:
            yield from _matches(line, [*match, other], reads, labels, near)
