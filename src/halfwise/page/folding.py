"""Fold a graph into boxes: by scope, by repeated blocks, and by stretches where it is flat."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np

from halfwise.page.structure import Structure
from halfwise.records import Graph
from halfwise.wording import listed

MOST_INSIDE = 36
"""Largest number of boxes and nodes in one box, unless it holds a body: a reader can take in that
many, and they are laid out instantly."""
_DEPTH = 12
"""Largest number of scopes in a name; the rest of a longer name is one scope."""
_PERIOD = 300
"""Largest number of boxes and nodes in a block that is found by its structure alone."""
_LEAST = 4
"""Smallest number of nodes that folding a repeated block must hide."""
_TRIED = 8
"""How often a node's wiring may be compared in the search for blocks."""
_LABEL = 60
"""Largest number of characters in a label."""
_TO = " … "


@dataclass(frozen=True)
class Box:
    """A part of the graph that can be folded into one box.

    Attributes:
        label: Its label.
        parent: The box around it, as an index into `Folding.boxes`; -1 for none.
        times: How often a block repeats whose copies the box holds; else 1.
    """

    label: str
    parent: int
    times: int = 1


@dataclass(frozen=True)
class Folding:
    """All boxes, each after the one around it, and the box of each node, -1 for none."""

    boxes: tuple[Box, ...]
    places: tuple[int, ...]


@dataclass
class _Part:
    label: str
    inside: "list[_Item]" = field(default_factory=list)
    times: int = 1


_Item: TypeAlias = "_Part | int"
"""A part, or the index of a node in the graph."""


def fold(graph: Graph) -> Folding:
    """Return the boxes of a graph.

    Nodes are grouped by scope first, those in a body with the node that owns it. Consecutive blocks
    of the same structure become one box, whether they are scopes or not; Casts that the user's
    model lacks are ignored. What is still flat is cut into stretches where the fewest tensors pass.
    """
    structure = Structure(graph)
    root = _by_scope(graph)
    _tidy(root)
    _repeat_inside(root, structure)
    _cut(root, structure, graph)
    boxes: list[Box] = []
    places = [-1] * len(graph.nodes)
    waiting = [(item, -1) for item in reversed(root.inside)]
    while waiting:
        item, parent = waiting.pop()
        if isinstance(item, int):
            places[item] = parent
            continue
        boxes.append(Box(item.label[: 2 * _LABEL], parent, item.times))
        waiting += [(child, len(boxes) - 1) for child in reversed(item.inside)]
    return Folding(tuple(boxes), tuple(places))


def short(name: str) -> str:
    """Return the last part of a name."""
    return name.rstrip("/").rpartition("/")[2] or name


def _by_scope(graph: Graph) -> _Part:
    root = _Part("")
    known: dict[tuple[object, ...], _Part] = {(): root}
    owners = set(graph.bodies.values())
    paths: list[tuple[object, ...]] = []
    for i, scope in enumerate(graph.scopes):
        names = [name for name in graph.scope_names[scope].split("/") if name]
        path: tuple[object, ...] = (*names[:_DEPTH], "/".join(names[_DEPTH:]))
        path = path if path[-1] else path[:-1]
        if i in graph.bodies:
            # Owners come before the nodes in their bodies.
            path = paths[graph.bodies[i]]
        paths.append((*path, i) if i in owners else path)
        for depth in range(1, len(paths[i]) + 1):
            if (here := paths[i][:depth]) not in known:
                last = here[-1]
                known[here] = _Part(
                    short(graph.nodes[last]) if isinstance(last, int) else str(last)
                )
                known[here[:-1]].inside.append(known[here])
        known[paths[i]].inside.append(i)
    return root


def _tidy(part: _Part) -> None:
    """Open the boxes in `part` that hold a single item."""
    for i, item in enumerate(part.inside):
        if isinstance(item, int):
            continue
        _tidy(item)
        if len(item.inside) == 1:
            only = item.inside[0]
            if isinstance(only, _Part):
                only.label = f"{item.label}/{only.label}"
            part.inside[i] = only


def _nodes(items: Sequence[_Item]) -> list[int]:
    """Return the indices of all nodes in items, ascending."""
    found: list[int] = []
    waiting = list(items)
    while waiting:
        item = waiting.pop()
        if isinstance(item, int):
            found.append(item)
        else:
            waiting += item.inside
    return sorted(found)


def _repeat_inside(part: _Part, structure: Structure) -> None:
    for item in part.inside:
        if isinstance(item, _Part):
            _repeat_inside(item, structure)
    part.inside = _repeated(part.inside, structure)


def _repeated(items: list[_Item], structure: Structure) -> list[_Item]:
    """Return items with each row of copies of a block in its own box."""
    solid = [i for i, item in enumerate(items) if not structure.is_passed(_nodes([item]))]
    found: list[_Item] = []
    done = 0
    for start, period, times in _rows([_nodes([items[i]]) for i in solid], structure):
        ends = [solid[start + k * period] for k in range(times)]
        ends.append(solid[start + times * period - 1] + 1)
        copies = [_copy(items[a:b], structure) for a, b in pairwise(ends)]
        if all(isinstance(items[a], _Part) and b - a == 1 for a, b in pairwise(ends)):
            label = listed([copy.label for copy in copies], most=2, width=_LABEL // 2)
        else:
            label = _label(items[ends[0] : ends[-1]], structure)
        found += [*items[done : ends[0]], _Part(label, list(copies), times)]
        done = ends[-1]
    return [*found, *items[done:]]


def _copy(items: list[_Item], structure: Structure) -> _Part:
    if len(items) == 1 and isinstance(items[0], _Part):
        return items[0]
    return _Part(_label(items, structure), _repeated(items, structure))


def _label(items: Sequence[_Item], structure: Structure) -> str:
    first, last = (
        item.label if isinstance(item, _Part) else short(structure.names[item])
        for item in (items[0], items[-1])
    )
    # For nested stretches the outer ends count.
    first, last = first.partition(_TO)[0], last.rpartition(_TO)[2]
    return f"{first[: _LABEL // 2]}{_TO}{last[-_LABEL // 2 :]}"


def _rows(parts: Sequence[Sequence[int]], structure: Structure) -> list[tuple[int, int, int]]:
    """Return the start of each row of copies, the parts per copy, and the number of copies.

    Rows do not overlap; those that hide the most nodes in all copies but one take precedence.

    Args:
        parts: The nodes of each part, in order.
        structure: The graph's structure.
    """
    kinds = np.array([structure.kind(nodes) for nodes in parts])
    weights = np.array([len(nodes) for nodes in parts])
    taken = np.zeros(len(parts), bool)
    found = []
    work = _TRIED * int(weights.sum())
    for start, period, times in _candidates(kinds, weights):
        span = slice(start, start + times * period)
        if taken[span].any() or work < 0:
            continue
        work -= int(weights[span].sum())
        blocks = [
            structure.kind(sorted(chain.from_iterable(parts[at : at + period])))
            for at in range(start, start + times * period, period)
        ]
        ends = [k for k in range(1, times) if blocks[k] != blocks[k - 1]]
        runs = zip([0, *ends], [*ends, times], strict=True)
        first, beyond = max(runs, key=lambda run: run[1] - run[0])
        if beyond - first > 1:
            found.append((start + first * period, period, beyond - first))
            taken[start + first * period : start + beyond * period] = True
    return sorted(found)


def _candidates(
    kinds: "np.ndarray[tuple[int], np.dtype[np.int_]]",
    weights: "np.ndarray[tuple[int], np.dtype[np.int_]]",
) -> list[tuple[int, int, int]]:
    """Return start, period and times of rows of equal kinds, most hidden nodes first."""
    found: list[tuple[int, int, int, int]] = []
    before = np.concatenate(([0], np.cumsum(weights)))
    for period in range(1, min(len(kinds) // 2, _PERIOD) + 1):
        for start, length in _runs(kinds[period:] == kinds[:-period]):
            times = length // period + 1
            size = int(before[start + period] - before[start])
            if times > 1 and size > 1 and (times - 1) * size >= _LEAST:
                found.append(((times - 1) * size, start, period, times))
    found.sort(key=lambda one: (-one[0], one[2], one[1]))
    return [one[1:] for one in found]


def _runs(same: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Iterator[tuple[int, int]]:
    """Yield the start and length of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start, end - start


def _cut(part: _Part, structure: Structure, graph: Graph) -> None:
    """Cut an overfull `part` into stretches, where the fewest tensors pass."""
    for item in part.inside:
        if isinstance(item, _Part):
            _cut(item, structure, graph)
    while len(part.inside) > MOST_INSIDE:
        firsts = [item if isinstance(item, int) else _nodes([item])[0] for item in part.inside]
        count = -(-len(firsts) // (MOST_INSIDE * 2 // 3))
        step, slack = len(firsts) / count, len(firsts) // count // 4
        places = [0]
        for k in range(1, count):
            near = range(round(k * step) - slack, round(k * step) + slack + 1)
            places.append(
                min(near, key=lambda i: (structure.passing[firsts[i]], abs(i - k * step)))
            )
        ends = [*places[1:], len(firsts)]
        stretches = [part.inside[a:b] for a, b in zip(places, ends, strict=True)]
        part.inside = [_Part(_label(items, structure), items) for items in stretches]
