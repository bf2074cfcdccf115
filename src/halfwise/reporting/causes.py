"""What was wrong and where: causes, repairs, and quantised pairs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from halfwise.records import (
    UNDONE,
    Guard,
    GuardKind,
    NodeName,
    Observations,
    Plan,
    Proof,
    Remade,
    Repair,
    RepairRule,
    Run,
    TensorName,
)
from halfwise.reporting.guards import CAUSES, message
from halfwise.reporting.parts import Lines, first_of, lines_of
from halfwise.reporting.remarks import in_words, note, remark
from halfwise.reporting.rungs import cause_line as engine_cause
from halfwise.wording import (
    FEW,
    MOST_ROWS,
    capital,
    count,
    listed,
    number,
    ratio,
    sentence,
    shorten,
    verb,
)

ROOM = 8.0
"""Scaled tensors that may grow less than this are told."""
DONE: Mapping[RepairRule, str] = {
    "scale": "scaled by powers of two",
    "one-node": "fused into one node, which computes in FP32 inside",
    "mask": "masks that stay in range",
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
        *(line for group in shown for line in _group_lines(group)),
    ]
    if left_out := len(plan.repairs) - sum(map(len, shown)):
        lines.append(f"And {count(left_out, 'more repair')}: see run.json.")
    undone = [remark(one) for one in plan.remarks if one.kind in UNDONE]
    lines += first_of(undone, "more undone: see run.json")
    title = f"Repairs: {len(plan.repairs)}{f', {len(undone)} undone' if undone else ''}"
    return lines_of(title, lines)


def _group_lines(group: Sequence[Repair]) -> Iterator[str]:
    first = group[0]
    nodes = [node for repair in group for node in repair.nodes]
    where = listed(nodes, most=2)
    where = f"{len(nodes)} nodes ({where})" if len(nodes) > 2 else where
    places = f"{len(group)} × {first.rule}" if len(group) > 1 else first.rule
    formula = f", as {first.identity}" if first.identity else ""
    done = f"{places} ({DONE[first.rule]}{_powers(group)}{formula}) at {where}"
    yield f"{done}{_effect(first)}{_proven(first.proof)}."
    guards = list(dict.fromkeys(at for repair in group for at in repair.guards))
    if guards:
        fixed = [shorten(f"{at.kind} at {at.node}") for at in guards]
        yield f"Fixed: {_few(fixed, ', ')}."
    room = min((repair.room for repair in group if repair.room is not None), default=inf)
    if 1 <= room < ROOM:
        yield f"Scaled tensors stay in range up to {ratio(room)} the values seen."
    advice = list(dict.fromkeys(repair.advice for repair in group if repair.advice))
    if advice:
        yield f"In the training or export code: {_few(advice, ' ')}"


def _few(texts: Sequence[str], between: str) -> str:
    more = f" (and {len(texts) - FEW} more alike)" if len(texts) > FEW else ""
    return between.join(texts[:FEW]) + more


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
    """Return a repair's effect on the error; "" if the error did not fall to a number."""
    before, after = repair.before, repair.after
    # Mending one of several faults leaves everything low as wrong as before.
    if before is None or after is None or not after < before:
        return ""
    was = f"{ratio(before)} the limit" if isfinite(before) else "infinite"
    return f"; error with everything low: {was} before, {ratio(after)} the limit after"


def _powers(group: Sequence[Repair]) -> str:
    """Return the powers of two that tensors are scaled by."""
    exponents = [exponent for repair in group for exponent in repair.exponents.values() if exponent]
    least, most = min(exponents, default=0), max(exponents, default=0)
    powers = f"2^{least} to 2^{most}" if most > least else f"2^{least}"
    return f", {count(len(exponents), 'tensor')} {powers}" if exponents else ""


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
    return tuple(note(one) for one in plan.remarks if one.kind not in UNDONE)


def remade_line(remade: Remade) -> str:
    """Return the repairs that a candidate names, and whether they hold; or unnamed differences."""
    if remade.differs:
        return (
            f"The candidate's graph differs from the original, first at {remade.differs}, and its "
            "metadata lists no repairs: only outputs were compared."
        )
    number_of = len(remade.repairs)
    rules = listed(list(dict.fromkeys(repair.rule for repair in remade.repairs)))
    named = f"The candidate's metadata lists {count(number_of, 'repair')} ({rules})"
    if not remade.holds:
        return f"{named}; {verb(number_of, 'it does', 'they do')} not hold."
    same = f"repeated on the original, {verb(number_of, 'it gives', 'they give')} the same graph"
    assert remade.proof is not None
    samples = count(sum(remade.proof.samples.values()), "sample")
    off = f"off by {number(remade.proof.repaired)} of an output's largest value"
    shown = "equal bit for bit" if remade.proof.equal else off
    return f"{named}: {same}, in FP32 {shown} on {samples}."


State = Literal["cause", "suspected", "mended", "unexplained", "seen", "harmless"]
LABELS: Mapping[State, str] = {
    "cause": "Cause",
    "suspected": "Suspected cause",
    "mended": "Mended",
    "unexplained": "Unexplained",
    "seen": "Seen",
    "harmless": "No harm seen",
}
"""In display order.

"cause": a suspicion that its numbers make certain, on nodes that had to be kept, or what a
diagnosis or engines found at nodes; "suspected": a possible one on such nodes, or any where the
outputs fail; "mended": repairs answer it; "unexplained": nodes that had to be kept without any
suspicion; "seen": observations, such as non-finite values; "harmless": suspicions although the
outputs pass.
"""


@dataclass(frozen=True)
class Found:
    """One fault at one node.

    Attributes:
        node: The node; None if unknown.
        text: The fault, as a sentence; "" if the group's title says all.
        tensor: The tensor concerned, if any.
        fix: The usual repair; "" if none is known.
    """

    node: NodeName | None
    text: str
    tensor: TensorName | None = None
    fix: str = ""


@dataclass(frozen=True)
class Causes:
    """Faults of one kind.

    Attributes:
        title: The kind.
        state: How much is known.
        found: The faults, most severe first.
    """

    title: str
    state: State
    found: tuple[Found, ...]


def causes(run: Run, observations: Observations | None) -> tuple[Causes, ...]:
    """Return the faults of a run, by state and then by number of places."""
    run = in_words(run)
    mended = () if observations is None else observations.mended
    groups = [
        *_suspicions(run, mended),
        *_unexplained(run),
        *_engines(run),
        *faults(run, observations),
    ]
    order = list(LABELS)
    return tuple(sorted(groups, key=lambda g: (order.index(g.state), -len(g.found))))


def _suspicions(run: Run, mended: Iterable[Guard]) -> Iterator[Causes]:
    keep = run.plan.keep if run.plan is not None else ()
    blamed = {(kept.guard, kept.node) for kept in keep}
    suspected: dict[tuple[State, GuardKind], list[Guard]] = {}
    for guard in run.guards:
        state: State = "cause" if guard.severity >= 1 else "suspected"
        if blamed.isdisjoint((guard.kind, node) for node in (guard.node, *guard.nodes)):
            state = "harmless" if run.verdict.passed else "suspected"
        suspected.setdefault((state, guard.kind), []).append(guard)
    for guard in mended:
        suspected.setdefault(("mended", guard.kind), []).append(guard)
    because = Counter(kept.guard for kept in keep)
    for (state, kind), guards in suspected.items():
        title = f"{capital(CAUSES[kind])}, at {count(len({g.node for g in guards}), 'node')}"
        # Guards are in order of severity, so the first group counts the nodes.
        if state in ("cause", "suspected") and (kept := because.pop(kind, 0)):
            title += f"; {count(kept, 'node')} kept because of that"
        yield Causes(title, state, tuple(map(_suspected, guards)))


def _suspected(guard: Guard) -> Found:
    names = (guard.node, guard.tensor or "")
    text = sentence(capital(message(guard), names))
    return Found(guard.node, text, guard.tensor, sentence(guard.fix))


def _unexplained(run: Run) -> Iterator[Causes]:
    """Yield unexplained kept nodes, except those about which the search learnt nothing."""
    keep = run.plan.keep if run.plan is not None else ()
    bare = [
        kept
        for kept in keep
        if kept.guard is None
        and not (kept.unknown or kept.spare)
        and kept.kept_by in ("search", "engine")
    ]
    if bare:
        title = f"{count(len(bare), 'node')} had to be kept, and no suspicion says why"
        places = (Found(kept.node, sentence(kept.reason)) for kept in bare)
        yield Causes(title, "unexplained", tuple(places))


def _engines(run: Run) -> Iterator[Causes]:
    """Yield what engines show about why none of the low format passed, with the nodes."""
    for engines in run.devices:
        where = f" on {engines.worker.name}" if len(run.devices) > 1 else ""
        for cause in engines.causes:
            first = Found(None, sentence(f"{capital(engine_cause(cause), cause.nodes)}."))
            places = (first, *(Found(node, "") for node in cause.nodes))
            state: State = "cause" if cause.nodes else "seen"
            yield Causes(f"What the engines{where} show", state, places)


def faults(run: Run, observations: Observations | None) -> Iterator[Causes]:
    """Yield what a diagnosis or a verification found wrong; nothing of other runs."""
    yield from _rungs(run, observations)
    yield from _seen(run)


def _rungs(run: Run, observations: Observations | None) -> Iterator[Causes]:
    seen = () if observations is None else observations.tensors
    made = {one.producer: one.tensor for one in seen if one.detail is not None}
    for rung in run.diagnosis:
        if rung.passed is False:
            signs = sorted(rung.evidence, key=lambda sign: sign.severity != "error")
            texts: dict[NodeName, str] = {}
            for sign in signs:
                for node in sign.nodes:
                    if sign.severity == "error" or node in rung.nodes:
                        texts.setdefault(node, sign.text)
            texts |= {node: "" for node in rung.nodes if node not in texts}
            places = tuple(
                Found(node, sentence(text), made.get(node)) for node, text in texts.items()
            )
            where = f", at {count(len(places), 'node')}" if places else f": {sentence(rung.cause)}"
            yield Causes(f"Rung {rung.rung} ({rung.name}){where}", "cause", places)


def _seen(run: Run) -> Iterator[Causes]:
    """Yield what `verify` saw inside a model and at its outputs."""
    if run.kind != "verify":
        return
    inside = [t for t in run.verdict.intermediate_nonfinite if not t.harmless]
    if inside:
        yield Causes(
            f"Values inside that are not finite, in {count(len(inside), 'tensor')}",
            "seen",
            tuple(
                Found(
                    t.producer,
                    f"{count(t.elements, 'value')} of {sentence(t.tensor)} "
                    f"{verb(t.elements, 'is', 'are')} NaN or infinite",
                    t.tensor,
                )
                for t in inside
            ),
        )
    if failed := run.verdict.failed_runs:
        places = (Found(one.node, sentence(f"{one.sample}: {one.why}")) for one in failed)
        yield Causes(f"Cannot be run on {count(len(failed), 'sample')}", "seen", tuple(places))
