"""The trade-off of a run: the plans to choose from, and their results on held-out samples."""

from collections.abc import Iterable, Sequence
from functools import cache
from math import inf

import numpy as np
from msgspec.structs import asdict

from halfwise.emulation.ort import give_back
from halfwise.fixing.bench import Outcome
from halfwise.fixing.depths import Depths
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.fixing.plan.search import SearchResult
from halfwise.fixing.space import Int8Space
from halfwise.graph.model import node_name
from halfwise.records import Curve, Point, mask, replace

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

    def __init__(self, depths: Depths, delivered: Plan) -> None:
        """Take what measures plans, and the delivered one with its types."""
        self._depths, self._space, self._bench = depths, depths.space, depths.space.bench
        self._delivered = delivered
        named = map(node_name, self._space.variant.case.network.all_nodes())
        self._nodes = [name for name in named if name in self._space.choices]
        self._all = frozenset(self._nodes)
        places = {name: place for place, name in enumerate(self._nodes)}
        self._written = cache(lambda kept: mask(places[name] for name in kept))

    def curve(self, result: SearchResult) -> Curve:
        """Return the curve of everything tried, once the search is over.

        If nothing need be kept, there is nothing to choose from, and nothing more is measured.
        """
        if (result.kept or not result.passed) and self._space.searches:
            measured = lambda: self._complete(result.kept)  # noqa: E731
            self._space.budget.within("curve", measured, None, part=BESIDE)
        points, heldout = self._points(), self._depths.heldout
        places: dict[Nodes | None, int] = {kept: place for place, kept in enumerate(points)}
        scored = any(point.scores for point in points.values())
        return Curve(
            nodes=tuple(self._nodes),
            points=tuple(points.values()),
            front=tuple(places[kept] for kept in self._shown(points, result.kept)),
            plan=places.get(result.kept),
            rung="int8" if isinstance(self._space, Int8Space) else None,
            recognised=heldout.recognised,
            reference=heldout.reference if scored else (),
        )

    def _plan(self, kept: Nodes) -> Plan:
        """Return the plan that keeps nodes: the delivered one, or one without further types."""
        plan = self._space.plan(kept)
        is_delivered = kept == self._space.kept(self._delivered)
        return self._delivered if is_delivered else plan

    def _points(self) -> Points:
        """Return everything tried with what every plan has to keep, and the plan in FP32."""
        space, held = self._space, self._space.held_nodes & self._all
        tried = {space.kept(plan): outcome for plan, outcome in self._bench.tried().items()}
        kept = {one: outcome for one, outcome in tried.items() if one is not None}
        points = {k: self._point(k, o) for k, o in kept.items() if held <= k <= self._all}
        if self._all not in points and space.is_safe:
            points[self._all] = self._point(self._all, Outcome(True, 0.0))
        return points

    def _point(self, kept: Nodes, tried: Outcome) -> Point:
        space, bench, plan = self._space, self._bench, self._plan(kept)
        exact = 0.0 if self._depths.is_original(plan) else bench.exact(plan)
        # A metric over some samples bounds nothing, unless one of them failed on its own.
        unbounded = bench.tolerance.metric is not None and tried.sample is None
        bound = 0.0 if unbounded else tried.excess
        point = Point(
            kept=self._written(kept),
            count=len(kept),
            cost=space.variant.cost(plan),
            bf16=self._written(plan.bf16),
            tf32=plan.tf32,
            error=(bound if exact is None else exact) * bench.tolerance.factor,
            is_bound=exact is None,
        )
        assessment = self._depths.assessment(plan)
        return point if assessment is None else replace(point, **asdict(assessment))

    def _complete(self, plan: Nodes) -> None:
        """Measure the shown points on all samples, cheapest ends first, and score them."""
        space = self._space
        self._measure(plan)
        for kept in (space.islands, space.forced):
            self._bench.excess(self._plan(kept))
            self._measure(kept)
        points = self._points()
        for place in spread([*points.values()], bounds=True):
            self._bench.excess(self._plan([*points][place]))
        for kept in self._shown(self._points(), plan):
            space.budget.check()
            self._measure(kept)

    def _measure(self, kept: Nodes) -> None:
        self._depths.measure(self._plan(kept))
        give_back()  # else a trial would need its memory on top of what files and scores took

    def _shown(self, points: Points, plan: Nodes) -> list[Nodes]:
        places = [place for place, kept in enumerate(points) if kept == plan]
        return [[*points][place] for place in spread([*points.values()], places)]


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
