"""The trade-off of a run: the plans to choose from."""

from collections.abc import Iterable, Sequence
from functools import cache
from math import inf

import numpy as np

from halfwise.fixing.bench import Outcome
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.fixing.plan.search import SearchResult
from halfwise.fixing.space import Int8Space, Space
from halfwise.graph.model import node_name
from halfwise.records import Curve, Point, mask

MEASURED = 8
"""Further plans that are measured on all samples, as a failed trial gives a bound only; and points
shown: as many as a reader can compare at a glance. Our choice."""
BESIDE = 0.1
"""Share of what is left of the budget that further points may take. Our choice."""
MODERATE = 10.0
"""Up to this many times the tolerance an error may be mere rounding; above it is a fault, and no
plan is chosen for its error. Our choice."""


Points = dict[Nodes, Point]
"""Plans by what they keep, in the order of their first trial."""


class TradeOff:
    """Makes a curve of what a search evaluated, and measures what that needs."""

    def __init__(self, space: Space, delivered: Plan) -> None:
        """Take the plans, and the delivered one with its types."""
        self._space, self._delivered = space, delivered
        named = map(node_name, space.variant.case.network.all_nodes())
        self._nodes = [name for name in named if name in space.choices]
        self._all = frozenset(self._nodes)
        places = {name: place for place, name in enumerate(self._nodes)}
        self._written = cache(lambda kept: mask(places[name] for name in kept))

    def curve(self, result: SearchResult) -> Curve:
        """Return the curve of everything tried, once the search is over.

        If nothing need be kept, there is nothing to choose from, and nothing more is measured.
        """
        if (result.kept or not result.passed) and self._space.searches:
            self._space.budget.within("curve", self._complete, None, part=BESIDE)
        points = self._points()
        delivered = [place for place, kept in enumerate(points) if kept == result.kept]
        return Curve(
            nodes=tuple(self._nodes),
            points=tuple(points.values()),
            front=tuple(spread([*points.values()], delivered)),
            plan=next(iter(delivered), None),
            rung="int8" if isinstance(self._space, Int8Space) else None,
        )

    def _plan(self, kept: Nodes) -> Plan:
        """Return the plan that keeps nodes: the delivered one, or one without further types."""
        is_delivered = kept == self._space.kept(self._delivered)
        return self._delivered if is_delivered else self._space.plan(kept)

    def _points(self) -> Points:
        """Return everything tried with what every plan has to keep, and the plan in FP32."""
        space, held = self._space, self._space.held_nodes & self._all
        tried = {space.kept(plan): outcome for plan, outcome in space.bench.tried().items()}
        kept = {one: outcome for one, outcome in tried.items() if one is not None}
        points = {k: self._point(k, o) for k, o in kept.items() if held <= k <= self._all}
        if self._all not in points and space.is_safe:
            points[self._all] = self._point(self._all, Outcome(True, 0.0))
        return points

    def _point(self, kept: Nodes, tried: Outcome) -> Point:
        space, bench, plan = self._space, self._space.bench, self._plan(kept)
        is_original = space.is_safe and kept == self._all
        exact = 0.0 if is_original else bench.exact(plan)
        # A metric over some samples bounds nothing, unless one of them failed on its own.
        unbounded = bench.tolerance.metric is not None and tried.sample is None
        bound = 0.0 if unbounded else tried.excess
        return Point(
            kept=self._written(kept),
            count=len(kept),
            cost=space.variant.cost(plan),
            bf16=self._written(plan.bf16),
            tf32=plan.tf32,
            error=(bound if exact is None else exact) * bench.tolerance.factor,
            is_bound=exact is None,
        )

    def _complete(self) -> None:
        """Measure both ends on all samples, and what may lie on the front."""
        space = self._space
        for kept in (space.islands, space.forced):
            space.bench.excess(self._plan(kept))
        points = self._points()
        for place in spread([*points.values()], bounds=True):
            space.bench.excess(self._plan([*points][place]))


def front(points: Sequence[Point], *, bounds: bool = False) -> list[int]:
    """Return the indices of points that none beats in both cost and error, cheapest first.

    Points whose error is only a lower bound are left out: the true error may be anything above.
    With `bounds` they count as if it were that, up to `MODERATE`: their errors are worth knowing.
    """
    places: list[int] = []
    known = (i for i, p in enumerate(points) if not p.is_bound or (bounds and p.error <= MODERATE))
    order = sorted(known, key=lambda i: (points[i].price, points[i].error))
    least = inf
    for place in order:
        if points[place].error < least or not places:
            places.append(place)
            least = points[place].error
    return places


def spread(
    points: Sequence[Point],
    wanted: Iterable[int] = (),
    most: int = MEASURED,
    *,
    bounds: bool = False,
) -> list[int]:
    """Return the indices of at most `most` front points, evenly spread, cheapest first.

    Both ends and the wanted points are always included, on the front or not. `bounds` is as for
    `front`.
    """
    ends, chosen = front(points, bounds=bounds), {*wanted}
    if ends:
        count = min(len(ends), max(2, most - len(chosen)))
        chosen |= {ends[round(i)] for i in np.linspace(0, len(ends) - 1, count)}
    return sorted(chosen, key=lambda place: (points[place].price, points[place].error))
