"""Find the few wrong nodes by testing parts of a graph on their true inputs, and places like them.

Pure search: an oracle says whether a part is wrong. One question may cover several disjoint parts,
since they fit side by side in one engine; so all single nodes, or all stretches of a graph, cost as
much as one. Assumes that a part is wrong if it holds a wrong one; otherwise a larger part is found,
but never one that is not wrong.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from halfwise.graph.dataflow import reached

Node = TypeVar("Node", bound=str)
Ask = Callable[[Sequence[frozenset[Node]]], Sequence[bool | None]]
"""Whether each part is wrong, None if unknown."""

STRETCH = 8
"""Nodes of a stretch. Our choice: stretches starting at every fourth node hold any five nodes in a
row, and wrong fusions are small."""
ENOUGH = 3
"""Size at which a part need not shrink. Our choice: a person reads this many at a glance."""


class Spent(Exception):
    """The budget of questions is spent."""


def localise(
    reads: Mapping[Node, Sequence[Node]],
    ask: Ask[Node],
    *,
    together: bool = True,
    alone: bool = True,
    whole: bool = True,
) -> list[frozenset[Node]]:
    """Return the smallest parts found wrong, disjoint; empty if none.

    First every node alone, then stretches of neighbours and halves of those that are wrong; if each
    is right on its own, the last node from which the graph is wrong, and then what else that needs.

    Args:
        reads: The nodes each node reads; acyclic.
        ask: The oracle. It may raise `Spent`: then the results so far count.
        together: Whether it can test several parts at once.
        alone: Whether it then tests every node alone; otherwise no node is known to be wrong alone.
        whole: Whether the whole graph is known to be wrong; otherwise only nodes and stretches are
            tested.
    """
    order = in_order(reads)
    if not order:
        return []
    near = _near(reads)
    known: dict[int, frozenset[Node]] = {}
    try:
        if together:
            wrong = _those(ask, [frozenset([node]) for node in order]) if alone else []
            for start in (0, STRETCH // 2):
                if wrong or (whole and len(order) <= STRETCH):
                    break
                wrong = _those(ask, list(_stretches(order, start)))
            if wrong:
                for start in (0, STRETCH // 4):
                    known = dict(enumerate(wrong))
                    wrong = _halved(wrong, start, order, ask)
                known = dict(enumerate(wrong))
                _all_shrunk(known, order, near, ask)
                return list(known.values())
        if whole:
            _all_shrunk(known, order, near, ask, whole=True)
    except Spent:
        pass
    return list(known.values())


def in_order(reads: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Return nodes in topological order, keeping chains in one piece if possible.

    Depth first, from the nodes that nothing reads.
    """
    read = {before for those in reads.values() for before in those}
    found: dict[Node, None] = {}
    for end in (node for node in reads if node not in read):
        waiting = [(end, iter(reads[end]))]
        while waiting:
            node, rest = waiting[-1]
            ahead = next((one for one in rest if one not in found), None)
            if ahead is not None:
                waiting.append((ahead, iter(reads[ahead])))
            else:
                found[node] = None
                waiting.pop()
    return list(found)


_Near = tuple[Mapping[Node, Sequence[Node]], Mapping[Node, Sequence[Node]]]
"""The readers of each node, and the nodes it reads."""


def _near(reads: Mapping[Node, Sequence[Node]]) -> _Near[Node]:
    readers: dict[Node, list[Node]] = {node: [] for node in reads}
    for node, those in reads.items():
        for before in those:
            readers[before].append(node)
    return readers, reads


def _those(ask: Ask[Node], parts: Sequence[frozenset[Node]]) -> list[frozenset[Node]]:
    return [part for part, wrong in zip(parts, ask(parts), strict=True) if wrong]


def _stretches(order: Sequence[Node], start: int, size: int = STRETCH) -> Iterator[frozenset[Node]]:
    bounds = [*range(start or size, len(order), size), len(order)]
    for first, last in zip([0, *bounds], bounds, strict=False):
        yield frozenset(order[first:last])


def _halved(
    parts: Sequence[frozenset[Node]], start: int, order: Sequence[Node], ask: Ask[Node]
) -> list[frozenset[Node]]:
    """Return parts, stretches replaced by their halves that are wrong; all are asked at once."""
    half = STRETCH // 2
    halves = {
        part: list(_stretches([node for node in order if node in part], start, half))
        for part in parts
        if len(part) > half
    }
    asked = [one for those in halves.values() for one in those]
    wrong = frozenset(_those(ask, asked)) if asked else frozenset()
    return [p for part in parts for p in wrong.intersection(halves.get(part, ())) or (part,)]


def _all_shrunk(
    known: dict[int, frozenset[Node]],
    order: Sequence[Node],
    near: _Near[Node],
    ask: Ask[Node],
    *,
    whole: bool = False,
) -> None:
    """Shrink the parts in `known`, in place, all with one question at a time.

    `whole` shrinks the whole graph, which is not known to be wrong.
    """
    parts = {0: frozenset(order)} if whole else dict(known)
    searches = {i: _shrunk([n for n in order if n in part], near) for i, part in parts.items()}
    answers: dict[int, bool | None] = dict.fromkeys(searches)
    while True:
        questions = {i: part for i, wrong in answers.items() if (part := _next(searches[i], wrong))}
        if not questions:
            return
        answers = dict(zip(questions, ask(list(questions.values())), strict=True))
        known.update({i: questions[i] for i, wrong in answers.items() if wrong})


_Search = Generator[frozenset[Node], bool | None, None]


def _next(search: _Search[Node], answer: bool | None) -> frozenset[Node] | None:
    """Return a search's next question after an answer; None at its end."""
    try:
        return search.send(answer)
    except StopIteration:
        return None


def _shrunk(line: Sequence[Node], near: _Near[Node]) -> _Search[Node]:
    """Test ever smaller parts of a wrong part; each wrong one is the smallest so far.

    First, how much of its beginning can be left out; the next node is needed. Then, nearest nodes
    first, how few more suffice; the last of these is needed too, and so on.

    Args:
        line: The part, in the order of the graph.
        near: The readers of each node, and the nodes it reads.
    """
    first, end = 0, len(line)
    while end - first > 1:
        middle = (first + end) // 2
        if (yield frozenset(line[middle:])):
            first = middle
        else:
            end = middle
    needed, rest = [line[first]], list(line[first + 1 :])
    while rest and len(needed) + len(rest) > ENOUGH:
        inside = _between(needed, rest, near)
        fewer = inside if len(inside) < len(rest) else []
        # If many are left, at least one is probably needed.
        if (fewer or len(rest) < STRETCH // 2) and (yield frozenset((*needed, *fewer))):
            rest = fewer
            continue
        rest = _nearest(needed, rest, near)
        few, many, step = 0, len(rest), 2
        while many - few > 1:
            # Ever longer steps while wrong; then halves.
            middle = few + step if few + step < many and step else (few + many) // 2
            if (yield frozenset((*needed, *rest[:middle]))):
                many, step = middle, 0
            else:
                few, step = middle, 2 * step
        needed.append(rest[many - 1])
        rest = rest[: many - 1]


def _between(ends: Collection[Node], among: Collection[Node], near: _Near[Node]) -> list[Node]:
    """Return the nodes on paths through `among` that begin and end at `ends`."""
    inside = {*ends, *among}
    ahead, behind = (reached(ends, partial(_within, inside, way)) for way in near)
    return [node for node in among if node in ahead and node in behind]


def _within(inside: Collection[Node], way: Mapping[Node, Sequence[Node]], node: Node) -> list[Node]:
    return [one for one in way[node] if one in inside]


def _nearest(start: Collection[Node], among: Collection[Node], near: _Near[Node]) -> list[Node]:
    """Return nodes by distance from `start`; unconnected ones last."""
    left = dict.fromkeys(among)
    found: list[Node] = []
    waiting = deque(start)
    while waiting:
        at = waiting.popleft()
        for node in (*near[0][at], *near[1][at]):
            if node in left:
                del left[node]
                found.append(node)
                waiting.append(node)
    return [*found, *left]


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
