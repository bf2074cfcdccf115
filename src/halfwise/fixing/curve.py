"""The trade-off of a run: the plans to choose from."""

from collections.abc import Iterable
from math import inf

from halfwise.fixing.bench import Outcome
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.fixing.plan.search import SearchResult
from halfwise.fixing.space import Int8Space, Space
from halfwise.graph.model import node_name
from halfwise.records import Curve, Point, evenly, mask

MEASURED = 4
"""Further plans that are measured on all samples, as a failed trial gives a bound only. Our
choice."""
BESIDE = 0.1
"""Share of what is left of the budget that further plans may take. Our choice."""
MODERATE = 10.0
"""Up to this many times the tolerance an error may be mere rounding; above it is a fault, and no
plan is chosen for its error. Our choice."""


def curve_of(space: Space, delivered: Plan, result: SearchResult) -> Curve:
    """Return the plans to choose from, once the search is over; some are measured for it.

    If nothing need be kept, there is nothing to choose from, and nothing more is measured.

    Args:
        space: The plans.
        delivered: The one that the run delivers, with its types.
        result: What the search found.
    """
    return _TradeOff(space, delivered).curve(result)


def front(points: Iterable[Point], wanted: Point | None = None) -> list[Point]:
    """Return the points that none beats in both cost and error, cheapest first; and the wanted."""
    best, least = list[Point](), inf
    for point in sorted(points, key=lambda point: (point.price, point.error)):
        if point.error < least or not best or point == wanted:
            best.append(point)
        least = min(least, point.error)
    return best


class _TradeOff:
    def __init__(self, space: Space, delivered: Plan) -> None:
        self._space, self._delivered = space, delivered
        named = map(node_name, space.variant.case.network.all_nodes())
        self._nodes = [name for name in named if name in space.choices]
        self._places = {name: place for place, name in enumerate(self._nodes)}

    def curve(self, result: SearchResult) -> Curve:
        if (result.kept or not result.passed) and self._space.searches:
            self._space.budget.within("curve", self._measure, None, part=BESIDE)
        known = ((kept, self._error(kept)) for kept in self._tried())
        points = {k: self._point(k, error) for k, error in known if error is not None}
        own = points.get(result.kept)
        shown = front([*points.values()], own)
        return Curve(
            nodes=tuple(self._nodes),
            points=tuple(shown),
            plan=None if own is None else shown.index(own),
            rung="int8" if isinstance(self._space, Int8Space) else None,
        )

    def _measure(self) -> None:
        """Measure both ends on all samples, and what may lie on the front, by bounds of errors."""
        space, guesses = self._space, dict[Point, Nodes]()
        for kept in (space.islands, space.forced):
            space.bench.excess(self._plan(kept))
        for kept, outcome in self._tried().items():
            error = self._error(kept)
            # A metric over some samples bounds nothing, unless one of them failed on its own.
            unbounded = space.bench.tolerance.metric is not None and outcome.sample is None
            bound = 0.0 if unbounded else outcome.excess
            if error is not None or bound * space.bench.tolerance.factor <= MODERATE:
                guesses[self._point(kept, bound if error is None else error)] = kept
        best = front([*guesses])
        for place in evenly(len(best), MEASURED):
            space.bench.excess(self._plan(guesses[best[place]]))

    def _tried(self) -> dict[Nodes, Outcome]:
        """Return what was tried with what every plan has to keep, and the plan in FP32."""
        space, every = self._space, frozenset(self._nodes)
        held = space.held_nodes & every
        outcomes = ((space.kept(plan), one) for plan, one in space.bench.tried().items())
        tried = {k: one for k, one in outcomes if k is not None and held <= k <= every}
        return {every: Outcome(True, 0.0), **tried} if space.is_safe else tried

    def _plan(self, kept: Nodes) -> Plan:
        """Return the plan that keeps nodes: the delivered one, or one without further types."""
        is_delivered = kept == self._space.kept(self._delivered)
        return self._delivered if is_delivered else self._space.plan(kept)

    def _error(self, kept: Nodes) -> float | None:
        """Return the error relative to what a trial may use; None if only a bound is known."""
        is_original = self._space.is_safe and len(kept) == len(self._nodes)
        return 0.0 if is_original else self._space.bench.exact(self._plan(kept))

    def _point(self, kept: Nodes, error: float) -> Point:
        space, plan = self._space, self._plan(kept)
        return Point(
            kept=self._written(kept),
            count=len(kept),
            cost=space.variant.cost(plan),
            bf16=self._written(plan.bf16),
            tf32=plan.tf32,
            error=error * space.bench.tolerance.factor,
        )

    def _written(self, kept: Nodes) -> str:
        return mask(self._places[name] for name in kept)
