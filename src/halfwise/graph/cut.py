"""Minimum cuts: the cheapest way to divide things between two sides."""

from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import TypeVar

_Thing = TypeVar("_Thing", bound=Hashable)


def smallest_source_side(
    costs: Iterable[tuple[_Thing, _Thing, float]], source: _Thing, target: _Thing
) -> frozenset[_Thing]:
    """Return the source side of the minimum cut with the smallest source side.

    Dinic's algorithm (1970): blocking flows along shortest paths until none is left.

    Args:
        costs: Two things, and the cost if the first is on the side of `source` and the second is
            not: > 0, or inf to forbid it. Costs of the same pair add up.
        source: The thing that is always on the source side.
        target: The thing that is never there; every path to it has a finite cost somewhere.
    """
    left: dict[_Thing, dict[_Thing, float]] = {source: {}, target: {}}
    for one, other, cost in costs:
        left.setdefault(one, {}).setdefault(other, 0.0)
        left.setdefault(other, {}).setdefault(one, 0.0)
        left[one][other] += cost
    while target in (steps := _steps(left, source)):
        _block(left, steps, source, target)
    return frozenset(steps)


def _steps(left: dict[_Thing, dict[_Thing, float]], source: _Thing) -> dict[_Thing, int]:
    """Return the things still reachable from `source`, with the number of steps."""
    steps, waiting = {source: 0}, [source]
    for one in waiting:
        for other, capacity in left[one].items():
            if capacity and other not in steps:
                steps[other] = steps[one] + 1
                waiting.append(other)
    return steps


def _block(
    left: dict[_Thing, dict[_Thing, float]],
    steps: dict[_Thing, int],
    source: _Thing,
    target: _Thing,
) -> None:
    """Send as much flow as fits along shortest paths."""
    ahead = {one: [n for n in left[one] if steps.get(n) == steps[one] + 1] for one in steps}
    path = [source]
    while True:
        here = path[-1]
        if here == target:
            amount = min(left[one][other] for one, other in pairwise(path))
            for one, other in pairwise(path):
                left[one][other] -= amount
                left[other][one] += amount
            path = [source]
            continue
        while ahead[here] and not left[here][ahead[here][-1]]:
            ahead[here].pop()
        if ahead[here]:
            path.append(ahead[here][-1])
        elif len(path) == 1:
            return
        else:
            path.pop()
            ahead[path[-1]].pop()
