"""A plan: what it keeps and why, what it costs, and the plans to choose from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite

from halfwise.records import (
    AdjustedConstant,
    Criterion,
    Curve,
    Guard,
    GuardKind,
    KeptNode,
    NodeName,
    Plan,
    Point,
    Run,
)
from halfwise.records.run import places
from halfwise.reporting.parts import Column, Table, first_of, known, table_of
from halfwise.reporting.remarks import guard_sentence, reasons, unfinished
from halfwise.reporting.rungs import rung_name, score_cell
from halfwise.reporting.verdict import allowed, beyond_seen, rests_on
from halfwise.reporting.words import say
from halfwise.wording import MOST_ROWS, count, listed, number, ratio, sentence, shorten

INSIDE: Mapping[GuardKind | None, str] = {
    "infinite": "infinite inside",
    "decision": "decides otherwise",
}
"""Effects of lowering that are no error of the outputs."""


def kept_table(run: Run) -> Table | None:
    """Return the kept nodes with their reasons, like ones grouped; None if none is kept."""
    if run.plan is None or not run.plan.keep:
        return None
    keep = run.plan.keep
    groups: dict[object, list[KeptNode]] = {}
    for kept in sorted(keep, key=lambda kept: kept.unknown):
        groups.setdefault(_likeness(kept), []).append(kept)
    title = f"Kept in {_types(keep)}: {len(keep)} of {count(run.plan.candidates, 'compute node')}"
    if run.search is not None and run.search.tolerance_factor != 1:
        title += f"; the search uses {number(run.search.tolerance_factor)} of the tolerance"
    title += beyond_seen(run, ", at")
    shown = sorted(groups.values(), key=lambda g: (g[0].guard is None, not g[0].unknown))
    rows = tuple(_kept_row(group, run.guards) for group in shown)
    columns = (Column("node"), Column("why"), Column("without it", "right", minor=True))
    return Table(title, columns, rows, most=MOST_ROWS)


def _types(keep: Sequence[KeptNode]) -> str:
    types = Counter(kept.precision.upper() for kept in keep)
    if len(types) < 2:
        return next(iter(types), "FP32")
    *rest, last = (f"{name} ({types[name]})" for name in ("BF16", "TF32", "FP32") if types[name])
    return f"{', '.join(rest)} and {last}"


def _likeness(kept: KeptNode) -> tuple[str | bool | None, ...]:
    if kept.unknown:
        return (True,)
    general = kept.guard is None and kept.error_without is None
    return kept.precision, kept.op, kept.guard, kept.reason if general else None


def _kept_row(group: Sequence[KeptNode], guards: Sequence[Guard]) -> tuple[str, str, str]:
    first, names = group[0], [kept.node for kept in group]
    excesses = [kept.error_without for kept in group if kept.error_without is not None]
    least = min(excesses, default=inf)
    without = f"≥ {ratio(least)} limit" if isfinite(least) else "unbounded"
    if first.unknown and len(group) > 1:
        return f"{len(group)} nodes", say("plan", "unknown"), "–"
    messages = {g.message if (g := _guard_of([kept], guards)) else kept.reason for kept in group}
    why = first.reason
    if (guard := _guard_of(group, guards)) is not None:
        why = guard_sentence(guard, guard.node if guard.node in names else names[0])
    why = why if len(messages) == 1 else f"For example: {why}"
    nodes, op = listed(names, most=3, width=40), shorten(first.op, 20)
    nodes = f"{nodes} ({op})" if len(names) == 1 else f"{len(names)} × {op}: {nodes}"
    nodes += "" if first.precision == "fp32" else f", in {first.precision.upper()}"
    return nodes, sentence(why), without if excesses else INSIDE.get(first.guard, "–")


def _guard_of(group: Sequence[KeptNode], guards: Sequence[Guard]) -> Guard | None:
    """Return the guard that a group rests on; None if there is none."""
    because, names = group[0].because, {kept.node for kept in group}
    if because is not None and because.guard is not None:
        return guards[because.guard]
    alike = [guard for guard in guards if guard.kind == group[0].guard]
    near = [guard for guard in alike if not names.isdisjoint((guard.node, *guard.nodes))]
    return min(near, key=lambda guard: guard.node not in names, default=None)


def _constant_line(constant: AdjustedConstant, low: str) -> str:
    largest = max(-constant.minimum, constant.maximum)
    facts = {**dict(constant), "low": low, "tiny": largest < 1, "largest": largest}
    return say("plan", "constant", facts | {"name": shorten(constant.name)})


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield how many nodes are low, and what is special about others, as sentences."""
    facts = {
        **dict(plan),
        "kept": len(plan.keep) or None,
        "types": _types(plan.keep),
        "rest": 0 < len(plan.keep) < plan.candidates,
        "none": not plan.candidates,
        "only": plan.candidates == 1,
        "repairs": len(plan.repairs) or None,
        "moved": len(plan.data_movement) or None,
    }
    yield say("plan", "nodes", facts)
    yield from first_of([_constant_line(constant, plan.low) for constant in plan.constants])
    special: dict[str, list[NodeName]] = {}
    for name, rule in plan.lowered.items():
        special.setdefault(f"The rule {rule} puts in {plan.low.upper()}", []).append(name)
    for node in plan.unsupported:
        special.setdefault(f"Always FP32, {node.op}: {node.reason}", []).append(node.node)
    for what, nodes in special.items():
        yield sentence(f"{what}: {count(len(nodes), 'node')} ({listed(nodes)}).")


def minimality(run: Run, plan: Plan) -> str:
    """Return whether fewer nodes could be kept, as a sentence."""
    search, engines = run.search, run.engines
    if not plan.keep:
        shown = run.verdict.passed and not (engines is not None and engines.full)
        fused = any(repair.rule == "one-node" for repair in plan.repairs)
        return say("plan", "none kept", {"shown": shown, "fused": fused})
    if not plan.minimal:
        interrupted = search is not None and "interrupt" in search.ended_by
        in_engine = engines is not None and engines.keep and not interrupted
        return say("plan", "builds used") if in_engine else unfinished(search)
    fixed = sum(kept.kept_by in ("rule", "model") for kept in plan.keep)
    predicted = len(engines.needed_as_predicted) if engines is not None else 0
    facts = {"all": fixed == len(plan.keep), "fixed": bool(fixed), "predicted": predicted or None}
    return say("plan", "minimal", facts)


def left_out_table(run: Run) -> Table | None:
    """Return the nodes left out of INT8, like ones grouped; None if none is."""
    if run.plan is None or not (left_out := run.plan.left_out or run.without_int8):
        return None
    plan, groups = run.plan, dict[tuple[str, str], list[KeptNode]]()
    for kept in left_out:
        grouped = kept.reason if len(left_out) <= MOST_ROWS else ""
        groups.setdefault((kept.op, grouped), []).append(kept)
    of_all = count(len(plan.int8) + len(left_out), "quantisable node")
    return table_of(
        f"Left out of INT8, in {plan.low.upper()}: {len(left_out)} of {of_all}",
        list(groups.values()),
        [
            (
                Column("node"),
                lambda some: (
                    f"{len(some)} × {shorten(some[0].op, 20)}: "
                    f"{listed([k.node for k in some], 3, 40)}"
                ),
            ),
            (Column("why"), lambda some: some[0].reason),
        ],
        MOST_ROWS,
    )


def nothing_in_int8(run: Run) -> str:
    """Return that a plan asked for in INT8 has none, and why; else ""."""
    if run.plan is None or not run.without_int8:
        return ""
    tried, untried = run.all_int8, sum(kept.error_without is None for kept in run.without_int8)
    why = "" if tried is None else "; ".join(reasons(tried.failures))
    facts: dict[str, object] = {"low": run.plan.low}
    facts |= {"passed": tried is not None and tried.passed, "why": why}
    facts |= {"untried": untried or None, "of": len(run.without_int8)}
    return say("plan", "no int8", facts.items())


def int8_lines(run: Run) -> Iterator[str]:
    """Yield how many nodes have INT8, and whether more could, as sentences."""
    plan = run.plan
    if plan is None or not plan.has_int8:
        return
    of_all, repairs = len(plan.int8) + len(plan.left_out), len(plan.repairs) or None
    facts = {**dict(plan), "of": of_all, "int8": len(plan.int8), "repairs": repairs}
    yield say("plan", "int8", facts)
    if plan.left_out and plan.minimal:
        sums = any(k.because is not None and k.because.beside for k in plan.left_out)
        yield say("plan", "int8 minimal", {"sums": sums})
    elif plan.left_out:
        yield unfinished(run.search)


def curve_table(run: Run) -> Table | None:
    """Return the plans to choose from; None without any."""
    curve = run.curve
    if curve is None:
        return None
    names = dict.fromkeys(score.metric for score in curve.reference)
    rows = [
        *_plans(curve, "this plan"),
        *(_plans(curve.beside, "its plan") if curve.beside else ()),
    ]
    over, judged = curve.criterion or run.criterion, run.verdict
    facts = {
        "over": allowed(over) if over != run.criterion else None,
        "heldout": len(judged.samples) if judged.unseen and judged.level == "emulated" else None,
        "beyond": beyond_seen(run, ", both at"),
        "sketched": any(c is not None and c.unrepaired for c in (curve, curve.beside)),
    }
    return table_of(
        "Plans to choose from",
        rows,
        [
            (Column("rung"), lambda row: "" if row[0].rung is None else rung_name(row[0].rung)),
            (
                Column("kept", "right"),
                lambda row: "" if row[0].rung == "int8" else _counted(row[1]),
            ),
            (
                Column("not INT8", "right", minor=True),
                lambda row: _counted(row[1]) if row[0].rung == "int8" else "",
            ),
            (Column("Casts", "right", minor=True), lambda row: known(row[1].casts, str)),
            (Column("cost", "right"), lambda row: known(row[1].cost, ratio)),
            (
                Column("error / allowed", "right"),
                lambda row: f"{'≥ ' if row[1].is_bound else ''}{number(row[1].error)}",
            ),
            *(
                (
                    Column(_resting(curve, name), "right"),
                    lambda row, name=name: score_cell(row[1].scores, name),
                )
                for name in names
            ),
            (Column(""), lambda row: row[2]),
        ],
        note=say("plan", "curve", facts),
    )


def _plans(curve: Curve, own: str) -> Iterator[tuple[Curve, Point, str]]:
    """Yield the plans to show of a curve, and what is special about them; `own`: of its plan."""
    yield from ((curve, curve.points[i], own * (i == curve.plan)) for i in curve.front)
    if (bare := curve.unrepaired) is not None:
        yield from ((curve, bare.points[i], "tried without repairs") for i in bare.front)


def _resting(curve: Curve, metric: str) -> str:
    """Return the heading of a metric's column: its name, and how little it rests on."""
    scores = [s for s in curve.reference if s.metric == metric and s.evidence is not None]
    least = min(scores, key=lambda score: score.evidence or 0, default=None)
    return metric if least is None else f"{metric} {rests_on(least)}"


def _counted(point: Point) -> str:
    bf16 = len([*places(point.bf16)])
    types = [f"{bf16} BF16"] * bool(bf16) + ["TF32"] * point.tf32
    return f"{point.count} ({', '.join(types)})" if types else str(point.count)


def overflowing(run: Run) -> str:
    """Return that a plan that passed overflows within the headroom; else ""."""
    curve = run.curve
    plan = None if curve is None or curve.plan is None else curve.points[curve.plan]
    if plan is None or not run.verdict.passed or run.verdict.level != "emulated":
        return ""
    where = beyond_seen(run, "At")
    if not where or (plan.error < inf and not plan.nonfinite):
        return ""
    return say("plan", "overflows", {"where": where})


def chosen_line(curve: Curve, point: Point, criterion: Criterion) -> str:
    """Return which plan was chosen and by what it is judged, as a clause."""
    facts = {
        "kept": _counted(point),
        "nodes": len(curve.nodes),
        "int8": curve.rung == "int8",
        "cost": point.cost,
        "unrepaired": curve.unrepaired is not None,
        "allowed": allowed(criterion),
    }
    return say("plan", "chosen", facts)
