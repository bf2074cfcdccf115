"""Which point of a curve answers a question, and what it is to be judged by then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Any

from halfwise.declarations import spelt
from halfwise.errors import CaseError, UsageError
from halfwise.metrics import AUTO, effective
from halfwise.metrics.recognised import REL_MAX
from halfwise.records import Criterion, Curve, Point
from halfwise.wording import count, number, ratio, typed

_OTHER = "Give another limit; `halfwise report RUN` shows the plans."


@dataclass(frozen=True)
class Wish:
    """What the user asks of a plan; at most one, and none for the recommended one.

    Attributes:
        worth: The most that it may cost over everything low.
        kept: The most compute nodes that it may keep.
        rel_max: The largest error over the largest reference value of an output.
        metric_drop: How far the task metric may fall below that of FP32.
    """

    worth: float | None = None
    kept: int | None = None
    rel_max: float | None = None
    metric_drop: float | None = None

    @property
    def given(self) -> Mapping[str, float]:
        """What is given, by the name of the option."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    @property
    def told(self) -> str:
        """The command that asks for it, without the run."""
        return " ".join(
            ["choose", *(f"{spelt(name)} {typed(value)}" for name, value in self.given.items())]
        )


def pick(curve: Curve, criterion: Criterion, wish: Wish) -> Point:
    """Return the point that answers a wish.

    With a limit of cost or nodes that is the one of the smallest error, as far as it is known: a
    bound counts as it stands, since whoever takes the plan judges it on all samples. With a limit
    of error or metric, it is the cheapest.

    Args:
        curve: That of the run.
        criterion: What was acceptable in it.
        wish: What is asked.

    Raises:
        UsageError: two things are asked for, or something of which the run knows nothing.
        CaseError: no point fits.
    """
    if len(wish.given) > 1:
        first, second = (spelt(name) for name in list(wish.given)[:2])
        raise UsageError(
            f"{first} and {second} are both given, and one of them chooses.", "Give one."
        )
    if wish.worth is not None:
        return _best(curve, wish.worth, _costs(curve), ratio, "costs")
    if wish.kept is not None:
        return _best(curve, wish.kept, lambda p: p.count, lambda n: count(int(n), "node"), "keeps")
    if wish.rel_max is not None:
        known = _rel_max(criterion)
        return _cheapest(curve, wish.rel_max, known, "has a rel max of")
    if wish.metric_drop is not None:
        return _cheapest(curve, wish.metric_drop, _fall(curve), f"loses {_metric(curve)} by")
    return _recommended(curve)


def implied(curve: Curve, criterion: Criterion, wish: Wish) -> dict[str, Any]:
    """Return the acceptance options that a wish implies, by their names in the library.

    An error or a metric that is asked for is what decides. Otherwise the recognised task decides,
    where there is one, else what was acceptable in the run.
    """
    if wish.rel_max is not None:
        return {"rel_max": wish.rel_max}
    if wish.metric_drop is not None:
        return {"metric": _metric(curve), "metric_drop": wish.metric_drop}
    if curve.recognised:
        return {"metric": AUTO}
    own = criterion.model_dump(exclude_defaults=True, exclude={"drop_source", "recognised"})
    return own if criterion.metric is None else {**own, "metric_drop": criterion.metric_drop}


def _recommended(curve: Curve) -> Point:
    if curve.recommended is not None:
        return curve.points[curve.recommended]
    why = "no task metric is known to fit its outputs"
    if curve.recognised:
        why = "it measured no plan on held-out samples"
    if curve.reference:
        metrics = " and ".join(sorted({score.metric for score in curve.reference}))
        why = f"of the plans that it measured none passes {metrics} on held-out samples"
    raise CaseError(
        f"The run recommends no plan: {why}.",
        "Choose one: --worth X, --kept N or --rel-max X.",
    )


def _best(
    curve: Curve,
    limit: float,
    value: Callable[[Point], float],
    say: Callable[[float], str],
    does: str,
) -> Point:
    fitting = [point for point in curve.points if value(point) <= limit]
    if fitting:
        return min(fitting, key=_by_error)
    nearest = min(curve.points, key=value)
    raise CaseError(
        f"No plan of the run {does} at most {say(limit)}; the nearest {does} "
        f"{say(value(nearest))}.",
        _OTHER,
    )


def _by_error(point: Point) -> tuple[bool, float, bool, float, float]:
    heldout = inf if point.heldout is None else point.heldout
    return bool(point.infinite_inside), point.error, point.is_bound, heldout, point.price


def _cheapest(
    curve: Curve, limit: float, known: Callable[[Point], float | None], does: str
) -> Point:
    values = {place: known(point) for place, point in enumerate(curve.points)}
    seen = {p: value for p, value in values.items() if value is not None and isfinite(value)}
    fitting = [curve.points[place] for place, value in seen.items() if value <= limit]
    if fitting:
        return min(fitting, key=lambda p: (p.price, p.error))
    if not seen:
        raise CaseError("The run measured no plan on held-out samples.", "Choose by --worth X.")
    place = min(seen, key=lambda place: seen[place])
    raise CaseError(
        f"No plan that the run measured {does} at most {number(limit)}; the nearest {does} "
        f"{number(seen[place])} and keeps {count(curve.points[place].count, 'node')}.",
        _OTHER,
    )


def _costs(curve: Curve) -> Callable[[Point], float]:
    if any(point.cost is None for point in curve.points):
        raise CaseError(
            "The run could predict no costs, so --worth chooses nothing.", "Give --kept N."
        )
    return lambda point: point.price


def _rel_max(criterion: Criterion) -> Callable[[Point], float | None]:
    """Return what a point reaches: on held-out samples, and where it is known on the others."""
    limits = effective(criterion)
    alone = limits.rel_max if _is_alone(limits) else None

    def known(point: Point) -> float | None:
        if point.rel_max is None or point.nonfinite or point.infinite_inside:
            return None
        searched = 0.0 if alone is None else point.error * alone
        return max(point.rel_max, searched)

    return known


def _is_alone(limits: Criterion) -> bool:
    others = (limits.max_abs, limits.snr_db, limits.cosine, limits.metric)
    return all(other is None for other in others)


def _metric(curve: Curve) -> str:
    """Return the task metric of the points; of outputs without a task nothing may fall."""
    known = curve.reference or curve.recognised
    metrics = sorted({one.metric for one in known} - {REL_MAX})
    if len(metrics) == 1:
        return metrics[0]
    if not metrics:
        raise UsageError(
            "The run knows no task metric of its outputs, so --metric-drop chooses nothing.",
            "Give --worth X, --kept N or --rel-max X.",
        )
    raise UsageError(
        f"The outputs have several metrics, {' and '.join(metrics)}, each in a unit of its own.",
        "Give --worth X, --kept N or --rel-max X, or nothing for the recommended plan.",
    )


def _fall(curve: Curve) -> Callable[[Point], float | None]:
    metric = _metric(curve)
    own = [score.value for score in curve.reference if score.metric == metric]

    def known(point: Point) -> float | None:
        found = [score.value for score in point.scores if score.metric == metric]
        others = [score.passed for score in point.scores if score.metric == REL_MAX]
        nonfinite = point.nonfinite or point.infinite_inside
        if nonfinite or not own or len(found) != len(own) or not all(others):
            return None
        return max(0.0, *(before - after for before, after in zip(own, found, strict=True)))

    return known
