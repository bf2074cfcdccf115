"""Words on the plans to choose from: what each costs, and what it gives for that."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from halfwise.metrics import usual
from halfwise.records import Criterion, Curve, Point, Run, TaskScore
from halfwise.reporting.parts import Column, Table
from halfwise.reporting.verdict import allowed
from halfwise.wording import count, number, ratio


def curve_table(run: Run) -> Table | None:
    """Return the plans to choose from, cheapest first; None where none was measured for that."""
    curve = run.curve
    if curve is None or not any(curve.points[place].scores for place in curve.front):
        return None
    names = list(dict.fromkeys(score.metric for score in curve.reference))
    rows = [_row(curve, place, names) for place in curve.front]
    figures = ("kept", "Casts", "cost", "error / allowed", *names)
    columns = (*(Column(figure, "right") for figure in figures), Column(""))
    return Table(
        "What precision buys: error on the samples of the search, scores on held-out samples",
        columns,
        tuple(rows),
    ).without_empty_columns()


def _row(curve: Curve, place: int, names: list[str]) -> tuple[str, ...]:
    point = curve.points[place]
    marks = {"this plan": curve.plan, "recommended": curve.recommended}
    shown = dict.fromkeys(names, "")
    for score in point.scores:
        # Of several outputs with one metric the worst counts.
        if not shown[score.metric] or not score.passed:
            shown[score.metric] = _value(score)
    bound = "≥ " if point.is_bound else ""
    return (
        str(point.count),
        "" if point.casts is None else str(point.casts),
        "" if point.cost is None else ratio(point.cost),
        f"{bound}{number(point.error)}",
        *shown.values(),
        ", ".join(mark for mark, own in marks.items() if own == place),
    )


def _value(score: TaskScore) -> str:
    return f"{number(usual(score.metric, score.value), 4)}{'' if score.passed else ' ✗'}"


def offer(run: Run) -> str:
    """Return what the recommended plan offers over that of the run, a sentence; "" for nothing."""
    curve = run.curve
    point = None if curve is None else curve.offered(passed=run.verdict.passed)
    if curve is None or point is None:
        return ""
    plan = None if curve.plan is None else curve.points[curve.plan]
    if point is plan:
        return f"By its task this plan will do: {_scored(point)} on held-out samples."
    beside = "" if plan is None else f" (this one: {plan.count}{_at(plan)})"
    return (
        f"By its task a cheaper plan will do: it keeps {_size(curve, point)}{_at(point)}{beside}, "
        f"with {_scored(point)} on held-out samples."
    )


def choosing(curve: Curve | None, out: Path | None, *, passed: bool) -> Iterator[str]:
    """Yield the command that takes the recommended plan, where that offers something."""
    if curve is None or curve.offered(passed=passed) is None:
        return
    run = out or Path("RUN")
    words = ["halfwise", "choose", str(run), "-o", str(run.with_name(f"{run.name}.chosen"))]
    yield f"Take the recommended plan: {shlex.join(words)}"


def chosen_line(curve: Curve, point: Point, criterion: Criterion) -> str:
    """Return what a plan is that was chosen, and what it is judged by."""
    by = criterion.metric or "its error"
    return f"chosen: {_size(curve, point)} kept{_at(point)}; judged by {by} ({allowed(criterion)})"


def _size(curve: Curve, point: Point) -> str:
    return f"{point.count} of {count(len(curve.nodes), 'compute node')}"


def _at(point: Point) -> str:
    return "" if point.cost is None else f" at {ratio(point.cost)} the cost of everything low"


def _scored(point: Point) -> str:
    return ", ".join(
        f"{score.metric} {number(usual(score.metric, score.value), 4)} "
        f"({number(usual(score.metric, score.required), 4)} is required)"
        for score in point.scores
    )
