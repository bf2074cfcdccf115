"""The plan of a run that is recommended instead, and the `choose` that takes it."""

from collections.abc import Sequence
from pathlib import Path

from halfwise.records import Criterion, Curve, Engines, Step, Verdict
from halfwise.reporting.verdict import allowed, offered, weakest
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
    if (weak := weakest(point.scores)) is not None:
        numbers["evidence"], names["unit"] = weak.evidence or 0, weak.unit or ""
    return (
        Step(
            kind="choose",
            names=names,
            numbers=numbers,
            items=tuple(dict.fromkeys(score.metric for score in point.scores)),
            command=("halfwise", "choose", argument(run), "-o", argument(chosen)),
        ),
    )
