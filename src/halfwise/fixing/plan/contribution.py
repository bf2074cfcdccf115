"""Rank nodes by what their rounding contributes to the output error, without measuring each one.

The contribution of a group is the output error when only that group is low. Rounding errors of
different nodes are nearly uncorrelated, so contributions add in quadrature (measured on YOLOX
nano: 26.7 predicted, 24.7 true, over 339 nodes). That holds for sums, not for differences of nearly
equal numbers: only where one half contributes little, the other one is what it leaves of the group.
Else both are measured. The ranking is a guide; what it leads to is always tried.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import inf, isfinite, isnan, sqrt

from halfwise.records import NodeName

Nodes = frozenset[NodeName]

LITTLE = 0.5
"""Of what a group contributes: up to that one half leaves at least 87 % to the other."""
BEYOND = (2.0, 1.4, 1.2)
"""Times the error at which halving ended; on YOLOX nano 1.6 times as much still passed."""


def rankings(
    groups: Sequence[Sequence[NodeName]],
    contribution: Callable[[Nodes], float],
    enough: float | None,
) -> Iterator[list[tuple[Nodes, float]]]:
    """Yield finer and finer groups down to single nodes, least contribution first.

    The group that contributes most is halved again and again until all groups that are still
    whole contribute no more than `enough` together. So few trials go to what does not matter:
    about k log(n/k) for k nodes that do. The first ranking is that of the given groups, the last
    one the finest; another one comes whenever their number has doubled, so that whoever runs out
    of time has one of half that detail at least.

    Args:
        groups: A partition of the nodes, each in graph order.
        contribution: Output error with only the given nodes low; ≥ 0, may be inf or NaN.
        enough: What the groups that stay whole may contribute together; None stands for a tenth
            of what all contribute.
    """
    heap: list[tuple[float, int, tuple[NodeName, ...]]] = []
    singles: list[tuple[Nodes, float]] = []

    def put(nodes: Sequence[NodeName], known: float | None = None) -> float:
        found = contribution(frozenset(nodes)) if known is None else known
        found = inf if isnan(found) else found
        if len(nodes) == 1:
            singles.append((frozenset(nodes), found))
        else:
            heapq.heappush(heap, (-found, len(heap) + len(singles), tuple(nodes)))
        return found

    def ranking() -> list[tuple[Nodes, float]]:
        whole = [(frozenset(nodes), -found) for found, _, nodes in heap]
        return sorted(whole, key=lambda g: g[1]) + sorted(singles, key=lambda g: g[1])

    for group in filter(None, groups):
        put(group)
    if enough is None:
        enough = 0.1 * _together([-f for f, _, _ in heap if isfinite(f)])
    told = len(heap) + len(singles)
    yield ranking()
    while heap and _together([-found for found, _, _ in heap]) > enough:
        if len(heap) + len(singles) >= 2 * told:
            told = len(heap) + len(singles)
            yield ranking()
        found, _, nodes = heapq.heappop(heap)
        whole, first = -found, put(nodes[: len(nodes) // 2])
        left = sqrt(whole**2 - first**2) if first <= LITTLE * whole < inf else None
        put(nodes[len(nodes) // 2 :], left)
    if len(heap) + len(singles) > told:
        yield ranking()


def lowerable(ranking: Sequence[tuple[Nodes, float]], passes: Callable[[Nodes], bool]) -> Nodes:
    """Return the nodes of as many leading groups as `passes` was seen to hold for.

    Near the tolerance some longer ranges pass although shorter ones fail, since errors also cancel:
    what halving finds is prolonged while one of a few ranges beyond passes.

    Args:
        ranking: Groups and their contributions, least first.
        passes: Whether the nodes may be low together; not asked about none.
    """
    together = list(accumulate((c * c for _, c in ranking), initial=0.0))

    def leading(count: int) -> Nodes:
        return frozenset[NodeName]().union(*(group for group, _ in ranking[:count]))

    passing, failing = 0, len(ranking) + 1
    while failing - passing > 1:
        middle = (passing + failing) // 2
        passing, failing = (middle, failing) if passes(leading(middle)) else (passing, middle)
    while True:
        reached = together[passing]
        beyond = (bisect_right(together, reached * factor**2) - 1 for factor in BEYOND)
        longer = (n for n in beyond if n > passing and passes(leading(n)))
        if not (further := next(longer, 0)):
            return leading(passing)
        passing = further


def _together(contributions: Sequence[float]) -> float:
    return sqrt(sum(c * c for c in contributions))
