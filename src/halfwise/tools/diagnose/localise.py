"""Find the few nodes that go wrong, by asking what parts of a graph do on their true inputs.

Pure search: an oracle says whether a part is wrong. One question may be about several parts that
share no node, since they can stand beside each other in one engine; so all nodes alone, or all
stretches of a graph, cost as much as one. It is assumed that a part is wrong where it holds one
that is; where that does not hold, a larger part is found, and never one that is not wrong.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from halfwise.graph.dataflow import reached

Node = TypeVar("Node", bound=str)
Ask = Callable[[Sequence[frozenset[Node]]], Sequence[bool | None]]
"""Whether each of some parts is wrong, None where that could not be told."""

STRETCH = 8
"""Nodes of a stretch. Our choice: stretches that begin at every fourth node hold any five nodes in
a row, and fusions that are wrong are small."""
ENOUGH = 3
"""Nodes of a part that need not be fewer. Our choice: a person reads so many at a glance, and
builds do more where they try what helps."""


class Spent(Exception):
    """No further question may be asked."""


def localise(
    reads: Mapping[Node, Sequence[Node]],
    ask: Ask[Node],
    *,
    together: bool = True,
    alone: bool = True,
) -> list[frozenset[Node]]:
    """Return the smallest parts that were found to be wrong, disjoint; empty where none was.

    First every node alone, then stretches of neighbours; where all are right on their own, the last
    node from which on the graph is wrong, and then what else that needs.

    Args:
        reads: What each node reads, nodes alone; no circles.
        ask: The oracle. It may raise `Spent`: then what is known by then counts.
        together: Whether it can be asked of several parts at once.
        alone: Whether it is then asked of every node alone; otherwise no node is wrong alone, as
            far as that is known.
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
                if wrong or len(order) <= STRETCH:
                    break
                wrong = _those(ask, list(_stretches(order, start)))
            if wrong:
                known = dict(enumerate(wrong))
                _all_shrunk(known, order, near, ask)
                return list(known.values())
        # That the whole is wrong is why it is looked at; nobody asked it of the oracle.
        _all_shrunk(known, order, near, ask, whole=True)
    except Spent:
        pass
    return list(known.values())


def in_order(reads: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Return nodes so that each comes after what it reads, chains in one piece where they can be.

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
"""What reads each node, and what it reads."""


def _near(reads: Mapping[Node, Sequence[Node]]) -> _Near[Node]:
    readers: dict[Node, list[Node]] = {node: [] for node in reads}
    for node, those in reads.items():
        for before in those:
            readers[before].append(node)
    return readers, reads


def _those(ask: Ask[Node], parts: Sequence[frozenset[Node]]) -> list[frozenset[Node]]:
    return [part for part, wrong in zip(parts, ask(parts), strict=True) if wrong]


def _stretches(order: Sequence[Node], start: int) -> Iterator[frozenset[Node]]:
    bounds = [*range(start or STRETCH, len(order), STRETCH), len(order)]
    for first, last in zip([0, *bounds], bounds, strict=False):
        yield frozenset(order[first:last])


def _all_shrunk(
    known: dict[int, frozenset[Node]],
    order: Sequence[Node],
    near: _Near[Node],
    ask: Ask[Node],
    *,
    whole: bool = False,
) -> None:
    """Shrink the parts in `known`, in place, one question about all of them at a time.

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
    """Return what a search asks after an answer; None where it is at its end."""
    try:
        return search.send(answer)
    except StopIteration:
        return None


def _shrunk(line: Sequence[Node], near: _Near[Node]) -> _Search[Node]:
    """Ask of ever smaller parts of a wrong one; each that is found wrong is the smallest so far.

    First how far its beginning can be left out; the node that cannot is needed. Then, nearest
    nodes first, how few more do; the last of them is needed too, and so on.

    Args:
        line: The part, in the order of the graph.
        near: What reads each node, and what it reads.
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
        # Where many are left, it would be luck if none of them were needed.
        if (fewer or len(rest) < STRETCH // 2) and (yield frozenset((*needed, *fewer))):
            rest = fewer
            continue
        rest = _nearest(needed, rest, near)
        few, many, step = 0, len(rest), 2
        while many - few > 1:
            # Ever longer steps, as far as it is wrong; then halves.
            middle = few + step if few + step < many and step else (few + many) // 2
            if (yield frozenset((*needed, *rest[:middle]))):
                many, step = middle, 0
            else:
                few, step = middle, 2 * step
        needed.append(rest[many - 1])
        rest = rest[: many - 1]


def _between(ends: Collection[Node], among: Collection[Node], near: _Near[Node]) -> list[Node]:
    """Return the nodes on ways through `among` that begin and end at `ends`."""
    inside = {*ends, *among}
    ahead, behind = (reached(ends, partial(_within, inside, way)) for way in near)
    return [node for node in among if node in ahead and node in behind]


def _within(inside: Collection[Node], way: Mapping[Node, Sequence[Node]], node: Node) -> list[Node]:
    return [one for one in way[node] if one in inside]


def _nearest(start: Collection[Node], among: Collection[Node], near: _Near[Node]) -> list[Node]:
    """Return nodes by their distance from `start` through each other; the unconnected last."""
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
