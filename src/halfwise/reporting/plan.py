"""Words on a plan: nodes kept in FP32 or left out of INT8, why, and whether fewer would do."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from halfwise.records import (
    AdjustedConstant,
    Criterion,
    Guard,
    GuardKind,
    KeptNode,
    NodeName,
    Plan,
    Run,
    Verdict,
)
from halfwise.reporting.guards import told_of
from halfwise.reporting.parts import MOST_ROWS, Column, Table
from halfwise.reporting.reasons import reasons
from halfwise.reporting.remarks import spent, unfinished
from halfwise.reporting.verdict import beyond_seen
from halfwise.wording import (
    count,
    listed,
    number,
    ratio,
    sentence,
    shorten,
    verb,
)

INSIDE: Mapping[GuardKind | None, str] = {
    "infinite": "infinite inside",
    "decision": "decides otherwise",
}
"""What happens without nodes that are kept although the emulation's outputs pass."""


def kept_table(run: Run) -> Table | None:
    """Return a row for all kept nodes of one reason, or for similar ones if there are many.

    Nodes about which nothing is known share a row.
    """
    if run.plan is None or not run.plan.keep:
        return None
    keep = run.plan.keep
    known = [kept for kept in keep if not kept.unknown]
    unknown = len(keep) - len(known)
    if unknown == 1:
        known, unknown = list(keep), 0
    grouped = len(known) > MOST_ROWS
    groups: dict[object, list[KeptNode]] = {}
    for kept in known:
        key = _likeness(kept) if grouped else _same(kept, run.guards)
        groups.setdefault(key, []).append(kept)
    shown = sorted(groups.values(), key=lambda group: grouped and group[0].guard is None)
    rows = [_kept_row(group, run) for group in shown]
    if unknown:
        which = f"{unknown} {'more ' if known else ''}nodes"
        why = "Not lowered alone in this plan before the search ended."
        # Not behind the rows that a terminal omits.
        rows.insert(MOST_ROWS - 1, (which, why, "–"))
    title = f"Kept in {_types(keep)}: {len(keep)} of {count(run.plan.candidates, 'compute node')}"
    if run.search is not None and run.search.tolerance_factor != 1:
        title += f"; the search uses {number(run.search.tolerance_factor)} of the tolerance"
    title += beyond_seen(run, ", at")
    columns = (Column("node"), Column("why"), Column("without it", "right", minor=True))
    left = sum(len(group) for group in shown[MOST_ROWS - bool(unknown) :])
    rest = (f"and {left} more", "see run.json", "")
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


def _same(kept: KeptNode, guards: Sequence[Guard]) -> tuple[object, ...]:
    """Return the key by which nodes share a sentence."""
    measured = kept.error_without is not None
    if kept.guard is None and kept.kept_by == "search" and measured:
        return kept.precision, kept.op, measured
    return kept.precision, _message(kept, guards), measured


def _message(kept: KeptNode, guards: Sequence[Guard]) -> str:
    found = _guard_of([kept], guards)
    return kept.reason if found is None else found.message


def _kept_row(group: Sequence[KeptNode], run: Run) -> tuple[str, str, str]:
    ops: dict[str, list[str]] = {}
    for kept in group:
        ops.setdefault(kept.op, []).append(kept.node)
    excesses = [kept.error_without for kept in group if kept.error_without is not None]
    why = _why(group, run.guards)
    same = len({_message(kept, run.guards) for kept in group}) == 1
    why = why if same else f"For example: {why}"
    kind = "" if group[0].precision == "fp32" else f", in {group[0].precision.upper()}"
    nodes = "; ".join(_of_op(op, names) for op, names in ops.items()) + kind
    without = _without(excesses, run.criterion) if excesses else INSIDE.get(group[0].guard, "–")
    return nodes, why, without


def _of_op(op: str, nodes: Sequence[str]) -> str:
    names, op = listed(nodes, most=3, width=40), shorten(op, 20)
    return f"{names} ({op})" if len(nodes) == 1 else f"{len(nodes)} × {op}: {names}"


def _why(group: Sequence[KeptNode], guards: Sequence[Guard]) -> str:
    """Return the message of a group's most severe guard; effect and fix appear elsewhere."""
    found = _guard_of(group, guards)
    if found is None:
        return sentence(group[0].reason)
    names = [kept.node for kept in group]
    return sentence(told_of(found, found.node if found.node in names else names[0]))


def _guard_of(group: Sequence[KeptNode], guards: Sequence[Guard]) -> Guard | None:
    """Return the guard on record for a group, else the most severe that names one of its nodes."""
    because = group[0].because
    if because is not None and because.guard is not None:
        return guards[because.guard]
    kind, names = group[0].guard, {kept.node for kept in group}
    alike = [guard for guard in guards if guard.kind == kind]
    own = next((guard for guard in alike if guard.node in names), None)
    return own or next((guard for guard in alike if not names.isdisjoint(guard.nodes)), None)


def _without(excesses: Sequence[float], criterion: Criterion) -> str:
    """Return the error when a node alone is lowered; for several nodes, the smallest.

    A trial stops at the first failing sample; if a metric decides, it sees all samples.
    """
    if not isfinite(least := min(excesses)):
        return "unbounded"
    if criterion.metric is None:
        return f"≥ {ratio(least)} limit"
    name = shorten(criterion.metric.rpartition(":")[2], 20)
    fall = f"{name} −{number(least - 1 + criterion.metric_drop)}"
    return fall if least == max(excesses) else f"{fall} or more"


def _constant_line(constant: AdjustedConstant, low: str) -> str:
    name, largest = shorten(constant.name), max(-constant.minimum, constant.maximum)
    if largest < 1:
        return (
            f"Constant {name} ({number(largest)}) is stored as {low}'s smallest number, since it "
            "would become zero."
        )
    return (
        f"Constant {name} ({number(constant.minimum)} to {number(constant.maximum)}) is clipped to "
        f"the {low} range ({count(constant.elements, 'element')})."
    )


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield what is FP32, which constants change, and what rules and schemas demand."""
    low = plan.low.upper()
    moved = len(plan.data_movement)
    beside = " with them" if plan.keep else ""
    carry = f"that only {verb(moved, 'moves data is', 'move data are')} in FP32{beside}"
    carried = f"; {count(moved, 'node')} {carry}" if moved else ""
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
    yield f"{kept}{repaired}; {count(plan.casts, 'Cast')}{carried}."
    if plan.in_bodies:
        inner = f"{count(plan.in_bodies, 'node')} in bodies {verb(plan.in_bodies, 'is', 'are')}"
        yield f"{inner} not counted: a body follows its node."
    for constant in plan.constants[:4]:
        yield _constant_line(constant, low)
    if len(plan.constants) > 4:
        yield f"{len(plan.constants) - 4} more constants are fitted to the {low} range."
    rules: dict[str, list[NodeName]] = {}
    for name, rule in plan.lowered.items():
        rules.setdefault(rule, []).append(name)
    for rule, lowered in rules.items():
        yield sentence(
            f"The rule {rule} puts {count(len(lowered), 'node')} in {low}: {listed(lowered)}."
        )
    reasons: dict[tuple[str, str], list[NodeName]] = {}
    for node in plan.unsupported:
        reasons.setdefault((node.op, node.reason), []).append(node.node)
    for (op, reason), nodes in reasons.items():
        yield sentence(f"Always FP32, {len(nodes)} × {op}: {reason} ({listed(nodes, 2)}).")


def minimality(run: Run, plan: Plan) -> str:
    """Return a sentence on whether fewer FP32 nodes were shown to fail."""
    if not plan.keep:
        shown = run.verdict.passed and not (run.engines is not None and run.engines.full)
        one = any(repair.rule == "one-node" for repair in plan.repairs)
        inside = "; nodes that were fused compute in FP32 inside" if one else ""
        return f"No node {'needs' if shown else 'is kept in'} FP32{inside}."
    ruled = [kept for kept in plan.keep if kept.kept_by == "rule"]
    own = plan.own
    who = " or ".join(
        name for name, some in (("rules keep", ruled), ("the model itself keeps", own)) if some
    )
    if plan.minimal and len(ruled) + len(own) == len(plan.keep):
        return f"Minimal: on the calibration samples only the nodes that {who} need FP32."
    if plan.minimal:
        others = f", apart from those that {who}," if who else ""
        return (
            f"Minimal: on the calibration samples no kept node{others} can be lowered alone"
            f"{_as_predicted(run)}."
        )
    return _not_minimal(run)


def _as_predicted(run: Run) -> str:
    nodes = run.engines.needed_as_predicted if run.engines is not None else ()
    return f"; for {count(len(nodes), 'node')} this is predicted, not built" if nodes else ""


def _not_minimal(run: Run) -> str:
    search = run.search
    if search is not None and "interrupt" in search.ended_by:
        return f"Not shown to be minimal: {spent(search)}."
    if run.engines is not None and run.engines.keep:
        return "Not shown to be minimal in the engine: all builds (--budget builds) were used."
    why = f": {search.steps[-1]}" if search is not None and search.steps else ""
    return unfinished(search) or sentence(f"Not shown to be minimal{why}.")


def left_out_table(run: Run) -> Table | None:
    """Return a row for each operator and reason of the nodes excluded from INT8."""
    if run.plan is None or not (left_out := run.plan.left_out or run.without_int8):
        return None
    plan, groups = run.plan, dict[tuple[str, str], list[KeptNode]]()
    for kept in left_out:
        grouped = kept.why if len(left_out) <= MOST_ROWS else ""
        groups.setdefault((kept.op, grouped), []).append(kept)
    rows = [
        (f"{len(some)} × {shorten(op, 20)}: {listed([k.node for k in some], 3, 40)}", some[0].why)
        for (op, _), some in groups.items()
    ]
    of_all = count(len(plan.int8) + len(left_out), "quantisable node")
    title = f"Left out of INT8, in {plan.low.upper()}: {len(left_out)} of {of_all}"
    return Table(title, (Column("node"), Column("why")), tuple(rows), most=MOST_ROWS)


def nothing_in_int8(run: Run) -> str:
    """Return an addition to the plan's title if INT8 was tried and no node has it; else ""."""
    if run.plan is None or not run.without_int8:
        return ""
    told = [f"No node is in INT8: this is the {run.plan.low.upper()} plan."]
    told += [_with_all(run.all_int8)] if run.all_int8 else []
    # The search may evaluate few plans, so it proves nothing about these.
    if untried := sum(kept.error_without is None for kept in run.without_int8):
        told.append(f"{untried} of {len(run.without_int8)} candidates were not tried alone.")
    return " ".join(told)


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
        yield unfinished(run.search) or "Not shown to be minimal."
