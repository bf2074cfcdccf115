"""The trade-off of a run: the plans to choose from, and their results on held-out samples."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import inf, log

from halfwise.emulation.ort import give_back
from halfwise.fixing.bench import Tolerance
from halfwise.fixing.depths import Depths
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.plan import NONE, Nodes, Plan
from halfwise.fixing.plan.result import SearchResult
from halfwise.fixing.space import BESIDE, Int8Space, Space
from halfwise.graph.model import node_name
from halfwise.records import LEAST_DEARER, Criterion, Curve, Point
from halfwise.records.run import runs

MEASURED = 8
"""Plans that are measured on all samples where one is to be chosen, as a failed trial gives a bound
only; and points shown: as many as a reader can compare at a glance. Our choice."""
MODERATE = 10.0
"""Up to this many times the tolerance an error may be mere rounding; above it is a fault, and no
plan is chosen for its error. Our choice."""


Points = dict[Nodes, Point]
"""Plans by what they keep, in the order of their first trial."""


class TradeOff:
    """Makes a curve of what a search evaluated, and measures what that needs."""

    def __init__(self, depths: Depths) -> None:
        """Take what measures plans."""
        self._depths, self._space, self._bench = depths, depths.space, depths.space.bench
        whole = self._space.budget
        self._budget = whole.beside(seconds=BESIDE * whole.seconds, work=BESIDE * whole.work)
        named = map(node_name, self._space.variant.case.network.nodes())
        self._nodes = [name for name in named if name in self._space.choices]
        self._all = frozenset(self._nodes)
        places = {name: place for place, name in enumerate(self._nodes)}
        self._written = cache(lambda kept: runs(sorted(places[name] for name in kept)))

    def sketched(self) -> Curve:
        """Return the cheapest plan that passes: nothing kept, what is certain, all suspects."""

        def look() -> None:
            if (kept := self._space.seed()) is not None:
                self._measure(kept)

        self._budget.within("curve", look, None)
        points = tuple(self._points().values())
        return Curve(nodes=tuple(self._nodes), points=points, front=tuple(spread(points)))

    def curve(self, result: SearchResult) -> Curve:
        """Return the curve of everything tried, once the search is over.

        If nothing need be kept, there is nothing to choose from, and nothing more is measured.
        """
        if (result.kept or not result.passed) and self._space.searches:
            self._budget.within("curve", lambda: self._complete(result.kept), None)
            self._space.budget.took_in(self._budget)
        points, heldout = self._points(), self._depths.heldout
        places: dict[Nodes | None, int] = {kept: place for place, kept in enumerate(points)}
        scored = any(point.scores for point in points.values())
        return Curve(
            nodes=tuple(self._nodes),
            points=tuple(points.values()),
            front=tuple(places[kept] for kept in self._shown(points, result.kept)),
            plan=places.get(result.kept),
            recognised=heldout.recognised,
            reference=heldout.reference if scored else (),
            recommended=places.get(self._recommended(points)),
        )

    @property
    def _ruled(self) -> Nodes:
        """Return the nodes that rules keep or that are held, among those that a plan may keep."""
        return (self._space.ruled | self._space.held_nodes) & self._space.choices

    def _tried(self) -> list[Nodes]:
        """Return everything tried, in order, and the plan that is all FP32."""
        tried = ((self._space.kept(plan), plan) for plan in self._bench.numbers())
        kept = [one for one, plan in tried if one is not None and one <= self._all]
        kept = list(dict.fromkeys(kept))
        return kept if self._all in kept or not self._space.is_safe else [*kept, self._all]

    def _point(self, kept: Nodes) -> Point:
        space, bench, depths = self._space, self._bench, self._depths
        plan, factor = space.plan(kept), bench.tolerance.factor
        everything = depths.is_original(kept)
        exact = 0.0 if everything else bench.exact(plan)
        assessment = depths.assessment(plan)
        point = Point(
            kept=self._written(kept),
            count=len(kept),
            evaluation=bench.numbers().get(space.fresh(kept), bench.evaluations),
            cost=space.cost(kept),
            bf16=self._written(plan.bf16),
            tf32=plan.tf32,
            error=(bench.bound(plan) if exact is None else exact) * (1.0 if everything else factor),
            is_bound=exact is None,
            casts=depths.casts(plan),
            infinite_inside=False if everything else self._infinite_inside(kept),
            searched=True if everything else depths.searched(plan),
            as_file=True if everything else depths.as_file(plan),
        )
        return point if assessment is None else point.model_copy(update=vars(assessment))

    def _infinite_inside(self, kept: Nodes) -> bool | None:
        space, needs = self._space, self._depths.needs(self._space.plan(kept))
        held = [space.variant.holdable(g) for g in space.held if g.kind == "infinite"]
        if not all(nodes & space.choices <= kept for nodes in held):
            return True
        return None if needs is None else bool(needs)

    def _complete(self, plan: Nodes) -> None:
        """Measure the shown points on all samples, cheapest ends first, and score them."""
        space = self._space
        self._measure(plan)
        if self._may_evaluate:
            for kept in (space.islands, space.seeds[0]):
                space.excess(kept)
                self._measure(kept)
        self._settle(plan)
        for _ in range(MEASURED):
            self._budget.check()
            points = self._points()
            place = next_open([*points.values()], self._of_use(points))
            if place is None or not self._may_evaluate:
                break
            kept = [*points][place]
            space.excess(kept)
            points[kept] = self._point(kept)
            if place in front([*points.values()]):
                self._measure(kept)
        for kept in self._shown(self._points(), plan):
            self._budget.check()
            self._measure(kept)
        self._settle(plan)

    def _of_use(self, points: Points) -> Callable[[Point], bool]:
        """Return whether a plan may be chosen: for its error, or because its task may bear it."""
        limit = self._least_price(points) / LEAST_DEARER

        def of_use(point: Point) -> bool:
            bearable = bool(self._depths.heldout.recognised) and point.price < limit
            return point.error <= MODERATE or (bearable and point.searched is not False)

        return of_use

    @property
    def _may_evaluate(self) -> bool:
        """Whether a plan may be evaluated for the curve alone: in INT8, if the search left some."""
        return not isinstance(self._space, Int8Space) or self._space.spare > 0

    def _points(self) -> Points:
        return {kept: self._point(kept) for kept in self._tried()}

    def _settle(self, plan: Nodes) -> None:
        """Examine candidates for recommendation, cheapest first, until one holds.

        If none holds yet, the run's own plan comes first, so that there is one.
        """
        if self._recommended(self._points()) is None:
            self._serving(plan)
        while True:
            self._budget.check()
            points = self._points()
            limit, candidates = self._least_price(points), self._candidates(points, examined=False)
            if not candidates or points[candidates[0]].price >= limit:
                return
            self._serving(candidates[0])

    def _serving(self, kept: Nodes) -> Nodes | None:
        """Return the plan if it serves with nothing infinite inside, else with what that requires.

        None if neither serves.
        """

        def serves(nodes: Nodes) -> bool:
            give_back()
            if nodes != kept:
                self._space.evaluate(nodes)
            return self._serves(nodes)

        return self._depths.sound(kept, serves)

    def _serves(self, kept: Nodes) -> bool:
        """Run a plan wherever it has to serve, until it does not; return whether it does."""
        depths, plan = self._depths, self._space.plan(kept)
        is_original = depths.is_original(kept)
        if not is_original and depths.searched(plan) is False:
            return False
        self._measure(kept)
        for look in () if is_original else (depths.search, depths.run_file):
            if not self._point(kept).serves:
                return False
            look(plan)
        return self._point(kept).serves

    def _measure(self, kept: Nodes) -> None:
        self._depths.measure(self._space.plan(kept), is_original=self._depths.is_original(kept))
        give_back()  # else a trial would need its memory on top of what files and scores took

    def _shown(self, points: Points, plan: Nodes) -> list[Nodes]:
        wanted = (plan, self._recommended(points))
        places = [place for place, kept in enumerate(points) if kept in wanted]
        return [[*points][place] for place in spread([*points.values()], places)]

    def _recommended(self, points: Points) -> Nodes | None:
        """Return the cheapest plan that serves and is known to be sound inside."""
        return next(iter(self._candidates(points, examined=True)), None)

    def _least_price(self, points: Points) -> float:
        best = self._recommended(points)
        return inf if best is None else points[best].price

    def _candidates(self, points: Points, *, examined: bool) -> list[Nodes]:
        """Return the plans that serve and keep what rules and guards demand, cheapest first.

        Those that were run wherever they have to serve, and looked at inside; or the others.
        """
        ruled, depths = self._ruled, self._depths

        def is_examined(kept: Nodes) -> bool:
            filed = depths.is_filed(self._space.plan(kept)) or depths.is_original(kept)
            return filed and None not in (points[kept].infinite_inside, points[kept].searched)

        serving = (kept for kept, point in points.items() if point.serves and ruled <= kept)
        candidates = [kept for kept in serving if is_examined(kept) is examined]
        return sorted(candidates, key=lambda kept: (points[kept].price, points[kept].error))


class Measuring:
    """Measures each point of a run's curve once, on the present samples."""

    def __init__(self, curve: Curve, criterion: Criterion, space: Space, heldout: HeldOut) -> None:
        """Take a run's curve and criterion, and the plans on the present samples."""
        self._curve, self._criterion, self._space = curve, criterion, space
        self._depths, self._bench = Depths(space, heldout), space.bench
        present, scoring = heldout.case.criterion, ("metric", "metric_drop")
        same = all(getattr(criterion, name) == getattr(present, name) for name in scoring)
        self._is_scored_alike = criterion.metric is not None and same
        self._key = criterion.model_dump_json()

    @property
    def count(self) -> int:
        """Number of plans measured."""
        return sum(self._measured(point) is not None for point in self._curve.points)

    def plan(self, point: Point) -> Plan:
        """Return the plan of a point, with its types."""
        plan = self._space.fresh(self._curve.kept(point))
        return replace(plan, bf16=self._curve.bf16(point), tf32=point.tf32)

    def error(self, point: Point) -> float:
        """Return the error on the search samples, relative to what the run allowed.

        inf for new NaN or infinities in the outputs, and for harmful ones inside.
        """
        plan = self.plan(point)
        error = self._error(plan)
        return inf if error is None or error == inf or self._is_infinite(plan) else error

    def fits(self, point: Point) -> bool:
        """Return whether a point passes the present criterion on all samples without infinities."""
        if is_fp32(self._curve, point):
            return True
        plan = self.plan(point)
        self._error(plan)
        if self._bench.excess(plan) * self._bench.tolerance.factor > 1:
            return False
        self._depths.measure(plan)
        assessment = self._depths.assessment(plan)
        if assessment is not None and (assessment.nonfinite or (assessment.heldout or 0.0) > 1):
            return False
        return not self._is_infinite(plan)

    def measured(self, plan: Point, *, scored: bool) -> Curve:
        """Return the curve with the measurements, and with the plan among the shown points.

        Args:
            plan: The point that was chosen.
            scored: Whether new scores are comparable with the run's.
        """
        curve, heldout = self._curve, self._depths.heldout
        points = [self._point(point, scored=scored) for point in curve.points]
        chosen, best = curve.points.index(plan), curve.recommended
        wanted = (chosen,) if best is None else (chosen, best)
        assessed = any(self._depths.assessment(self.plan(point)) for point in curve.points)
        update = {
            "points": tuple(points),
            "front": tuple(spread(points, wanted)),
            "reference": curve.reference or (heldout.reference if scored and assessed else ()),
        }
        return curve.model_copy(update=update)

    def _point(self, point: Point, *, scored: bool) -> Point:
        plan = self.plan(point)
        if (measured := self._measured(point)) is None:
            return point
        (error,), needs, casts = measured, self._depths.needs(plan), self._depths.casts(plan)
        update: dict[str, object] = {}
        update |= {} if error is None else {"error": error, "is_bound": False}
        update |= {} if casts is None else {"casts": casts}
        update |= {} if needs is None else {"infinite_inside": not needs <= self._curve.kept(point)}
        if (assessment := self._depths.assessment(plan)) is not None:
            update |= {"rel_max": assessment.rel_max, "nonfinite": assessment.nonfinite}
            update |= {"scores": assessment.scores} if scored else {}
        return point.model_copy(update=update)

    def _error(self, plan: Plan) -> float | None:
        """Return the error by the run's criterion; None if another metric decided there."""

        def measured() -> tuple[float | None]:
            results, bench = self._bench.results(plan), self._bench
            excess = bench.excess(plan, results) * bench.tolerance.factor
            if self._criterion.metric is not None:
                return (excess if self._is_scored_alike else None,)
            allowed = Tolerance(self._criterion)
            return (allowed.excess(results, bench.samples, bench.references),)

        return self._bench.once(plan, "chosen", measured, self._key)[0]

    def _measured(self, point: Point) -> tuple[float | None] | None:
        measurement: tuple[float | None] | None
        measurement = self._bench.recall(self.plan(point), "chosen", self._key)
        return measurement

    def _is_infinite(self, plan: Plan) -> bool:
        """Return whether keeping more would avoid infinities inside; every plan has the others."""
        return not self._depths.look_inside(plan) <= (self._space.kept(plan) or NONE)


def is_fp32(curve: Curve, point: Point) -> bool:
    """Return whether a point is the original model."""
    return point.count == len(curve.nodes) and point.error == 0 and not point.is_bound


def front(points: Sequence[Point]) -> list[int]:
    """Return the indices of points that none beats in both cost and error, cheapest first.

    Points whose error is only a lower bound are left out: the true error may be anything above.
    """
    places: list[int] = []
    exact = (i for i, point in enumerate(points) if not point.is_bound)
    order = sorted(exact, key=lambda i: (points[i].price, points[i].error))
    least = inf
    for place in order:
        if points[place].error < least or not places:
            places.append(place)
            least = points[place].error
    return places


def next_open(
    points: Sequence[Point], of_use: Callable[[Point], bool] = lambda _: True
) -> int | None:
    """Return the index of the point to measure next; None if the front cannot change.

    Candidates are points `of_use` whose bound leaves open whether a known point beats them. The one
    farthest in cost from the known front wins; ties go to the smallest bound, then the lowest cost.
    """
    exact = [points[place] for place in front(points)]
    candidates = [
        place
        for place, point in enumerate(points)
        if point.is_bound and of_use(point) and not any(excludes(one, point) for one in exact)
    ]

    def promise(place: int) -> tuple[float, float, float]:
        point = points[place]
        apart = min((abs(point.price - one.price) for one in exact), default=0.0)
        return apart, -point.error, -point.price

    return max(candidates, key=promise, default=None)


def excludes(exact: Point, point: Point) -> bool:
    """Return whether a point of known error equals the best case of another, at no higher cost."""
    return exact.price <= point.price and exact.error <= point.error


def spread(points: Sequence[Point], wanted: Iterable[int] = (), most: int = MEASURED) -> list[int]:
    """Return the indices of at most `most` front points that lie far apart, cheapest first.

    Both ends and the wanted points are always included, on the front or not. Each further point is
    the one farthest from those chosen, in cost and in the logarithm of error, each relative to its
    span (Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985). Errors
    below the smallest of all count as that, those above `MODERATE` as `MODERATE`.
    """
    rest = front(points)
    chosen = list(dict.fromkeys([rest[0], rest[-1], *wanted] if rest else wanted))
    prices = [point.price for point in points]
    span = max(prices, default=0.0) - min(prices, default=0.0) or 1.0
    least = min((point.error for point in points if 0 < point.error < MODERATE), default=1.0)

    def seat(place: int) -> tuple[float, float]:
        error = min(max(points[place].error, least), MODERATE)
        return prices[place] / span, log(error / least) / log(MODERATE / least)

    def apart(place: int) -> float:
        (x, y), seats = seat(place), map(seat, chosen)
        return min((x - a) ** 2 + (y - b) ** 2 for a, b in seats)

    rest = [place for place in rest if place not in chosen]
    while rest and len(chosen) < most:
        chosen.append(max(rest, key=apart))
        rest.remove(chosen[-1])
    return sorted(chosen, key=lambda place: (prices[place], points[place].error))
