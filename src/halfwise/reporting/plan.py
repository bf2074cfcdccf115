"""The plan, and the curve of other plans to choose from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite

from halfwise.metrics import usual
from halfwise.records import (
    FULL_RUNGS,
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
    TaskScore,
    Verdict,
)
from halfwise.records.run import places
from halfwise.reporting.guards import guard_sentence
from halfwise.reporting.parts import Column, Table
from halfwise.reporting.remarks import reasons, unfinished
from halfwise.reporting.rungs import rung_name
from halfwise.reporting.verdict import allowed, beyond_seen, rests_on
from halfwise.wording import MOST_ROWS, count, listed, number, ratio, sentence, shorten, verb

INSIDE: Mapping[GuardKind | None, str] = {
    "infinite": "infinite inside",
    "decision": "decides otherwise",
}
"""What happens without nodes that are kept although the emulation's outputs pass."""


def kept_table(run: Run) -> Table | None:
    """Return a row for kept nodes of one operator and kind of reason.

    Nodes about which nothing is known share a row.
    """
    if run.plan is None or not run.plan.keep:
        return None
    keep = run.plan.keep
    explained = [kept for kept in keep if not kept.unknown]
    unknown = len(keep) - len(explained)
    if unknown == 1:
        explained, unknown = list(keep), 0
    groups: dict[object, list[KeptNode]] = {}
    for kept in explained:
        groups.setdefault(_likeness(kept), []).append(kept)
    shown = sorted(groups.values(), key=lambda group: group[0].guard is None)
    rows = [_kept_row(group, run) for group in shown]
    if unknown:
        which = f"{unknown} {'more ' if explained else ''}nodes"
        why = "Not lowered alone in this plan before the search ended."
        # Not behind the rows that a terminal omits.
        rows.insert(MOST_ROWS - 1, (which, why, "–"))
    title = f"Kept in {_types(keep)}: {len(keep)} of {count(run.plan.candidates, 'compute node')}"
    if run.search is not None and run.search.tolerance_factor != 1:
        title += f"; the search uses {number(run.search.tolerance_factor)} of the tolerance"
    title += beyond_seen(run, ", at")
    columns = (Column("node"), Column("why"), Column("without it", "right", minor=True))
    hidden = sum(len(group) for group in shown[MOST_ROWS - bool(unknown) :])
    rest = (f"and {hidden} more", "see run.json", "")
    return Table(title, columns, tuple(rows), most=MOST_ROWS, rest=rest)


def _types(keep: Sequence[KeptNode]) -> str:
    """Return the types of kept nodes; FP32 if there are none."""
    types = Counter(kept.precision.upper() for kept in keep)
    if len(types) < 2:
        return next(iter(types), "FP32")
    *rest, last = (f"{name} ({types[name]})" for name in ("BF16", "TF32", "FP32") if types[name])
    return f"{', '.join(rest)} and {last}"


def _likeness(kept: KeptNode) -> tuple[str | None, ...]:
    """Return the key by which nodes share a row."""
    # A reason without a number of its own, such as a user's rule, deserves its own row.
    general = kept.guard is None and kept.error_without is None
    return kept.precision, kept.op, kept.guard, kept.reason if general else None


def _message(kept: KeptNode, guards: Sequence[Guard]) -> str:
    guard = _guard_of([kept], guards)
    return kept.reason if guard is None else guard.message


def _kept_row(group: Sequence[KeptNode], run: Run) -> tuple[str, str, str]:
    excesses = [kept.error_without for kept in group if kept.error_without is not None]
    why = _why(group, run.guards)
    same = len({_message(kept, run.guards) for kept in group}) == 1
    why = why if same else f"For example: {why}"
    kind = "" if group[0].precision == "fp32" else f", in {group[0].precision.upper()}"
    nodes = _of_op(group[0].op, [kept.node for kept in group]) + kind
    without = _without(excesses) if excesses else INSIDE.get(group[0].guard, "–")
    return nodes, why, without


def _of_op(op: str, nodes: Sequence[str]) -> str:
    names, op = listed(nodes, most=3, width=40), shorten(op, 20)
    return f"{names} ({op})" if len(nodes) == 1 else f"{len(nodes)} × {op}: {names}"


def _why(group: Sequence[KeptNode], guards: Sequence[Guard]) -> str:
    """Return the message of a group's most severe guard; effect and fix appear elsewhere."""
    guard = _guard_of(group, guards)
    if guard is None:
        return sentence(group[0].reason)
    names = [kept.node for kept in group]
    return sentence(guard_sentence(guard, guard.node if guard.node in names else names[0]))


def _guard_of(group: Sequence[KeptNode], guards: Sequence[Guard]) -> Guard | None:
    """Return the guard on record for a group, else the most severe that names one of its nodes."""
    because = group[0].because
    if because is not None and because.guard is not None:
        return guards[because.guard]
    kind, names = group[0].guard, {kept.node for kept in group}
    alike = [guard for guard in guards if guard.kind == kind]
    same = next((guard for guard in alike if guard.node in names), None)
    return same or next((guard for guard in alike if not names.isdisjoint(guard.nodes)), None)


def _without(excesses: Sequence[float]) -> str:
    """Return the error when a node alone is lowered; for several nodes, the smallest.

    It is a lower bound: a trial stops at the first sample that fails.
    """
    least = min(excesses)
    return f"≥ {ratio(least)} limit" if isfinite(least) else "unbounded"


def _constant_line(constant: AdjustedConstant, low: str) -> str:
    name, largest = shorten(constant.name), max(-constant.minimum, constant.maximum)
    if largest < 1:
        how = f"is stored as {low}'s smallest number, since it would become zero"
        return f"Constant {name} ({number(largest)}) {how}."
    span = f"{number(constant.minimum)} to {number(constant.maximum)}"
    elements = count(constant.elements, "element")
    return f"Constant {name} ({span}) is clipped to the {low} range ({elements})."


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield what is FP32, which constants change, and what rules and schemas demand."""
    low, moved = plan.low.upper(), len(plan.data_movement)
    of_all = count(plan.candidates, "compute node")
    kept = f"{len(plan.keep)} of {of_all} in {_types(plan.keep)}"
    kept += f", the rest in {low}" * (len(plan.keep) < plan.candidates)
    if not plan.keep:
        kept = (
            f"All {of_all} in {low}" if plan.candidates > 1 else f"The only compute node in {low}"
        )
    if not plan.candidates:
        kept = f"No compute node may be {low}"
    repaired = f"; {count(len(plan.repairs), 'repair')}" if plan.repairs else ""
    what = verb(moved, "only moves data is", "only move data are")
    carried = f"; {count(moved, 'node')} that {what} in FP32" if moved else ""
    yield f"{kept}{repaired}; {count(plan.casts, 'Cast')}{carried}."
    if plan.in_bodies:
        inner = f"{count(plan.in_bodies, 'node')} in bodies {verb(plan.in_bodies, 'is', 'are')}"
        yield f"{inner} not counted: a body follows its node."
    yield from (_constant_line(constant, low) for constant in plan.constants[:4])
    if len(plan.constants) > 4:
        yield f"{len(plan.constants) - 4} more constants are fitted to the {low} range."
    special: dict[str, list[NodeName]] = {}
    for name, rule in plan.lowered.items():
        special.setdefault(f"The rule {rule} puts in {low}", []).append(name)
    for node in plan.unsupported:
        special.setdefault(f"Always FP32, {node.op}: {node.reason}", []).append(node.node)
    for what, nodes in special.items():
        yield sentence(f"{what}: {count(len(nodes), 'node')} ({listed(nodes)}).")


def minimality(run: Run, plan: Plan) -> str:
    """Return a sentence on whether fewer FP32 nodes were shown to fail."""
    search, engines = run.search, run.engines
    if not plan.keep:
        shown = run.verdict.passed and not (engines is not None and engines.full)
        one = any(repair.rule == "one-node" for repair in plan.repairs)
        inside = "; nodes that were fused compute in FP32 inside" if one else ""
        return f"No node {'needs' if shown else 'is kept in'} FP32{inside}."
    if not plan.minimal:
        if search is not None and "interrupt" in search.ended_by:
            return unfinished(search)
        if engines is not None and engines.keep:
            return "Not shown to be minimal in the engine: all builds (--budget builds) were used."
        return unfinished(search)
    fixed = sum(kept.kept_by in ("rule", "model") for kept in plan.keep)
    if fixed == len(plan.keep):
        return "Minimal: only nodes that rules or the model itself keep are in FP32."
    others = ", apart from those that rules or the model itself keep," if fixed else ""
    predicted = engines.needed_as_predicted if engines is not None else ()
    unbuilt = f"; for {count(len(predicted), 'node')} this is predicted, not built"
    return (
        f"Minimal: on the calibration samples no kept node{others} can be lowered alone"
        f"{unbuilt * bool(predicted)}."
    )


def left_out_table(run: Run) -> Table | None:
    """Return a row for each operator and reason of the nodes excluded from INT8."""
    if run.plan is None or not (left_out := run.plan.left_out or run.without_int8):
        return None
    plan, groups = run.plan, dict[tuple[str, str], list[KeptNode]]()
    for kept in left_out:
        grouped = kept.reason if len(left_out) <= MOST_ROWS else ""
        groups.setdefault((kept.op, grouped), []).append(kept)
    rows = [
        (
            f"{len(some)} × {shorten(op, 20)}: {listed([k.node for k in some], 3, 40)}",
            some[0].reason,
        )
        for (op, _), some in groups.items()
    ]
    of_all = count(len(plan.int8) + len(left_out), "quantisable node")
    title = f"Left out of INT8, in {plan.low.upper()}: {len(left_out)} of {of_all}"
    return Table(title, (Column("node"), Column("why")), tuple(rows), most=MOST_ROWS)


def nothing_in_int8(run: Run) -> str:
    """Return an addition to the plan's title if INT8 was tried and no node has it; else ""."""
    if run.plan is None or not run.without_int8:
        return ""
    sentences = [f"No node is in INT8: this is the {run.plan.low.upper()} plan."]
    sentences += [_with_all(run.all_int8)] if run.all_int8 else []
    # The search may evaluate few plans, so it proves nothing about these.
    if untried := sum(kept.error_without is None for kept in run.without_int8):
        sentences.append(f"{untried} of {len(run.without_int8)} candidates were not tried alone.")
    return " ".join(sentences)


def _with_all(verdict: Verdict) -> str:
    if verdict.passed:
        return "With all in INT8, held-out samples pass and samples of the search fail."
    return f"With all in INT8, {'; '.join(reasons(verdict.failures))}."


def int8_lines(run: Run) -> Iterator[str]:
    """Yield how many nodes have INT8, with which ranges, and whether more could."""
    plan = run.plan
    if plan is None or not plan.has_int8:
        return
    by = "" if plan.ranges is None else f", ranges by {plan.ranges}"
    of_all = count(len(plan.int8) + len(plan.left_out), "quantisable node")
    repaired = f"; {count(len(plan.repairs), 'repair')}" if plan.repairs else ""
    yield f"{len(plan.int8)} of {of_all} in INT8{by}, the rest in {plan.low.upper()}{repaired}."
    if plan.left_out and plan.minimal:
        sums = any(k.because is not None and k.because.beside for k in plan.left_out)
        yield (
            "Minimal: on the calibration samples none of those left out can have INT8 alone and "
            f"cost less{', apart from sums whose convolution is left out' if sums else ''}."
        )
    elif plan.left_out:
        yield unfinished(run.search)


_SKETCHED = "; plans without repairs were tried, not searched for"


def curve_table(run: Run) -> Table | None:
    """Return the plans to choose from, cheapest first; None if none was measured for it."""
    curve = run.curve
    if curve is None or not any(curve.points[place].scores for place in curve.front):
        return None
    names = list(dict.fromkeys(score.metric for score in curve.reference))
    on_front = [_row(curve, place, names) for place in curve.front]
    rows = [
        *_full_rows(run, names),
        *(_at_rung(curve, row) for row in (*on_front, *_bare(curve, names))),
    ]
    if (beside := curve.beside) is not None:
        passed = {beside.plan: "its plan"}
        others = [(*_row(beside, i, names)[:-1], passed.get(i, "")) for i in beside.front]
        rows += [_at_rung(beside, row) for row in (*others, *_bare(beside, names))]
    figures = ("kept", "not INT8", "Casts", "cost", "error / allowed")
    shown = (*figures, *(_resting(curve, n) for n in names))
    minor = ("not INT8", "Casts")
    right = (Column(figure, "right", minor=figure in minor) for figure in shown)
    columns = (Column("rung"), *right, Column(""))
    over = curve.criterion or run.criterion
    whose = f" ({allowed(over)})" if over != run.criterion else ""
    note = f"error on the samples of the search{whose}, scores on {_heldout(run)}"
    sketched = any(c is not None and c.unrepaired for c in (curve, curve.beside))
    note += beyond_seen(run, ", both at") + (_SKETCHED if sketched else "")
    table = Table("Plans to choose from", columns, tuple(rows), note=note)
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
            yield (*_row(bare, place, names)[:-1], "tried without repairs")


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


def _row(curve: Curve, place: int, names: list[str]) -> tuple[str, ...]:
    point = curve.points[place]
    bound = "≥ " if point.is_bound else ""
    return (
        _counted(point),
        "" if point.casts is None else str(point.casts),
        "" if point.cost is None else ratio(point.cost),
        f"{bound}{number(point.error)}",
        *_values(point.scores, names),
        "this plan" if place == curve.plan else "",
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


def overflowing(run: Run) -> str:
    """Return a sentence if the plan of a passed run fails within the headroom; else "".

    The curve's trials use smaller ranges for that; the verdict does not.
    """
    curve = run.curve
    plan = None if curve is None or curve.plan is None else curve.points[curve.plan]
    if plan is None or not run.verdict.passed or run.verdict.level != "emulated":
        return ""
    where = beyond_seen(run, "At")
    if not where or (plan.error < inf and not plan.nonfinite):
        return ""
    return (
        f"{where} this plan gives NaN or infinite values; the verdict holds for the ranges of its "
        "samples."
    )


def chosen_line(curve: Curve, point: Point, criterion: Criterion) -> str:
    """Return a description of a chosen plan, and what it is judged by."""
    cost = "" if point.cost is None else f" at {ratio(point.cost)} the cost of everything low"
    left_out = "left out of INT8" if curve.rung == "int8" else "kept"
    nodes = count(len(curve.nodes), "compute node")
    text = f"chosen: {_counted(point)} of {nodes} {left_out}{cost}"
    if curve.unrepaired is not None:
        text += "; plans without repairs cannot be chosen: `halfwise fix --no-repair` finds them"
    return f"{text}; judged by: {allowed(criterion)}"
