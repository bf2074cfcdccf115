"""What was wrong and where: causes, repairs, why nodes are kept, what is told of a node."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal

from halfwise.metrics.slices import runs
from halfwise.records import (
    UNDONE,
    Blame,
    Followed,
    Guard,
    GuardKind,
    NodeName,
    Observations,
    Plan,
    PrecisionProof,
    Remade,
    Repair,
    Run,
    TensorName,
)
from halfwise.reporting.engines import PRECISIONS
from halfwise.reporting.parts import Lines, first_of, lines_of
from halfwise.reporting.plan import cause_line as engine_cause
from halfwise.reporting.remarks import (
    CAUSES,
    Reason,
    appears,
    flipped,
    followed_names,
    followed_over,
    in_words,
    message,
    note,
    reason_of,
    remark,
    stated,
)
from halfwise.reporting.verdict import non_finite, sums_wide
from halfwise.reporting.words import WORDS, say
from halfwise.wording import (
    FEW,
    MOST_ROWS,
    capital,
    count,
    everything_low,
    filled,
    listed,
    number,
    sentence,
    shorten,
    verb,
)

ROOM = 8.0
"""Scaled tensors that may grow less than this are told."""
DONE: Mapping[str, str] = WORDS["repair"]


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
    lines = [line for group in groups.values() for line in _group_lines(group)]
    undone = [remark(one) for one in plan.remarks if one.kind in UNDONE]
    lines = [*_kept(run, plan), *first_of(lines, most=MOST_ROWS)]
    title = f"Repairs: {len(plan.repairs)}{f', {len(undone)} undone' if undone else ''}"
    return lines_of(title, [*lines, *first_of(undone, "more undone: see run.json")])


def _group_lines(group: Sequence[Repair]) -> Iterator[str]:
    first, proof = group[0], group[0].proof
    nodes = [node for repair in group for node in repair.nodes]
    scales = [scale for repair in group for scale in repair.exponents.values() if scale]
    facts = {
        **dict(first),
        "many": len(nodes) > 2,
        "nodes": nodes,
        "groups": len(group) if len(group) > 1 else None,
        "done": DONE[first.rule],
        "tensors": len(scales) or None,
        "least": min(scales, default=0),
        "most": max(scales, default=0),
    }
    # Mending one of several faults leaves everything low as wrong as before.
    if first.before is None or first.after is None or not first.after < first.before:
        facts["after"] = None
    elif not isfinite(first.before):
        facts |= {"infinite": True}
    if proof is not None:
        facts |= {**dict(proof), "samples": sum(proof.samples.values())}
    yield say("repairs", "line", facts.items())
    if guards := dict.fromkeys(
        f"{at.kind} at {at.node}" for repair in group for at in repair.guards
    ):
        yield f"Fixed: {', '.join(first_of([*map(shorten, guards)]))}."
    room = min((repair.room for repair in group if repair.room is not None), default=inf)
    if 1 <= room < ROOM:
        yield say("repairs", "room", {"room": room})
    if advice := dict.fromkeys(repair.advice for repair in group if repair.advice):
        yield f"In the training or export code: {' '.join(first_of([*advice]))}"


def _kept(run: Run, plan: Plan) -> Iterator[str]:
    """Yield what is kept in FP32 with repairs and, if known, without."""
    curves = (run.curve, run.curve.beside) if plan.repairs and run.curve is not None else ()
    bare = next((c.unrepaired for c in curves if c is not None and c.unrepaired), None)
    passed = [p.count for p in bare.points if p.error <= 1 and not p.is_bound] if bare else []
    if passed and min(passed) > len(plan.keep):
        yield say("repairs", "kept", {"kept": len(plan.keep), "without": min(passed)})


def notes_beside(plan: Plan) -> tuple[str, ...]:
    """Return remarks on a plan, except undone repairs, which appear with the repairs."""
    return tuple(note(one) for one in plan.remarks if one.kind not in UNDONE)


def blame_lines(blame: Blame | None) -> Lines | None:
    """Return which parts of a quantised model its error comes from; None if not examined."""
    if blame is None:
        return None
    return lines_of("Where the error comes from", _blamed(blame), first=True)


def _blamed(blame: Blame) -> Iterator[str]:
    """Yield the parts, by the share of the error that they remove, and what is constant."""
    limit = "the default tolerance" if blame.by_metric else "what is allowed"
    whole = [*blame, ("before", blame.error), ("limit", limit), ("few", not blame.is_spread)]
    for one in blame.left_out:
        yield say("blame", "part", [*whole, *one])
        if one.joined is not None:
            levels = one.joined.largest / one.joined.scale
            yield say("blame", "joined", [*one.joined, ("node", one.nodes[0]), ("levels", levels)])
    if not blame.left_out:
        yield say("blame", "spread" if blame.is_lossy else "elsewhere", whole)
    elif len(blame.left_out) > 1 or blame.is_spread:
        yield say("blame", "together", whole)
    for flat in blame.flat:
        facts = [("whole", flat.slices == flat.of), ("runs", runs(flat.ranges, FEW))]
        yield say("blame", "flat", [*flat, *facts])


def remade_line(remade: Remade) -> str:
    """Return the repairs that a candidate names, and whether they hold; or unnamed differences."""
    proof = {} if remade.proof is None else dict(remade.proof)
    facts = {
        **proof,
        "samples": sum(proof.get("samples", {}).values()),
        "repairs": len(remade.repairs),
        "rules": list(dict.fromkeys(repair.rule for repair in remade.repairs)),
        "differs": remade.differs,
    }
    kind = "differs" if remade.differs else "holds" if remade.holds else "fails"
    return say("remade", kind, facts)


State = Literal["cause", "suspected", "mended", "unexplained", "seen", "harmless"]
LABELS: Mapping[str, str] = WORDS["state"]
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
    for (state, kind), guards in suspected.items():
        title = f"{capital(CAUSES[kind])}, at {count(len({g.node for g in guards}), 'node')}"
        yield Causes(title, state, tuple(map(_suspected, guards)))


def _suspected(guard: Guard) -> Found:
    text = sentence(capital(message(guard), (guard.node, guard.tensor or "")))
    return Found(guard.node, text, guard.tensor, sentence(guard.fix))


def _unexplained(run: Run) -> Iterator[Causes]:
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
        yield Causes(title, "unexplained", tuple(Found(k.node, sentence(k.reason)) for k in bare))


def _engines(run: Run) -> Iterator[Causes]:
    for engines in run.devices:
        where = f" on {engines.worker.name}" if len(run.devices) > 1 else ""
        for cause in engines.causes:
            first = Found(None, sentence(f"{capital(engine_cause(cause), cause.nodes)}."))
            places = (first, *(Found(node, "") for node in cause.nodes))
            yield Causes(
                f"What the engines{where} show", "cause" if cause.nodes else "seen", places
            )


def faults(run: Run, observations: Observations | None) -> Iterator[Causes]:
    """Yield what a diagnosis or a verification found at nodes."""
    seen = () if observations is None else observations.tensors
    made = {one.producer: one.tensor for one in seen if one.detail is not None}
    for rung in run.diagnosis:
        if rung.passed is False:
            texts: dict[NodeName, str] = {}
            for sign in sorted(rung.evidence, key=lambda sign: sign.severity != "error"):
                for node in sign.nodes:
                    if sign.severity == "error" or node in rung.nodes:
                        texts.setdefault(node, sign.text)
            texts |= {node: "" for node in rung.nodes if node not in texts}
            places = [Found(node, sentence(text), made.get(node)) for node, text in texts.items()]
            yield Causes(sentence(rung.cause), "cause", tuple(places))
    if run.kind == "verify":
        yield from _seen(run)


def _seen(run: Run) -> Iterator[Causes]:
    if inside := [t for t in run.verdict.intermediate_nonfinite if not t.harmless]:
        title = f"Values inside that are not finite, in {count(len(inside), 'tensor')}"
        places = [
            Found(
                t.producer,
                f"{count(t.elements, 'value')} of {sentence(t.tensor)} "
                f"{verb(t.elements, 'is', 'are')} NaN or infinite",
                t.tensor,
            )
            for t in inside
        ]
        yield Causes(title, "seen", tuple(places))
    if failed := run.verdict.failed_runs:
        places = [Found(one.node, sentence(f"{one.sample}: {one.why}")) for one in failed]
        yield Causes(f"Cannot be run on {count(len(failed), 'sample')}", "seen", tuple(places))


_LAST = ("spare", "effect", "unknown")
"""Reasons that come last, as they say least."""


def reason_line(run: Run) -> str:
    """Return why nodes are kept, most first, in one sentence; "" if none is."""
    keep, low = run.plan.keep if run.plan else (), run.baseline
    if keep and low is not None and low.within and all(k.kept_by == "rule" for k in keep):
        return say("trouble", "rules", {"nodes": len(keep)})
    reasons = Counter(reason_of(kept, run.followed) for kept in keep)
    chosen = run.search is not None and any(s.kind == "chosen" for s in run.search.remarks)
    certain = {guard.kind for guard in run.guards if guard.severity >= 1}
    own, names = WORDS["cause"], followed_names(run.followed)

    def told(reason: Reason) -> str:
        key = "rule-chosen" if reason == "rule" and chosen else reason
        if key in own:
            return filled(own[key], names)
        return f"{'' if reason in certain else 'perhaps '}{CAUSES[reason]}"

    some = (
        f"{told(one)} ({reasons[one]})"
        for one in sorted(reasons, key=lambda r: (r in _LAST, -reasons[r]))
    )
    return (
        sentence(say("trouble", "kept", {"nodes": len(keep), "why": "; ".join(some)}))
        if keep
        else ""
    )


def trouble(run: Run, *, brief: bool = False) -> Lines | None:
    """Return what is wrong with everything low, and usual fixes; None if unknown.

    `brief`: without fixes and what is not finite inside.
    """
    plan, low = run.plan, run.baseline
    if low is None or plan is None:
        return None
    what = everything_low(plan.low, len(plan.own), len(plan.unsupported))
    title = f"With {what}"
    more = () if brief else tuple(_usual_fixes(run))
    if low.within:
        return Lines(title, (say("trouble", "within", _within(run, plan)), *more))
    inside = () if brief else tuple(non_finite(low))
    failures = stated(low.failures)
    shown = failures[:FEW] if brief else first_of(failures, most=MOST_ROWS)
    return Lines(title, (*shown, *inside, *more), hidden=len(failures[FEW:]) if brief else 0)


def _within(run: Run, plan: Plan) -> dict[str, object]:
    """Return what is known of a model with everything low whose outputs are within tolerance."""
    guards = {kept.guard for kept in plan.keep}
    if seen := next((r for r in plan.remarks if r.kind == "seen-only"), None):
        return {"only": True, **seen.numbers}
    return {
        "infinite": "infinite" in guards,
        "beyond": run.headroom if "headroom" in guards else None,
        "repaired": bool(plan.repairs),
        "searched": any(kept.kept_by == "search" for kept in plan.keep),
        "sums": sums_wide(run.verdict),
    }


def low_name(run: Run) -> str:
    """Return what is low in the model that everything is compared with."""
    return f"everything in {run.low.upper()}" if run.low else "everything low"


def mended(plan: Plan) -> str:
    """Return what repairs answer, as a sentence; "" without repairs."""
    if not plan.repairs:
        return ""
    guards = dict.fromkeys(guard for repair in plan.repairs for guard in repair.guards)
    kinds = Counter(guard.kind for guard in guards)
    what = [f"{CAUSES[kind]} ({places})" for kind, places in kinds.most_common()]
    nodes = [node for repair in plan.repairs for node in repair.nodes]
    rules = ", ".join(dict.fromkeys(repair.rule for repair in plan.repairs))
    return sentence(f"Repaired ({rules}): {'; '.join(what) or listed(nodes, 3, 40)}.")


def _usual_fixes(run: Run) -> Iterator[str]:
    reasons = {(kept.guard, kept.node) for kept in run.plan.keep} if run.plan else set()
    fixes = (
        g.fix
        for g in run.guards
        if g.fix and not reasons.isdisjoint((g.kind, node) for node in (g.node, *g.nodes))
    )
    for fix in list(dict.fromkeys(fixes))[:3]:
        yield sentence(f"Usual fix: {fix}")


def followed_lines(run: Run) -> Iterator[str]:
    """Yield where the error comes from that no guard explains, if it was followed."""
    if run.followed is None or run.plan is None:
        return
    followed, keep, own = run.followed, run.plan.keep, len(run.plan.own)
    pinned, explained = len(run.plan.unsupported), len(run.followed.kept) - own
    lacking = sum(k.guard is None and k.kept_by == "search" and not k.spare for k in keep)
    facts = {
        "lacking": lacking or None,
        "kept": len(keep),
        "start": everything_low(run.plan.low, own, pinned, explained),
        "error": followed.error,
        "allowed": followed_over(run.criterion.metric),
        "several": followed.samples if followed.samples > 1 else None,
        "origin": _origin(followed, run),
    }
    yield sentence(say("trouble", "followed", facts))


def _origin(followed: Followed, run: Run) -> str:
    if followed.decided is not None:
        return flipped(followed.decided, followed_over(run.criterion.metric))
    several = followed.samples > 1
    if (origin := followed.origin) is not None:
        rest = [name for name in origin.kept if name != origin.node]
        facts = {"verb": appears(origin), "rest": rest or None, "several": several}
        facts["op"] = origin.op or None
        return say("trouble", "origin", {**dict(origin), **facts, "node": shorten(origin.node)})
    if followed.accumulates:
        places = dict.fromkeys(round(i * (len(run.growth) - 1) / 3) for i in range(4))
        path = (f"{number(run.growth[i].error)} at {shorten(run.growth[i].node)}" for i in places)
        return say("trouble", "accumulates", {"path": ", ".join(path)})
    return say("trouble", "unknown", {**dict(followed), "several": several})


def told_of_nodes(
    run: Run, observations: Observations | None
) -> Mapping[NodeName, Sequence[tuple[str, str]]]:
    """Return what is planned, suspected and found of each node, as pairs of a kind and words.

    The kinds are "kept", "reason", "suspected", "found" and "repaired".
    """
    told: defaultdict[NodeName, list[tuple[str, str]]] = defaultdict(list)
    for node, kind, text in _told(in_words(run), observations):
        told[node].append((kind, sentence(text)))
    return told


def _told(run: Run, observations: Observations | None) -> Iterator[tuple[NodeName, str, str]]:
    because = set[tuple[NodeName, str | None]]()
    if (plan := run.plan) is not None:
        for kept in (*plan.left_out, *plan.keep):
            because.add((kept.node, kept.guard))
            yield kept.node, "kept", PRECISIONS[kept.precision]
            yield kept.node, "reason", kept.reason
        yield from ((n, "reason", say("of a node", "carried")) for n in plan.data_movement)
        yield from ((n, "reason", say("of a node", "int8")) for n in plan.int8)
        for pinned in plan.unsupported:
            yield pinned.node, "reason", say("of a node", "pinned", pinned)
        for node, rule in plan.lowered.items():
            yield node, "reason", say("of a node", "lowered", {"rule": rule})
    # The suspicion for which a node is kept is its reason.
    for guard in run.guards:
        if (guard.node, guard.kind) not in because:
            yield guard.node, "suspected", guard.message
    for group in faults(run, observations):
        at = ((one.node, one.text) for one in group.found)
        yield from ((node, "found", text or group.title) for node, text in at if node is not None)
    for repair in () if plan is None else plan.repairs:
        formula = f": {repair.identity}" if repair.identity else ""
        words = f"{repair.rule}, {DONE[repair.rule]}{formula}"
        yield from ((node, "repaired", words) for node in repair.nodes)


def grown_with(run: Run) -> str:
    """Return what was low where the error after each node was measured."""
    facts = {
        "what": low_name(run),
        "kept": len(run.followed.kept) or None if run.followed is not None else None,
        "unrepaired": run.followed is None and run.plan is not None and bool(run.plan.repairs),
    }
    return say("trouble", "grown", facts)


def engine_proof(run: Run) -> PrecisionProof | None:
    """Return what the inspector shows of the delivered or given engine; None if nothing."""
    if run.engines is not None and run.engines.row is not None:
        return run.engines.row.proof
    return None if run.given_engine is None else run.given_engine.proof


TYPES = {"FLOAT": "FP32", "FLOAT16": "FP16", "BFLOAT16": "BF16", "DOUBLE": "FP64"}
"""Names of float types, by those of onnx-ir."""


def type_words(op: str, read: Sequence[str], written: Sequence[str]) -> str:
    """Return what a node computes in: the types that it writes; of a Cast also what it reads."""
    types = dict.fromkeys(TYPES.get(name, name) for name in written)
    floats = [name for name in types if name in TYPES.values()]
    results = "/".join(floats or types)
    return (
        f"{TYPES.get(read[0], read[0])} → {results}"
        if op == "Cast" and read and results
        else results
    )
