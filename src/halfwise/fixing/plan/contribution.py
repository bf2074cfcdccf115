"""Rank nodes by how much their rounding adds to the output error, without measuring each one.

The contribution of a group is the output error when only that group is low. Rounding errors of
different nodes are nearly uncorrelated, so contributions add in quadrature (measured on YOLOX nano:
26.7 predicted, 24.7 actual, over 339 nodes). This holds for sums, not for differences of nearly
equal numbers: only if one half contributes little does the other half account for the rest of the
group. Otherwise both are measured. The ranking is a guide; its results are always tried.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import inf, isfinite, isnan, sqrt

from halfwise.records import LEAST_SAVED, NodeName

Nodes = frozenset[NodeName]

LITTLE = 0.5
"""Up to this share of a group's contribution, one half leaves at least 87 % to the other."""
BEYOND = (2.0, 1.4, 1.2)
"""Factor on the error at which halving ended; on YOLOX nano 1.6 times as much still passed."""
MANY = 64
"""This many groups show faults in a few places: 20, one place each, leave two thirds without one.
A convention: what finer groups would have saved is not known."""
OF_SERVING = 0.5
"""Share of the savings of a plan that serves the task; see docs/decisions/0042-certificate.md."""


class Futile(Exception):
    """No plan that passes gains, and more trials will hardly find one."""


def rankings(
    groups: Sequence[Sequence[NodeName]],
    contribution: Callable[[Nodes], float],
    enough: float | None,
) -> Iterator[list[tuple[Nodes, float]]]:
    """Yield finer and finer groups down to single nodes, least contribution first.

    The group that contributes most is halved repeatedly, until all groups that are still whole
    contribute at most `enough` together. This spends few trials on what does not matter: about k
    log(n/k) for k nodes that do. The first ranking is that of the given groups, the last the
    finest; another is yielded each time their number doubles, so a caller that runs out of time has
    at least half that detail.

    Args:
        groups: A partition of the nodes, each in graph order.
        contribution: Output error with only the given nodes low; ≥ 0, may be inf or NaN.
        enough: What the groups left whole may contribute together; None means a tenth of the total
            contribution.
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
    """Return the nodes of as many leading groups as `passes` was seen to accept.

    Near the tolerance some longer ranges pass although shorter ones fail, because errors also
    cancel: the range found by halving is extended if one of a few longer ranges passes.

    Args:
        ranking: Groups and their contributions, least first.
        passes: Whether the nodes may be low together; never called with none.
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


def is_spread(ranking: Sequence[tuple[Nodes, float]]) -> bool:
    """Return whether many groups each add so much error that half of them must be kept.

    Args:
        ranking: Groups and their contributions; one that is infinite is a fault to be found.
    """
    errors = sorted(found for _, found in ranking)
    half = _together(errors[: len(errors) // 2 + 1])
    return len(errors) >= MANY and half > 1 and isfinite(errors[-1])


def gains(
    price: float | None,
    least: float | None,
    fp32: float | None,
    *,
    serving: float | None = None,
) -> bool:
    """Return whether a plan within the tolerance saves enough to search on.

    It has to save `LEAST_SAVED` of what everything low saves over FP32, or `OF_SERVING` of what a
    plan saves that serves the task, if one is known.

    Args:
        price: Predicted cost of the plan.
        least: That of everything low.
        fp32: That of everything in FP32; if any of these is None, the result is True.
        serving: That of a plan that serves the task; None if none is known.
    """
    if price is None or least is None or fp32 is None or fp32 <= least:
        return True
    required = LEAST_SAVED * (fp32 - least) if serving is None else OF_SERVING * (fp32 - serving)
    return fp32 - price >= required


def _together(contributions: Sequence[float]) -> float:
    return sqrt(sum(c * c for c in contributions))
