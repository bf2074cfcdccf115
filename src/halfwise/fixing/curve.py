"""The trade-off of a run: the plans to choose from, and their results on held-out samples."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, log10

from halfwise.emulation.ort import give_back
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.plan.found import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import LOOKED_AT, HeldOut, Scoring
from halfwise.graph.model import node_name
from halfwise.metrics import Computed, Excess, totals
from halfwise.records import LEAST_DEARER, Criterion, Curve, NodeName, Point, Row, RowKind
from halfwise.records.run import runs

Assignment = frozenset[NodeName]

MEASURED = 12
"""Maximum number of further plans evaluated on all samples for it: a failed trial gives a bound,
which may exclude a plan but is not an error."""
MODERATE = 10.0
"""Up to this many times the tolerance an error may be mere rounding; above it is a fault, and no
plan is chosen for its error."""
SHARE = 0.1
"""Share of the search's budget that this may spend on top of it."""


class TradeOff:
    """Follows a search, and makes a curve of what it evaluated."""

    def __init__(self, scoring: Scoring) -> None:
        """Take what measures plans."""
        self._planner = planner = scoring.planner
        self._scoring = scoring
        whole = planner.budget
        self._budget = whole.beside(seconds=SHARE * whole.seconds, work=SHARE * whole.work)
        self._measured = set[Assignment]()
        self._held = planner.held_nodes - planner.choices
        named = map(node_name, planner.case.network.nodes())
        self._nodes = [name for name in named if name in planner.choices]
        self._all = frozenset(self._nodes)
        places = {name: place for place, name in enumerate(self._nodes)}
        self._written = cache(lambda kept: runs(sorted(places[name] for name in kept)))

    def begin(self) -> None:
        """Measure the cheapest plans until one serves: nothing kept, what is certain, all suspects.

        This finds the plan that the task needs before the search. It ends at a plan that passes the
        search.
        """
        planner = self._planner

        def look() -> None:
            for kept in dict.fromkeys(self._guesses()):
                planner.budget.check()
                if planner.trials.evaluate(kept).passed:
                    return
                serving = self._serving(kept)
                if serving is not None:
                    planner.best.serves(serving, self._point(serving).scores)
                    if planner.case.criterion == Criterion():
                        planner.best.serving = planner.price(serving)
                    return

        planner.budget.within("curve", look, None)

    def sketched(self) -> Curve:
        """Return the cheapest plan that passes: nothing kept, what is certain, all suspects."""

        def look() -> None:
            for kept in dict.fromkeys(self._guesses()):
                if self._planner.trials.evaluate(kept).passed:
                    self._measure(kept)
                    return

        self._budget.within("curve", look, None)
        points = self._seen()[1]
        return Curve(nodes=tuple(self._nodes), points=tuple(points), front=tuple(spread(points)))

    def curve(self, found: Found) -> Curve:
        """Return the curve of everything tried, once the search is over.

        If nothing need be kept, there is nothing to choose from, and nothing more is measured.
        """
        if self._planner.held_nodes - self._planner.choices != self._held:
            # Nodes were held since and no plan was to be chosen: earlier results are of other
            # files.
            return TradeOff(self._scoring).curve(found)
        chosen = self._planner.settings.chosen is not None
        if (found.kept or not found.passed) and not chosen:
            self._budget.within("curve", lambda: self._complete(found.kept), None)
            self._planner.budget.took_in(self._budget)
        kept, points = self._seen()
        shown = self._shown(kept, points, found.kept)
        recommended = self._recommended(kept, points)
        return Curve(
            nodes=tuple(self._nodes),
            points=tuple(points),
            front=tuple(shown),
            plan=kept.index(found.kept) if found.kept in kept else None,
            rows=tuple(self._rows(kept, found.kept)) if found.kept and not chosen else (),
            recognised=self._scoring.recognised,
            reference=self._scoring.reference if self._measured else (),
            recommended=recommended,
        )

    @property
    def begins(self) -> bool:
        """Whether a task metric says which plan serves, so that it is known before the search."""
        planner = self._planner
        asked = planner.case.metric is not None or bool(self._scoring.recognised)
        return asked and self._scoring.heldout.unseen and planner.settings.searches

    @property
    def _ruled(self) -> Assignment:
        """Return the nodes that rules keep or that are held, among those that a plan may keep."""
        planner = self._planner
        return (planner.ruled | planner.held_nodes) & planner.choices

    def _guesses(self) -> Iterator[Assignment]:
        lowered = frozenset(self._planner.forced.lowered)
        for some in self._planner.guesses:
            yield (some & self._all) - lowered | self._ruled

    def _known(self) -> list[Assignment]:
        """Return everything tried, in order, and the plan that is all FP32."""
        kept = [plan for plan in self._planner.trials.since if plan <= self._all]
        return kept if self._all in kept or not self._planner.is_safe else [*kept, self._all]

    def _point(self, kept: Assignment) -> Point:
        planner, trials = self._planner, self._planner.trials
        everything = self._is_original(kept)
        exact = 0.0 if everything else trials.exact(kept)
        given = self._scoring.given(kept) if kept in self._measured else None
        point = Point(
            kept=self._written(kept),
            count=len(kept),
            evaluation=trials.since.get(kept, trials.evaluations),
            cost=planner.cost(kept),
            bf16=self._written(planner.types_of(kept).bf16),
            tf32=planner.types_of(kept).tf32,
            error=(trials.bound(kept) if exact is None else exact)
            * (1.0 if everything else trials.factor),
            is_bound=exact is None,
            casts=self._scoring.casts(kept),
            infinite_inside=False if everything else self._infinite_inside(kept),
            searched=True if everything else self._scoring.searched(kept),
            as_file=True if everything else self._scoring.as_file(kept),
        )
        return point if given is None else point.model_copy(update=vars(given))

    def _infinite_inside(self, kept: Assignment) -> bool | None:
        planner, needs = self._planner, self._scoring.needs(kept)
        held = [planner.holdable(g) for g in planner.held if g.kind == "infinite"]
        if not all(nodes & planner.choices <= kept for nodes in held):
            return True
        return None if needs is None else bool(needs)

    def _complete(self, plan: Assignment) -> None:
        """Measure the shown points on all samples, cheapest ends first, and score them."""
        trials = self._planner.trials
        self._measure(plan)
        if self._may_evaluate:
            trials.excess(self._planner.islands)
        self._settle(plan)
        for _ in range(MEASURED):
            self._budget.check()
            kept, points = self._seen()
            place = next_open(points, self._of_use(kept, points))
            if place is None or not self._may_evaluate:
                break
            trials.excess(kept[place])
            points[place] = self._point(kept[place])
            if place in front(points):
                self._measure(kept[place])
        kept, points = self._seen()
        for place in self._shown(kept, points, plan):
            self._budget.check()
            self._measure(kept[place])
        self._settle(plan)
        for part in parts(self._planner, plan):
            for each in self._beside(part, plan):
                self._budget.check()
                if self._may_evaluate:
                    trials.evaluate(each)

    def _of_use(
        self, kept: Sequence[Assignment], points: Sequence[Point]
    ) -> Callable[[Point], bool]:
        """Return whether a plan may be chosen: for its error, or because its task may bear it."""
        best = self._recommended(kept, points)
        limit = inf if best is None else points[best].price / LEAST_DEARER

        def of_use(point: Point) -> bool:
            bearable = bool(self._scoring.recognised) and point.price < limit
            return point.error <= MODERATE or (bearable and point.searched is not False)

        return of_use

    @property
    def _may_evaluate(self) -> bool:
        """Whether a plan may be evaluated for the curve alone: in INT8, if the search left some."""
        return not isinstance(self._planner, Int8Planner) or self._planner.spare > 0

    def _seen(self) -> tuple[list[Assignment], list[Point]]:
        kept = self._known()
        return kept, [self._point(each) for each in kept]

    def _settle(self, plan: Assignment) -> None:
        """Examine candidates for recommendation, cheapest first, until one holds.

        If none holds yet, the run's own plan comes first, so that there is one.
        """
        if self._recommended(*self._seen()) is None:
            self._serving(plan)
        while True:
            self._budget.check()
            kept, points = self._seen()
            best = self._recommended(kept, points)
            limit = inf if best is None else points[best].price
            unknown = [
                i for i in self._candidates(kept, points) if not self._is_known(kept[i], points[i])
            ]
            cheaper = [i for i in unknown if points[i].price < limit]
            if not cheaper:
                return
            self._serving(kept[min(cheaper, key=lambda i: points[i].price)])

    def _serving(self, kept: Assignment) -> Assignment | None:
        """Return the plan if it serves with nothing infinite inside, else with what that requires.

        None if neither serves. Other infinities appear only once the first ones are gone.
        """
        for _ in range(LOOKED_AT):
            if not self._serves(kept):
                return None
            if self._is_original(kept):
                return kept
            self._scoring.look_inside(kept)
            give_back()
            needs = self._scoring.needs(kept) or frozenset()
            if needs <= kept or not needs <= self._planner.choices:
                return None if needs else kept
            kept |= needs
            self._planner.trials.evaluate(kept)
        return None

    def _serves(self, kept: Assignment) -> bool:
        """Run a plan wherever it has to serve, until it does not; return whether it does."""
        scoring = self._scoring
        runs = [self._measure]
        if not self._is_original(kept):
            if scoring.searched(kept) is False:
                return False
            runs += [scoring.search, scoring.run_file]
        for run in runs:
            run(kept)
            if not self._point(kept).serves:
                return False
        return True

    def _is_original(self, kept: Assignment) -> bool:
        return self._planner.is_safe and kept == self._all

    def _measure(self, kept: Assignment) -> None:
        self._measured.add(kept)
        self._scoring.measure(kept, original=self._is_original(kept))
        give_back()  # else a trial would need its memory on top of what files and scores took

    def _beside(self, part: "Part", plan: Assignment) -> tuple[Assignment, Assignment]:
        """Return the plan that keeps only a part, and the one without it; rules apply to both."""
        return part.nodes & self._all | self._ruled, plan - part.nodes | self._ruled

    def _rows(self, kept: Sequence[Assignment], plan: Assignment) -> Iterator[Row]:
        measured = {each: place for place, each in enumerate(kept)}
        for part in parts(self._planner, plan):
            alone, without = self._beside(part, plan)
            yield Row(
                kind=part.kind,
                name=part.name,
                kept=self._written(part.nodes & self._all),
                count=len(part.nodes & self._all),
                alone=measured.get(alone),
                without=None if without == plan else measured.get(without),
            )

    def _shown(
        self, kept: Sequence[Assignment], points: Sequence[Point], plan: Assignment
    ) -> list[int]:
        best = self._recommended(kept, points)
        wanted = [place for place, each in enumerate(kept) if each == plan]
        return spread(points, [*wanted, *([] if best is None else [best])])

    def _recommended(self, kept: Sequence[Assignment], points: Sequence[Point]) -> int | None:
        """Return the index of the cheapest plan that serves and is known to be sound inside."""
        holding = [i for i in self._candidates(kept, points) if self._is_known(kept[i], points[i])]
        return min(holding, key=lambda i: (points[i].price, points[i].error), default=None)

    def _is_known(self, kept: Assignment, point: Point) -> bool:
        """Return whether a plan was run wherever it has to serve, and looked at inside."""
        filed = self._scoring.filed(kept) or self._is_original(kept)
        return filed and None not in (point.infinite_inside, point.searched)

    def _candidates(self, kept: Sequence[Assignment], points: Sequence[Point]) -> list[int]:
        """Return the indices of the plans that serve and keep what rules and guards demand."""
        ruled = self._ruled
        return [i for i, point in enumerate(points) if point.serves and ruled <= kept[i]]


class Measuring:
    """Measures each point once."""

    def __init__(self, curve: Curve, own: Criterion, planner: Planner, heldout: HeldOut) -> None:
        """Take a run's curve and criterion, and what runs plans on the present samples."""
        self._curve, self._own, self._planner = curve, own, planner
        self._scoring = Scoring(planner, heldout)
        self._errors: dict[str, float | None] = {}
        now = planner.case.criterion
        self._alike = own.metric is not None and own.metric == now.metric
        self._alike &= own.metric_drop == now.metric_drop

    @property
    def count(self) -> int:
        """Number of plans measured."""
        return len(self._errors)

    def error(self, point: Point) -> float:
        """Return the error on the search samples, relative to what the run allowed.

        inf for new NaN or infinities in the outputs, and for harmful ones inside.
        """
        kept = self._run(point)
        error = self._errors[point.kept]
        return inf if error is None or error == inf or self._is_infinite(kept) else error

    def fits(self, point: Point) -> bool:
        """Return whether a point passes the present criterion on all samples without infinities."""
        if is_fp32(self._curve, point):
            return True
        kept, trials = self._run(point), self._planner.trials
        if trials.excess(kept) * trials.factor > 1:
            return False
        self._scoring.measure(kept)
        given = self._scoring.given(kept)
        if given is not None and (given.nonfinite or (given.heldout or 0.0) > 1):
            return False
        return not self._is_infinite(kept)

    def measured(self, plan: Point, *, scored: bool) -> Curve:
        """Return the curve with the measurements, and with the plan among the shown points.

        Args:
            plan: The point that was chosen.
            scored: Whether new scores are comparable with the run's.
        """
        curve = self._curve
        points = [self._point(point, scored=scored) for point in curve.points]
        place = curve.points.index(plan)
        wanted = [place, *([] if curve.recommended is None else [curve.recommended])]
        update = {"points": tuple(points), "front": tuple(spread(points, wanted))}
        reference = curve.reference or (self._scoring.reference if scored else ())
        return curve.model_copy(update={**update, "reference": reference})

    def _point(self, point: Point, *, scored: bool) -> Point:
        if point.kept not in self._errors:
            return point
        kept = self._curve.kept(point)
        given, needs = self._scoring.given(kept), self._scoring.needs(kept)
        update: dict[str, object] = {}
        if (error := self._errors[point.kept]) is not None:
            update |= {"error": error, "is_bound": False}
        if (casts := self._scoring.casts(kept)) is not None:
            update["casts"] = casts
        if needs is not None:
            update["infinite_inside"] = not needs <= kept
        if given is not None:
            update |= {"rel_max": given.rel_max, "nonfinite": given.nonfinite}
            update |= {"scores": given.scores} if scored else {}
        return point.model_copy(update=update)

    def _run(self, point: Point) -> Assignment:
        kept, trials = self._curve.kept(point), self._planner.trials
        if point.kept not in self._errors:
            results = trials.results(kept)
            excess = trials.excess(kept, results) * trials.factor
            self._errors[point.kept] = excess if self._alike else self._error(results)
        return kept

    def _error(self, results: Sequence[Computed]) -> float | None:
        references = self._planner.trials.references
        if self._own.metric is not None:
            return None  # another metric than the present one may have decided
        excess = Excess(self._own, totals(references))
        for reference, result in zip(references, results, strict=True):
            excess.update(reference, result)
        return excess.final()

    def _is_infinite(self, kept: Assignment) -> bool:
        """Return whether keeping more would avoid infinities inside; every plan has the others."""
        self._scoring.look_inside(kept)
        return not (self._scoring.needs(kept) or frozenset()) <= kept


def is_fp32(curve: Curve, point: Point) -> bool:
    """Return whether a point is the original model."""
    return point.count == len(curve.nodes) and point.error == 0 and not point.is_bound


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


MOST = 12
"""Maximum number of parts of a plan reported separately; each may take two evaluations."""


@dataclass(frozen=True)
class Part:
    """Some of the kept nodes; attributes as in `Row`."""

    kind: RowKind
    name: str
    nodes: Assignment


def parts(planner: Planner, plan: Assignment) -> list[Part]:
    """Return the parts of a plan, at most `MOST`: rules, kinds of guard, operators, each once.

    Guards come most severe first, operators by their number of nodes. Of parts with the same
    nodes only the first is reported. A guard's nodes count even if the plan does not keep them:
    they may have been lowered because others help.

    Args:
        planner: The planner, after its search.
        plan: Compute nodes in FP32.
    """
    found: dict[Assignment, Part] = {}
    for part in (*_rules(planner, plan), *_guards(planner, plan), *_operators(planner, plan)):
        if part.nodes and part.nodes != plan:
            found.setdefault(part.nodes, part)
    return list(found.values())[:MOST]


def _rules(planner: Planner, plan: Assignment) -> Iterator[Part]:
    for rule in filter(None, dict.fromkeys(planner.forced.kept.values())):
        named = frozenset(n for n, own in planner.forced.kept.items() if own == rule)
        yield Part("rule", rule, named & plan)


def _guards(planner: Planner, plan: Assignment) -> Iterator[Part]:
    for kind in dict.fromkeys(guard.kind for guard in planner.guards):
        holdable = (planner.holdable(g) for g in planner.guards if g.kind == kind)
        named = frozenset[NodeName]().union(*holdable)
        if named & plan:
            yield Part("guard", kind, named)


def _operators(planner: Planner, plan: Assignment) -> Iterator[Part]:
    nodes = [node for node in planner.case.network.nodes() if node_name(node) in plan]
    operators = {
        op: frozenset(node_name(n) for n in nodes if n.op_type == op)
        for op in dict.fromkeys(node.op_type for node in nodes)
    }
    for op, named in sorted(operators.items(), key=lambda item: -len(item[1])):
        yield Part("operator", op, named)
