"""Measures plans of a curve for a choice, in the case that will judge the choice."""

from collections.abc import Sequence
from math import inf

from halfwise.fixing.front import spread
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import Scoring
from halfwise.metrics import Computed, Excess, totals
from halfwise.records import Criterion, Curve, NodeName, Point

Assignment = frozenset[NodeName]


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

    def told(self, plan: Point, *, scored: bool) -> Curve:
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
