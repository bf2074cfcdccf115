"""Which point of a curve answers a request, and the criterion that then judges it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Protocol

from halfwise.declarations import spelt
from halfwise.errors import CaseError, UsageError
from halfwise.fixing.measuring import is_fp32
from halfwise.metrics import AUTO, effective
from halfwise.metrics.recognised import REL_MAX
from halfwise.records import Criterion, Curve, Point
from halfwise.wording import count, number, ratio, typed

MEASURED = 8
"""Maximum number of plans measured for a choice, because the user is waiting."""
_OTHER = "Give another limit; `halfwise report RUN` shows the plans."


@dataclass(frozen=True)
class Wish:
    """What the user asks for; at most one field is set, and none for the recommended plan.

    Attributes:
        worth: Maximum cost relative to all low.
        kept: Maximum number of kept compute nodes.
        rel_max: Maximum error relative to the largest reference value of an output.
        metric_drop: Maximum loss of the task metric relative to FP32.
    """

    worth: float | None = None
    kept: int | None = None
    rel_max: float | None = None
    metric_drop: float | None = None

    @property
    def given(self) -> Mapping[str, float]:
        """What is set, by the name of the option."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    @property
    def told(self) -> str:
        """The command that requests it, without the run."""
        return " ".join(
            ["choose", *(spelt(name, typed(value)) for name, value in self.given.items())]
        )


class Measure(Protocol):
    """Measures points on all samples; see `halfwise.fixing.measuring`."""

    def error(self, point: Point) -> float:
        """Return the error on the search samples, relative to what the run allowed."""

    def fits(self, point: Point) -> bool:
        """Return whether a point passes the present criterion."""


class Hopeful:
    """Assumes every plan passes, without measuring: rejects only requests nothing can answer.

    Methods as in `Measure`.
    """

    def error(self, point: Point) -> float:
        """Return 0."""
        del point
        return 0.0

    def fits(self, point: Point) -> bool:
        """Return True."""
        del point
        return True


@dataclass(frozen=True)
class Picked:
    """The point that answers a request.

    Attributes:
        point: The point.
        left: Unmeasured points that may answer it better.
    """

    point: Point
    left: int = 0


def pick(curve: Curve, criterion: Criterion, wish: Wish, measure: Measure) -> Picked:
    """Return the point that answers a request, measuring what it depends on, `MEASURED` at most.

    A limit on cost or nodes selects the point of smallest error; a limit on error or metric, the
    cheapest. A bound can only exclude a point; points that it does not exclude are measured.

    Args:
        curve: That of the run.
        criterion: What was acceptable in it.
        wish: The request.
        measure: Measures points.

    Raises:
        UsageError: two things are requested, or something the run does not know.
        CaseError: no point fits.
    """
    if len(wish.given) > 1:
        first, second = (spelt(name) for name in list(wish.given)[:2])
        raise UsageError(f"{first} and {second} are both given; only one can be used.", "Give one.")
    if wish.worth is not None:
        return _best(curve, wish.worth, _costs(curve), (ratio, "costs"), measure)
    if wish.kept is not None:
        nodes = (lambda n: count(int(n), "node"), "keeps")
        return _best(curve, wish.kept, lambda p: p.count, nodes, measure)
    if wish.rel_max is not None:
        known = _rel_max(criterion)
        return _cheapest(curve, wish.rel_max, known, "has a rel max of", measure)
    if wish.metric_drop is not None:
        told = f"loses {_metric(curve)} by"
        return _cheapest(curve, wish.metric_drop, _fall(curve), told, measure)
    return Picked(_recommended(curve))


def implied(curve: Curve, criterion: Criterion, wish: Wish) -> dict[str, Any]:
    """Return the acceptance options that a request implies, by their names in the library.

    A requested error or metric decides; if there are other outputs, the metric becomes "auto" with
    the requested drop. Otherwise the recognised task decides, if there is one, else the run's
    criterion.
    """
    if wish.rel_max is not None:
        return {"rel_max": wish.rel_max}
    if wish.metric_drop is not None and not has_others(curve):
        return {"metric": _metric(curve), "metric_drop": wish.metric_drop}
    if curve.recognised:
        return {"metric": AUTO}
    own = criterion.model_dump(exclude_defaults=True, exclude={"drop_source", "recognised"})
    return own if criterion.metric is None else {**own, "metric_drop": criterion.metric_drop}


def has_others(curve: Curve) -> bool:
    """Return whether unrecognised outputs are held to the default tolerance."""
    return bool(curve.recognised) and any(score.metric == REL_MAX for score in curve.reference)


def _recommended(curve: Curve) -> Point:
    """Return the recommended plan, or the run's own if that passes and keeps nothing.

    Then none is cheaper, and the run scored none.
    """
    if curve.recommended is not None:
        return curve.points[curve.recommended]
    own = None if curve.plan is None or curve.reference else curve.points[curve.plan]
    if own is not None and own.count == 0 and own.error <= 1 and not own.is_bound:
        return own
    why = "no task metric is known to fit its outputs"
    if curve.recognised:
        why = "it measured no plan on held-out samples"
    if curve.reference:
        metrics = " and ".join(sorted({score.metric for score in curve.reference}))
        why = (
            f"none of the plans that it measured more closely passes {metrics} on both held-out "
            "and search samples without infinities"
        )
    raise CaseError(
        f"The run recommends no plan: {why}.",
        "Choose one: --worth X, --kept N or --rel-max X.",
    )


def _best(
    curve: Curve,
    limit: float,
    value: Callable[[Point], float],
    told: tuple[Callable[[float], str], str],
    measure: Measure,
) -> Picked:
    fitting = [point for point in curve.points if value(point) <= limit]
    if not fitting:
        (say, does), nearest = told, min(curve.points, key=value)
        raise CaseError(
            f"No plan of the run {does} at most {say(limit)}; the nearest {does} "
            f"{say(value(nearest))}.",
            _OTHER,
        )
    # Points with only a bound: of equal bounds, the costliest has most room to be exact.
    bounds = sorted((p for p in fitting if p.is_bound), key=lambda p: (p.error, -p.price))
    known = [(_by_error(p), p) for p in fitting if not p.is_bound]
    sound = [p for p in bounds if not p.infinite_inside and p.error < inf]
    least = min((p.error for (bad, *_), p in known if not bad), default=inf)
    for point in sound[:MEASURED]:
        if point.error >= least:
            break
        error = measure.error(point)
        known.append((_by_error(point, error), point))
        least = min(least, error)
    seen = [point for _, point in known]
    left = sum(p.error < least and p not in seen for p in sound)
    best = min(known, key=lambda pair: pair[0])[1] if known else bounds[0]
    return Picked(best, left)


def _by_error(point: Point, error: float | None = None) -> tuple[bool, float, float, float]:
    own = point.error if error is None else error
    heldout = inf if point.heldout is None else point.heldout
    return bool(point.infinite_inside) or own == inf, own, heldout, point.price


def _cheapest(
    curve: Curve,
    limit: float,
    known: Callable[[Point], float | None],
    does: str,
    measure: Measure,
) -> Picked:
    """Return the cheapest point that fits; the run's data can only exclude points.

    Those that fit on the run's held-out samples come first, from the cheapest on, until one fits;
    then cheaper ones: a few from the cheapest on, of many repeatedly the middle one.
    """
    values = {place: known(point) for place, point in enumerate(curve.points)}
    order = sorted(range(len(curve.points)), key=lambda i: curve.points[i].price)
    left = [i for i in order if (value := values[i]) is None or value <= limit]
    fp32 = [i for i in left if is_fp32(curve, curve.points[i])]
    best, skipped, free = (fp32[0] if fp32 else None), 0, MEASURED
    left = [i for i in left if best is None or curve.points[i].price < curve.points[best].price]
    hopeful = [i for i in left if values[i] is not None and _is_measured(curve.points[i])]
    for place in hopeful[: MEASURED // 2]:
        free -= 1
        if measure.fits(curve.points[place]):
            best, left = place, left[: left.index(place)]
            break
        left.remove(place)
    while left and free:
        middle = 0 if len(left) <= free else len(left) // 2
        free -= 1
        if measure.fits(curve.points[left[middle]]):
            best, left = left[middle], left[:middle]
        else:
            skipped, left = skipped + middle, left[middle + 1 :]
    if best is not None:
        return Picked(curve.points[best], skipped + len(left))
    seen = {
        p: v
        for p, v in values.items()
        if v is not None and limit < v < inf and not curve.points[p].is_bound
    }
    if not seen:
        raise CaseError(f"No measured plan of the run {does} at most {number(limit)}.", _OTHER)
    place = min(seen, key=lambda place: seen[place])
    raise CaseError(
        f"No measured plan of the run {does} at most {number(limit)}; the nearest {does} "
        f"{number(seen[place])} and keeps {count(curve.points[place].count, 'node')}.",
        _OTHER,
    )


def _is_measured(point: Point) -> bool:
    return point.heldout is not None and not point.is_bound


def _costs(curve: Curve) -> Callable[[Point], float]:
    if any(point.cost is None for point in curve.points):
        raise CaseError(
            "The run could predict no costs, so --worth cannot choose.", "Give --kept N."
        )
    return lambda point: point.price


def _rel_max(criterion: Criterion) -> Callable[[Point], float | None]:
    """Return a lower bound of a point's value over all known samples; None if unknown."""
    limits = effective(criterion)
    alone = limits.rel_max if _is_alone(limits) else None

    def known(point: Point) -> float | None:
        if point.nonfinite or point.infinite_inside or point.error == inf:
            return inf
        searched = None if alone is None else point.error * alone
        return max((v for v in (point.rel_max, searched) if v is not None), default=None)

    return known


def _is_alone(limits: Criterion) -> bool:
    others = (limits.max_abs, limits.snr_db, limits.cosine, limits.metric)
    return all(other is None for other in others)


def _metric(curve: Curve) -> str:
    """Return the task metric of the points; for outputs without a task, no fall is allowed."""
    known = curve.reference or curve.recognised
    metrics = sorted({one.metric for one in known} - {REL_MAX})
    if len(metrics) == 1:
        return metrics[0]
    if not metrics:
        raise UsageError(
            "The run knows no task metric for its outputs, so --metric-drop cannot choose.",
            "Give --worth X, --kept N or --rel-max X.",
        )
    raise UsageError(
        f"The outputs have several metrics, {' and '.join(metrics)}, in different units.",
        "Give --worth X, --kept N or --rel-max X, or nothing for the recommended plan.",
    )


def _fall(curve: Curve) -> Callable[[Point], float | None]:
    """Return how far a point's metric falls on held-out samples; None if unknown.

    inf with infinities, and if outputs without a metric exceed the tolerance.
    """
    metric = _metric(curve)
    own = [score.value for score in curve.reference if score.metric == metric]

    def known(point: Point) -> float | None:
        others = [score.passed for score in point.scores if score.metric == REL_MAX]
        if point.nonfinite or point.infinite_inside or point.error == inf or not all(others):
            return inf
        found = [score.value for score in point.scores if score.metric == metric]
        if not own or len(found) != len(own):
            return None
        return max(0.0, *(before - after for before, after in zip(own, found, strict=True)))

    return known
