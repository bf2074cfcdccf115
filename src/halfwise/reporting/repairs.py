"""Words on repairs: what was changed, that the function is the same, and the benefit.

And on those that a judged model names, made and proven again.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite

from halfwise.records import UNDONE, Criterion, Plan, Proof, Remade, Repair, RepairRule, Run
from halfwise.reporting.parts import MOST_ROWS, Lines, lines_of
from halfwise.reporting.remarks import remark
from halfwise.wording import count, listed, number, ratio, shorten, verb

_SHOWN = 3
"""Most guards, lines of advice for like repairs, and undone repairs; run.json has all."""
_ADVICE = 300
"""Most characters of an advice that are shown."""
ROOM = 8.0
"""Scaled tensors that may grow less than this are told."""
DONE: Mapping[RepairRule, str] = {
    "scale": "scaled by powers of two",
    "fold": "folded into one",
    "stable": "written in a form that stays in range",
    "one-node": "fused into one node, which computes in FP32 inside",
    "mask": "masks that stay in range",
    "phase": "phases computed in advance",
}


def repair_lines(run: Run) -> Lines | None:
    """Return the repairs of a run's plan with their numbers, and undone ones; None if none.

    Repairs of one rule, tried and proven together, share a line.
    """
    plan = run.plan
    if plan is None:
        return None
    groups: dict[object, list[Repair]] = {}
    for repair in plan.repairs:
        alike = repair.rule, repair.identity, repair.before, repair.after, str(repair.proof)
        groups.setdefault(alike, []).append(repair)
    shown = list(groups.values())[:MOST_ROWS]
    lines = [
        *_kept(run, plan),
        *(line for group in shown for line in _group_lines(group, run.criterion)),
    ]
    if left_out := len(plan.repairs) - sum(map(len, shown)):
        lines.append(f"And {count(left_out, 'more repair')}: see run.json.")
    undone = [remark(found) for found in plan.remarks if found.kind in UNDONE]
    lines += undone[:_SHOWN]
    if len(undone) > _SHOWN:
        lines.append(f"And {len(undone) - _SHOWN} more undone: see run.json.")
    title = f"Repairs: {len(plan.repairs)}{f', {len(undone)} undone' if undone else ''}"
    return lines_of(title, lines)


def _group_lines(group: Sequence[Repair], criterion: Criterion) -> Iterator[str]:
    first = group[0]
    nodes = [node for repair in group for node in repair.nodes]
    where = listed(nodes, most=2)
    where = f"{len(nodes)} nodes ({where})" if len(nodes) > 2 else where
    places = f"{len(group)} × {first.rule}" if len(group) > 1 else first.rule
    formula = f", as {first.identity}" if first.identity else ""
    done = f"{places} ({DONE[first.rule]}{_powers(group)}{formula}) at {where}"
    effect = _effect(first) if criterion.metric is None else ""
    yield f"{done}{effect}{_proven(first.proof)}."
    guards = list(dict.fromkeys(at for repair in group for at in repair.guards))
    if guards:
        fixed = [shorten(f"{at.kind} at {at.node}", 60) for at in guards]
        yield f"Fixed: {_few(fixed, ', ')}."
    room = min((repair.room for repair in group if repair.room is not None), default=inf)
    if 1 <= room < ROOM:
        yield f"Scaled tensors stay in range up to {ratio(room)} the values seen."
    advice = list(dict.fromkeys(_brief(repair.advice) for repair in group if repair.advice))
    if advice:
        yield f"In the training or export code: {_few(advice, ' ')}"


def _brief(advice: str) -> str:
    """Return as much of an advice as fits, cut between two items."""
    if len(advice) <= _ADVICE:
        return advice
    return f"{advice[: advice.rindex(' ', 0, _ADVICE)].rstrip(',.')} … (all of it: run.json)."


def _few(texts: Sequence[str], between: str) -> str:
    more = f" (and {len(texts) - _SHOWN} more alike)" if len(texts) > _SHOWN else ""
    return between.join(texts[:_SHOWN]) + more


def _kept(run: Run, plan: Plan) -> Iterator[str]:
    """Yield what is kept in FP32 with repairs and, if known, without."""
    curves = (run.curve, run.curve.beside) if plan.repairs and run.curve is not None else ()
    bare = next((c.unrepaired for c in curves if c is not None and c.unrepaired), None)
    passed = [p.count for p in bare.points if p.error <= 1 and not p.is_bound] if bare else []
    if passed and min(passed) > len(plan.keep):
        yield (
            f"Kept in FP32: {len(plan.keep)}; without repairs {min(passed)}, in the smallest plan "
            "that was tried and passed."
        )


def _effect(repair: Repair) -> str:
    """Return a repair's effect on the error; "" if the error did not fall to a number.

    With a metric it is not told: there the excess is no multiple of what is allowed.
    """
    before, after = repair.before, repair.after
    # Mending one of several faults leaves everything low as wrong as before.
    if before is None or after is None or not after < before:
        return ""
    was = f"{ratio(before)} the limit" if isfinite(before) else "infinite"
    return f"; error with everything low: {was} before, {ratio(after)} the limit after"


def _powers(group: Sequence[Repair]) -> str:
    """Return the powers of two that tensors are scaled by."""
    found = [exponent for repair in group for exponent in repair.exponents.values() if exponent]
    least, most = min(found, default=0), max(found, default=0)
    powers = f"2^{least} to 2^{most}" if most > least else f"2^{least}"
    return f", {count(len(found), 'tensor')} {powers}" if found else ""


def _proven(proof: Proof | None) -> str:
    if proof is None:
        return ""
    widened = proof.samples.get("widened", 0)
    where = count(sum(proof.samples.values()), "sample")
    where += f", {widened} of them widened" if widened else ""
    if proof.equal:
        return f"; in FP32 equal bit for bit on {where}"
    beside = f", the original by {number(proof.original)} from FP64" if proof.original else ""
    off = f"off by {number(proof.repaired)} of an output's largest value{beside}"
    return f"; in FP32 {off}, on {where}"


def notes_beside(plan: Plan) -> tuple[str, ...]:
    """Return remarks on a plan, except undone repairs, which appear with the repairs."""
    pairs = zip(plan.notes, plan.remarks, strict=True)
    return tuple(note for note, found in pairs if found.kind not in UNDONE)


def remade_line(found: Remade) -> str:
    """Return the repairs that a candidate names, and whether they hold; or unnamed differences."""
    if found.differs:
        return (
            f"The candidate's graph differs from the original, first at {found.differs}, and its "
            "metadata lists no repairs: only outputs were compared."
        )
    number_of = len(found.repairs)
    rules = listed(list(dict.fromkeys(repair.rule for repair in found.repairs)))
    named = f"The candidate's metadata lists {count(number_of, 'repair')} ({rules})"
    if not found.holds:
        return f"{named}; {verb(number_of, 'it does', 'they do')} not hold."
    same = f"repeated on the original, {verb(number_of, 'it gives', 'they give')} the same graph"
    assert found.proof is not None
    samples = count(sum(found.proof.samples.values()), "sample")
    off = f"off by {number(found.proof.repaired)} of an output's largest value"
    shown = "equal bit for bit" if found.proof.equal else off
    return f"{named}: {same}, in FP32 {shown} on {samples}."
