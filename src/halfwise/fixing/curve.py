"""The trade-off of a run: which plans to choose from, and what they give on held-out samples."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isfinite, log10

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.parts import Part, parts
from halfwise.fixing.plan.search import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import has_new_nonfinite
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role
from halfwise.metrics import AUTO, Computed, Excess, Outputs, recognise, scores, task_scores, totals
from halfwise.records import Criterion, Curve, NodeName, Point, Recognised, Row, TaskScore
from halfwise.records.curve import runs

Assignment = frozenset[NodeName]

SHOWN = 8
"""Points that are shown and measured on held-out samples: what a reader compares at a glance."""
MEASURED = 12
"""Plans that are evaluated on all samples for it at most: a trial that fails tells a bound."""
SHARE = 0.1
"""Of the search's budget, which this may take on top of it."""
_FAINT, _LOUD = 1e-3, 1e6
"""Errors beyond which all are alike where plans are to be far apart."""


@dataclass(frozen=True)
class _Given:
    """What a plan gives on held-out samples; attributes as in `Point`."""

    heldout: float
    rel_max: float
    nonfinite: bool
    scores: tuple[TaskScore, ...]


class TradeOff:
    """Follows a search, and makes the curve of what it evaluated."""

    def __init__(self, planner: Planner, heldout: HeldOut) -> None:
        """Take what tries plans, and the samples that no search has seen."""
        self._planner, self._heldout = planner, heldout
        whole = planner.budget
        self._budget = whole.beside(seconds=SHARE * whole.seconds, work=SHARE * whole.work)
        self._given: dict[tuple[Assignment, tuple[str, ...]], _Given] = {}
        self._casts: dict[Assignment, int] = {}
        roles, named = planner.roles, map(node_name, planner.case.network.nodes())
        self._nodes = [name for name in named if roles[name].role is Role.COMPUTE]
        self._all = frozenset(self._nodes)
        self._places = {name: place for place, name in enumerate(self._nodes)}

    def begin(self) -> None:
        """Measure what costs least, until it serves: nothing kept, what is certain, all suspects.

        So the plan that a task needs is known before the search. Where one passes the search, that
        ends there.
        """
        planner = self._planner

        def look() -> None:
            for kept in dict.fromkeys(self._guesses()):
                planner.budget.check()
                if planner.trials.evaluate(kept, confirm=True).passed:
                    return
                self._budget.within("curve", partial(self._measure, kept), None)
                if (point := self._point(kept)).serves:
                    planner.best.serves(kept, point.scores)
                    return

        planner.budget.within("curve", look, None)

    def curve(self, found: Found) -> Curve:
        """Return the curve of all that was tried, when the search is over.

        Where it found that nothing need be kept there is nothing to choose from, and nothing more
        is measured.
        """
        chosen = self._planner.settings.chosen is not None
        if (found.kept or not found.passed) and not chosen:
            self._budget.within("curve", lambda: self._complete(found.kept), None)
            self._planner.budget.took_in(self._budget)
        kept = self._known()
        points = [self._point(each) for each in kept]
        shown = self._shown(kept, points, found.kept)
        recommended = self._recommended(kept, points)
        return Curve(
            nodes=tuple(self._nodes),
            points=tuple(points),
            front=tuple(shown),
            plan=kept.index(found.kept) if found.kept in kept else None,
            rows=tuple(self._rows(kept, found.kept)) if found.kept and not chosen else (),
            recognised=self._recognised,
            reference=self._reference,
            recommended=recommended,
        )

    @property
    def begins(self) -> bool:
        """Whether a task metric tells which plan serves, so that it is known before the search."""
        planner = self._planner
        asked = planner.case.metric is not None or bool(self._recognised)
        return asked and self._heldout.unseen and planner.settings.searches

    @cached_property
    def _recognised(self) -> tuple[Recognised, ...]:
        case = self._planner.case
        if case.metric is not None:
            return case.criterion.recognised if case.criterion.metric == AUTO else ()
        return recognise(self._planner.trials.references, case.input_shapes)

    @property
    def _reference(self) -> tuple[TaskScore, ...]:
        """Return how FP32 itself does, where any plan was scored."""
        references = self._heldout.left_references
        return self._scores(references, references) if self._given else ()

    @property
    def _ruled(self) -> Assignment:
        """Return the compute nodes that rules keep or that are held."""
        planner = self._planner
        return frozenset(planner.forced.kept) & self._all | planner.held_nodes

    def _guesses(self) -> Iterator[Assignment]:
        evidence, lowered = self._planner.evidence, frozenset(self._planner.forced.lowered)
        certain = frozenset[NodeName]().union(*evidence.certain)
        for some in (frozenset[NodeName](), certain, evidence.suspected):
            yield (some & self._all) - lowered | self._ruled

    def _known(self) -> list[Assignment]:
        """Return what was tried, first things first, and everything in FP32."""
        kept = list(self._planner.trials.since)
        return kept if self._all in kept or not self._is_safe else [*kept, self._all]

    @property
    def _is_safe(self) -> bool:
        """Whether everything in FP32 is the original."""
        return not self._planner.forced.lowered and not self._planner.low_io

    def _point(self, kept: Assignment) -> Point:
        planner, trials = self._planner, self._planner.trials
        everything = self._is_safe and kept == self._all
        exact = 0.0 if everything else trials.exact(kept)
        tried = trials.tried.get(kept)
        bound = tried.excess if tried is not None else 0.0
        given = self._given.get((kept, self._heldout.left.ids))
        point = Point(
            kept=self._written(kept),
            count=len(kept),
            evaluation=trials.since.get(kept, trials.evaluations),
            cost=planner.price(kept),
            error=(bound if exact is None else exact) * (1.0 if everything else trials.factor),
            is_bound=exact is None,
            casts=self._casts.get(kept),
        )
        return point if given is None else point.model_copy(update=vars(given))

    def _complete(self, plan: Assignment) -> None:
        """Measure what is shown, until all of it is known on all samples, and score it."""
        trials = self._planner.trials
        self._measure(plan)
        trials.excess(self._planner.islands)
        for _ in range(MEASURED):
            self._budget.check()
            kept = self._known()
            points = [self._point(each) for each in kept]
            shown = self._shown(kept, points, plan)
            bounds = [place for place in shown if points[place].is_bound]
            if not bounds:
                break
            trials.excess(kept[bounds[0]])
        for place in shown:
            self._budget.check()
            self._measure(kept[place])
        for part in parts(self._planner, plan):
            for each in self._beside(part, plan):
                self._budget.check()
                trials.evaluate(each, confirm=True)

    def _beside(self, part: Part, plan: Assignment) -> tuple[Assignment, Assignment]:
        """Return the plan that keeps a part alone, and the one without it; rules hold in both."""
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

    def _written(self, kept: Assignment) -> str:
        return runs(sorted(self._places[name] for name in kept))

    def _shown(
        self, kept: Sequence[Assignment], points: Sequence[Point], plan: Assignment
    ) -> list[int]:
        best = self._recommended(kept, points)
        wanted = [place for place, each in enumerate(kept) if each == plan]
        return spread(points, [*wanted, *([] if best is None else [best])])

    def _recommended(self, kept: Sequence[Assignment], points: Sequence[Point]) -> int | None:
        """Return the place of the cheapest that serves and keeps what rules and guards demand."""
        ruled = self._ruled
        serving = [i for i, p in enumerate(points) if p.serves and ruled <= kept[i]]
        return min(serving, key=lambda i: (points[i].price, points[i].error), default=None)

    def _measure(self, kept: Assignment) -> None:
        """Run the held-out samples, and count the Casts."""
        left, references = self._heldout.left, self._heldout.left_references
        if left and (kept, left.ids) not in self._given:
            if kept == self._all and self._is_safe:
                results: Sequence[Computed] = references
            else:
                results = self._planner.trials.of(left, references).results(kept)
                self._planner.trials.evaluations += 1
            self._given[kept, left.ids] = self._judged(results, references)
        if kept not in self._casts:
            self._casts[kept] = self._planner.rewrite(kept)[0].casts

    def _judged(self, results: Sequence[Computed], references: Sequence[Outputs]) -> _Given:
        case, scales = self._planner.case, totals(references)
        own = Excess(case.criterion, scales)
        # At these limits an excess is the share of the largest value that is needed.
        share = Excess(Criterion(rel_max=1.0, agreement=0.0), scales)
        for reference, result in zip(references, results, strict=True):
            own.update(reference, result)
            share.update(reference, result)
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        return _Given(
            heldout=own.final(),
            rel_max=share.final(),
            nonfinite=failed or any(map(has_new_nonfinite, references, computed)),
            scores=() if failed else self._scores(references, computed),
        )

    def _scores(
        self, references: Sequence[Outputs], computed: Sequence[Outputs]
    ) -> tuple[TaskScore, ...]:
        """Return how a plan does by the given metric, else by those of what is recognised."""
        case, labels = self._planner.case, self._heldout.left.labels
        name, drop = case.criterion.metric, case.criterion.metric_drop
        with suppress(CaseError):  # a few samples may be too few for a metric
            if case.metric is None or name in (None, AUTO):
                return task_scores(self._recognised, references, computed, labels)
            before, after = scores(name, case.metric, references, computed, labels)
            passed = isfinite(after) and after >= before - drop
            every = tuple(references[0])
            one = TaskScore(
                metric=name, outputs=every, value=after, required=before - drop, passed=passed
            )
            return (one,)
        return ()


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
