"""Words on the plans to choose from: their costs and their benefits."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import cast

from halfwise.metrics import rises, usual
from halfwise.records import (
    FULL_RUNGS,
    Criterion,
    Curve,
    Engines,
    GuardKind,
    Point,
    Row,
    Run,
    TaskScore,
)
from halfwise.records.run import places
from halfwise.reporting.guards import CAUSES
from halfwise.reporting.offers import against, offered
from halfwise.reporting.parts import Column, Table
from halfwise.reporting.rungs import rung_name
from halfwise.reporting.tasks import rests_on, weakest
from halfwise.reporting.verdict import allowed, beyond_seen
from halfwise.wording import count, listed, number, ratio, sentence, verb

_SKETCHED = "; plans without repairs were tried, not searched for"


def curve_table(run: Run) -> Table | None:
    """Return the plans to choose from, cheapest first; None if none was measured for it."""
    curve = run.curve
    if curve is None or not any(curve.points[place].scores for place in curve.front):
        return None
    names = list(dict.fromkeys(score.metric for score in curve.reference))
    own = [_row(curve, place, names, run.devices) for place in curve.front]
    rows = [
        *_full_rows(run, names),
        *(_at_rung(curve, row) for row in (*own, *_bare(curve, names))),
    ]
    if (beside := curve.beside) is not None:
        passed = {beside.plan: "its plan"}
        others = [(*_row(beside, i, names, ())[:-1], passed.get(i, "")) for i in beside.front]
        rows += [_at_rung(beside, row) for row in (*others, *_bare(beside, names))]
    figures = ("kept", "not INT8", "Casts", "cost", "error / allowed")
    shown = (*figures, *(_resting(curve, n) for n in names))
    minor = ("not INT8", "Casts")
    right = (Column(figure, "right", minor=figure in minor) for figure in shown)
    columns = (Column("rung"), *right, Column(""))
    over = curve.criterion or run.criterion
    whose = f" ({allowed(over)})" if over != run.criterion else ""
    told = f"error on the samples of the search{whose}, scores on {_heldout(run)}"
    sketched = any(c is not None and c.unrepaired for c in (curve, curve.beside))
    told += beyond_seen(run, ", both at") + (_SKETCHED if sketched else "")
    table = Table("Plans to choose from", columns, tuple(rows), note=told)
    return table.without_empty_columns()


def _full_rows(run: Run, names: list[str]) -> list[tuple[str, ...]]:
    """Return a row for each rung without a plan."""
    return [
        (
            rung_name(rung.rung),
            *("", "", ""),
            "" if rung.cost is None else ratio(rung.cost),
            "" if rung.error is None else number(rung.error),
            *_values(rung.scores, names),
            "",
        )
        for rung in run.rungs
        if rung.rung in FULL_RUNGS
    ]


def _bare(curve: Curve, names: list[str]) -> Iterator[tuple[str, ...]]:
    if (bare := curve.unrepaired) is not None:
        for place in bare.front:
            yield (*_row(bare, place, names, ())[:-1], "tried without repairs")


def _at_rung(curve: Curve, row: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row with the rung of its plan; INT8's exclusions have their own column."""
    kept, *rest = row
    if curve.rung == "int8":
        return rung_name("int8"), "", kept, *rest
    return "" if curve.rung is None else rung_name(curve.rung), kept, "", *rest


def _resting(curve: Curve, metric: str) -> str:
    """Return a metric with the smallest support of its scores over several outputs."""
    scores = [s for s in curve.reference if s.metric == metric and s.evidence is not None]
    least = min(scores, key=lambda score: score.evidence or 0, default=None)
    return metric if least is None else f"{metric} {rests_on(least)}"


def _heldout(run: Run) -> str:
    """Return the samples that plans are scored on, with their number if the verdict has it."""
    judged = run.verdict
    if judged.unseen and judged.level == "emulated":
        return count(len(judged.samples), "held-out sample")
    return "held-out samples"


_PARTS = 8
"""Most parts of a plan to show; the record has all."""


def part_table(run: Run) -> Table | None:
    """Return what parts of the plan buy; None if none was measured."""
    curve = run.curve
    measured = [r for r in curve.rows if (r.alone, r.without) != (None, None)] if curve else []
    if curve is None or not measured:
        return None
    least, plan = _place(curve, curve.front[0] if curve.front else None), _place(curve, curve.plan)
    rows = [
        (
            sentence(_kind(row)),
            str(row.count),
            *_change(_place(curve, row.alone), least),
            *_change(_place(curve, row.without), plan),
        )
        for row in measured[:_PARTS]
    ]
    right = tuple(Column(c, "right") for c in ("part alone", "its error", "plan without"))
    minor = (Column(title, "right", minor=True) for title in ("nodes", "its error"))
    return Table(
        "What each part of the plan contributes",
        (Column("part"), next(minor), *right, next(minor)),
        tuple(rows),
        note="cost and error, where 1 is allowed",
    )


def _kind(row: Row) -> str:
    if row.kind == "guard":
        return CAUSES[cast("GuardKind", row.name)]
    return row.name if row.kind == "rule" else f"operator {row.name}"


def _place(curve: Curve, place: int | None) -> Point | None:
    return None if place is None else curve.points[place]


def _change(point: Point | None, beside: Point | None) -> tuple[str, str]:
    """Return a plan's cost relative to another, and its error; "–" if not measured."""
    if point is None:
        return "–", "–"
    error = f"{'≥ ' if point.is_bound else ''}{number(point.error)}"
    if point.cost is None or beside is None or beside.cost is None:
        return "", error
    change = point.cost - beside.cost
    return f"{'+' if change > 0 else ''}{number(change)} ×", error


def _row(curve: Curve, place: int, names: list[str], devices: Sequence[Engines]) -> tuple[str, ...]:
    point = curve.points[place]
    best = "recommended" if weakest(point.scores) is None else "recommended on little evidence"
    marks = {"this plan": curve.plan, best: curve.recommended}
    told = [mark for mark, own in marks.items() if own == place]
    off = against(curve, point, devices) if place == curve.recommended else None
    if off is not None and not off.explained:
        told = [mark for mark in told if mark != best]
        told.append(f"{'refused' if off.excess is None else 'off'} in build {off.build}")
    bound = "≥ " if point.is_bound else ""
    return (
        _counted(point),
        "" if point.casts is None else str(point.casts),
        "" if point.cost is None else ratio(point.cost),
        f"{bound}{number(point.error)}",
        *_values(point.scores, names),
        ", ".join(told),
    )


def _counted(point: Point) -> str:
    """Return how many nodes are kept, and in which types besides FP32."""
    bf16 = len([*places(point.bf16)])
    types = [f"{bf16} BF16"] * bool(bf16) + ["TF32"] * point.tf32
    return f"{point.count} ({', '.join(types)})" if types else str(point.count)


def _values(scores: Sequence[TaskScore], names: list[str]) -> Iterator[str]:
    """Return a score for each metric; of several outputs with one metric, the worst counts."""
    shown = dict.fromkeys(names, "")
    for score in scores:
        if not shown.get(score.metric) or not score.passed:
            shown[score.metric] = _value(score)
    return (shown[name] for name in names)


def _value(score: TaskScore) -> str:
    if score.passed and score.evidence == 0:
        return "–"
    return f"{number(usual(score.metric, score.value), 4)}{'' if score.passed else ' ✗'}"


def offer(run: Run) -> str:
    """Return what the recommended plan offers over the run's, as a sentence; "" if nothing."""
    curve, judged = run.curve, run.verdict
    point = None if curve is None else offered(curve, judged, run.criterion, run.devices)
    if curve is None or point is None:
        return ""
    emulated = ", as emulated" if judged.level == "engine" else ""
    plan = None if curve.plan is None else curve.points[curve.plan]
    where = (
        f"{_scored(point)} on {_heldout(run)}{emulated}.{_doubt(point)}{_off(curve, point, run)}"
    )
    if point is plan:
        return f"Judged by its task, this plan is good enough: {where}"
    beside = "" if plan is None else f" (this one: {plan.count}{_at(plan)})"
    cheaper = "a cheaper" if plan is None or point.price < plan.price else "another"
    return (
        f"Judged by its task, {cheaper} plan is good enough: {point.count} of "
        f"{count(len(curve.nodes), 'node')} {_kept(curve)}{_at(point)}{beside}, {where}"
    )


def overflowing(run: Run) -> str:
    """Return a sentence if the plan of a passed run fails within the headroom; else "".

    The curve's trials use smaller ranges for that; the verdict does not.
    """
    curve = run.curve
    plan = None if curve is None else _place(curve, curve.plan)
    if plan is None or not run.verdict.passed or run.verdict.level != "emulated":
        return ""
    where = beyond_seen(run, "At")
    if not where or (plan.error < inf and not plan.nonfinite):
        return ""
    return (
        f"{where} this plan gives NaN or infinite values; the verdict holds for the ranges of its "
        "samples."
    )


def _doubt(point: Point) -> str:
    weak = weakest(point.scores) is not None
    return " This is little evidence: judge it on more inputs." if weak else ""


def _off(curve: Curve, point: Point, run: Run) -> str:
    """Return how far an engine of the plan is off, as a sentence; "" if none is known to be."""
    shown = against(curve, point, run.devices)
    if shown is None or shown.excess is None:
        return ""
    return f" Its engine has {number(shown.excess)} times what is allowed (build {shown.build})."


def chosen_line(
    curve: Curve, point: Point, criterion: Criterion, measured: int = 0, left: int = 0
) -> str:
    """Return a description of a chosen plan, and what it is judged by.

    Args:
        curve: The run's curve.
        point: The plan.
        criterion: What judges it.
        measured: Number of plans measured for the choice.
        left: Number of plans that may be better but were not measured.
    """
    cost = "" if point.cost is None else f"{_at(point)} the cost of everything low"
    nodes = count(len(curve.nodes), "compute node")
    told = f"chosen: {_counted(point)} of {nodes} {_kept(curve)}{cost}"
    if measured:
        told += f", after measuring {count(measured, 'plan')}"
    if left:
        told += f"; {left} more that may fit better {verb(left, 'was', 'were')} not measured"
    if curve.unrepaired is not None:
        told += "; plans without repairs cannot be chosen: `halfwise fix --no-repair` finds them"
    return f"{told}; judged by: {allowed(criterion)}"


def _kept(curve: Curve) -> str:
    return "left out of INT8" if curve.rung == "int8" else "kept"


def _at(point: Point) -> str:
    return "" if point.cost is None else f" at {ratio(point.cost)}"


def _scored(point: Point) -> str:
    return ", ".join(
        f"{score.metric}{f' of {listed(score.outputs, 2)}' * (len(point.scores) > 1)} "
        f"{number(usual(score.metric, score.value), 4)} ({_required(score)})"
        for score in point.scores
    )


def _required(score: TaskScore) -> str:
    limit = number(usual(score.metric, score.required), 4)
    most = f"at {'most' if rises(score.metric) else 'least'} {limit}"
    return "; ".join(filter(None, (most, rests_on(score))))
