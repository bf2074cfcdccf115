"""Other plans of a run that are worth taking, and the `choose` that takes them."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path

from halfwise.records import Criterion, Curve, Engines, Step, Verdict, Worth
from halfwise.records.planned import LEAST_DEARER
from halfwise.reporting.offers import offered
from halfwise.reporting.verdict import allowed
from halfwise.wording import argument


def choosing(
    curve: Curve,
    out: Path | None,
    judged: Verdict,
    criterion: Criterion,
    devices: Sequence[Engines] = (),
) -> tuple[Step, ...]:
    """Return the command that takes the recommended plan, if it offers something."""
    point = offered(curve, judged, criterion, devices)
    if point is None:
        return ()
    run = out or Path("RUN")
    chosen = run.with_name(f"{run.name}.chosen")
    plan = None if curve.plan is None else curve.points[curve.plan]
    cheaper = plan is not None and point.price < plan.price
    names = dict[str, str]()
    numbers: dict[str, int | float] = {"kept": point.count, "cheaper": int(cheaper)}
    numbers["int8"] = int(curve.rung == "int8")
    numbers |= {} if point.cost is None else {"cost": point.cost}
    over = curve.criterion or criterion
    error = max(point.error, point.heldout or 0.0)
    if over.metric is None and error > 1:
        numbers["error"] = error
        names["allowed"] = allowed(over)
    return (
        Step(
            kind="choose",
            names=names,
            numbers=numbers,
            items=tuple(dict.fromkeys(score.metric for score in point.scores)),
            command=("halfwise", "choose", argument(run), "-o", argument(chosen)),
        ),
    )


def gaining(curve: Curve, worth: Worth | None, out: Path | None) -> tuple[Step, ...]:
    """Return the command that takes a known plan that passes and gains, where this one does not."""
    near = None if worth is None else worth.nearest
    if near is None or not near.passes or curve.rung == "int8":
        return ()
    limit = _limit(near.cost)
    known = (p for p in curve.points if p.cost is not None and p.cost <= limit)
    if not any(p.error <= 1 and not (p.is_bound or p.infinite_inside) for p in known):
        return ()
    return (_taking(curve, near.kept, near.cost, out),)


def exceeding(curve: Curve, worth: Worth | None, out: Path | None) -> tuple[Step, ...]:
    """Return the command that takes a known plan that gains, costs less, and is no less exact.

    Lowering one more node may add Casts or Q/DQ pairs that cost more than it saves. Everything kept
    is no such plan: it is the model of the rung before.
    """
    own = None if curve.plan is None else curve.points[curve.plan]
    if own is None or own.cost is None or worth is None:
        return ()
    better = [
        (p.error, p.cost, p.count)
        for p in curve.points
        if p.cost is not None
        and own.cost >= p.cost * LEAST_DEARER
        and worth.model_copy(update={"cost": p.cost}).gains
        and p.error <= min(own.error, 1)
        and p.heldout is not None
        and p.heldout <= 1
        and p.count < len(curve.nodes)
        and not (p.is_bound or p.nonfinite or p.infinite_inside)
    ]
    if not better:
        return ()
    _, cost, count = min(better)
    return (_taking(curve, count, cost, out),)


def _taking(curve: Curve, kept: int, cost: float, out: Path | None) -> Step:
    run = out or Path("RUN")
    words = ["choose", argument(run), "-o", argument(run.with_name(f"{run.name}.chosen"))]
    return Step(
        kind="take-gaining",
        numbers={"kept": kept, "cost": cost, "int8": int(curve.rung == "int8")},
        command=("halfwise", *words, "--worth", f"{_limit(cost):g}"),
    )


def _limit(cost: float) -> float:
    return ceil(cost * 1000) / 1000
