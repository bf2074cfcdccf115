"""The plans that none beats in both cost and error, and a few of them that are far apart."""

from collections.abc import Iterable, Sequence
from math import inf, log10

from halfwise.records import Point

SHOWN = 8
"""Points that are shown and measured on held-out samples: what a reader compares at a glance."""
_FAINT, _LOUD = 1e-3, 1e6
"""Errors beyond which all are alike where plans are to be far apart."""


def front(points: Sequence[Point]) -> list[int]:
    """Return the places of the points that none beats in both cost and error, cheapest first."""
    found: list[int] = []
    order = sorted(range(len(points)), key=lambda i: (points[i].price, points[i].error))
    least = inf
    for place in order:
        if points[place].error < least or not found:
            found.append(place)
            least = points[place].error
    return found


def spread(points: Sequence[Point], wanted: Iterable[int] = (), most: int = SHOWN) -> list[int]:
    """Return the places of at most `most` points of the front that are far apart, cheapest first.

    Both ends and those that are wanted are among them, whether these are on the front or not. The
    next is always the one that is farthest from those chosen, in cost and logarithm of error, each
    over its span (Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985).
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
