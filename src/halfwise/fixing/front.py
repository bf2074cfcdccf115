"""The plans that none beats in both cost and error, and a few of them that lie far apart."""

from collections.abc import Callable, Iterable, Sequence
from math import inf, log10

from halfwise.records import Point

SHOWN = 8
"""Points shown and measured on held-out samples: as many as a reader can compare at a glance."""
_FAINT, _LOUD = 1e-3, 1e6
"""Errors below the first or above the second count as equal when plans are spread apart."""


def front(points: Sequence[Point]) -> list[int]:
    """Return the indices of points that none beats in both cost and error, cheapest first.

    Points whose error is only a lower bound are left out: the true error may be anything above.
    """
    found: list[int] = []
    known = (i for i, point in enumerate(points) if not point.is_bound)
    order = sorted(known, key=lambda i: (points[i].price, points[i].error))
    least = inf
    for place in order:
        if points[place].error < least or not found:
            found.append(place)
            least = points[place].error
    return found


def next_open(
    points: Sequence[Point], of_use: Callable[[Point], bool] = lambda _: True
) -> int | None:
    """Return the index of the point to measure next; None if the front cannot change.

    Candidates are points `of_use` whose bound leaves open whether a known point beats them. The one
    farthest in cost from the known front wins; ties go to the smallest bound, then the lowest cost.
    """
    known = [points[place] for place in front(points)]
    left = [
        place
        for place, point in enumerate(points)
        if point.is_bound and of_use(point) and not any(excludes(one, point) for one in known)
    ]

    def promise(place: int) -> tuple[float, float, float]:
        point = points[place]
        apart = min((abs(point.price - one.price) for one in known), default=0.0)
        return apart, -point.error, -point.price

    return max(left, key=promise, default=None)


def excludes(known: Point, point: Point) -> bool:
    """Return whether a point of known error equals the best case of another, at no higher cost."""
    return known.price <= point.price and known.error <= point.error


def spread(points: Sequence[Point], wanted: Iterable[int] = (), most: int = SHOWN) -> list[int]:
    """Return the indices of at most `most` front points that lie far apart, cheapest first.

    Both ends and the wanted points are always included, on the front or not. Each further point is
    the one farthest from those chosen, in cost and in the logarithm of error, each relative to its
    span (Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985).
    """
    left = front(points)
    chosen = list(dict.fromkeys([left[0], left[-1], *wanted] if left else wanted))
    prices = [point.price for point in points]
    span = max(prices, default=0.0) - min(prices, default=0.0) or 1.0

    def seat(place: int) -> tuple[float, float]:
        error = min(max(points[place].error, _FAINT), _LOUD)
        return prices[place] / span, log10(error) / log10(_LOUD / _FAINT)

    def apart(place: int) -> float:
        (x, y), others = seat(place), map(seat, chosen)
        return min((x - a) ** 2 + (y - b) ** 2 for a, b in others)

    left = [place for place in left if place not in chosen]
    while left and len(chosen) < most:
        chosen.append(max(left, key=apart))
        left.remove(chosen[-1])
    return sorted(chosen, key=lambda place: (prices[place], points[place].error))
