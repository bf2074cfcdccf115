"""The table of the nodes that stay in FP32: why, and what happens without it."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from halfwise.records import Criterion, Followed, Guard, GuardKind, KeptNode, Run
from halfwise.reporting.parts import MOST_ROWS, Column, Table
from halfwise.wording import count, everything_low, listed, number, sentence, shorten

INSIDE: Mapping[GuardKind | None, str] = {
    "infinite": "infinite inside",
    "decision": "decides otherwise",
}
"""What happens without nodes that are kept although the outputs of the emulation pass."""


def kept_table(run: Run) -> Table | None:
    """Return a row for all kept nodes of one reason, or for like ones where they are many.

    Those of which nothing is known share a row.
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
    rows = [_kept_row(group, run) for group in shown[:MOST_ROWS]]
    left_out = sum(len(group) for group in shown[MOST_ROWS:])
    if left_out:
        rows.append((f"and {left_out} more", "see run.json", ""))
    if unknown:
        which = f"{unknown} {'more ' if known else ''}nodes"
        why = "Not lowered before the search ended: nothing is known of them."
        rows.append((which, why, "–"))
    title = f"Kept in FP32: {len(keep)} of {count(run.plan.candidates, 'compute node')}"
    if run.search is not None and run.search.tolerance_factor != 1:
        title += f"; the limit is {run.search.tolerance_factor:g} of what is allowed"
    columns = (Column("node"), Column("why"), Column("without it", "right"))
    return Table(title, columns, tuple(rows))


def _likeness(kept: KeptNode) -> tuple[str | None, ...]:
    """Return what nodes have in common that can share a row."""
    # A reason without a number of this node, such as a user's rule, is worth its own row.
    general = kept.guard is None and kept.error_without is None
    return kept.op, kept.guard, kept.reason if general else None


def _same(kept: KeptNode, guards: Sequence[Guard]) -> tuple[object, ...]:
    """Return what nodes have in common that share a sentence."""
    measured = kept.error_without is not None
    if kept.guard is None and kept.kept_by == "search" and measured:
        return kept.op, measured
    return _message(kept, guards), measured


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
    nodes = "; ".join(_of_op(op, names) for op, names in ops.items())
    without = _without(excesses, run.criterion) if excesses else INSIDE.get(group[0].guard, "–")
    return nodes, why, without


def _of_op(op: str, nodes: Sequence[str]) -> str:
    names, op = listed(nodes, most=3, width=40), shorten(op, 20)
    return f"{names} ({op})" if len(nodes) == 1 else f"{len(nodes)} × {op}: {names}"


def _why(group: Sequence[KeptNode], guards: Sequence[Guard]) -> str:
    """Return the message of the gravest guard of a group; effect and fix are told elsewhere."""
    found = _guard_of(group, guards)
    if found is None:
        return sentence(group[0].reason)
    names = [kept.node for kept in group]
    return sentence(found.told_of(found.node if found.node in names else names[0]))


def _guard_of(group: Sequence[KeptNode], guards: Sequence[Guard]) -> Guard | None:
    """Return the gravest guard on a node of a group, else on what needs one of them."""
    kind, names = group[0].guard, {kept.node for kept in group}
    alike = [guard for guard in guards if guard.kind == kind]
    own = next((guard for guard in alike if guard.node in names), None)
    return own or next((guard for guard in alike if not names.isdisjoint(guard.nodes)), None)


def _without(excesses: Sequence[float], criterion: Criterion) -> str:
    """Return the error when a node is lowered alone, of several nodes the smallest.

    A trial stops at the first failing sample; where a metric decides, it sees all of them.
    """
    least = min(excesses)
    if not isfinite(least):
        return "unbounded"
    if criterion.metric is None:
        return f"≥ {number(least)} × limit"
    name = shorten(criterion.metric.rpartition(":")[2], 20)
    fall = f"{name} −{number(least - 1 + criterion.metric_drop)}"
    return fall if least == max(excesses) else f"{fall} or more"


def followed_lines(run: Run) -> Iterator[str]:
    """Yield where the error comes from that no guard or rule explains, as far as trials show it."""
    if run.followed is None or run.plan is None:
        return
    found, keep = run.followed, run.plan.keep
    own = sum(k.kept_by == "model" for k in keep)
    start = everything_low(run.plan.low, own, len(run.plan.unsupported), len(found.kept) - own)
    lacking = sum(k.guard is None and k.kept_by == "search" for k in keep)
    allowed = "the default tolerance" if run.criterion.metric else "what the search allows"
    on = "one sample" if found.samples == 1 else f"the worst of {found.samples} samples"
    yield (
        f"No guard explains {lacking} of {count(len(keep), 'kept node')}. With {start}, the error "
        f"is {number(found.error)} × {allowed} on {on}: {_origin(found, run)}."
    )


def _origin(found: Followed, run: Run) -> str:
    if (origin := found.origin) is not None:
        rest = [name for name in origin.kept if name != origin.node]
        beside = f" with {listed(rest)}" if rest else ""
        most = " at most, on any of them" if found.samples > 1 else ""
        return (
            f"most of it is born at {shorten(origin.node)}, since FP32 there{beside} leaves "
            f"{number(origin.error)} ×{most}"
        )
    if found.accumulates:
        places = dict.fromkeys(round(i * (len(run.growth) - 1) / 3) for i in range(4))
        path = (f"{number(run.growth[i].error)} at {shorten(run.growth[i].node)}" for i in places)
        return f"it accumulates with depth (relative RMS: {', '.join(path)})"
    tried = count(len(found.tried), "node")
    ended = " before the time budget was spent" if found.out_of_time else ""
    undone = " on all samples that fail, and lets the others pass" if found.samples > 1 else ""
    return (
        f"where it is born is unknown; {tried} tried in FP32{ended}, each with what it reads and "
        f"what reads it, and none halves the error{undone}"
    )
