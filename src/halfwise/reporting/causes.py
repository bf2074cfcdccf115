"""What was wrong and where: causes, repairs, why nodes are kept, what is told of a node."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Literal

from msgspec import Struct

from halfwise.metrics.slices import runs
from halfwise.records import (
    UNDONE,
    Blame,
    Guard,
    KeptNode,
    NodeName,
    Observations,
    Plan,
    PrecisionProof,
    Remade,
    Repair,
    Run,
    TensorName,
    Verdict,
)
from halfwise.reporting.parts import PRECISIONS, WORDS, Lines, first_of, lines_of, say
from halfwise.reporting.plan import cause_line as engine_cause
from halfwise.reporting.remarks import (
    CAUSES,
    Reason,
    followed_over,
    low_name,
    message,
    reason_of,
    remark,
    stated,
)
from halfwise.reporting.verdict import non_finite, sums_wide
from halfwise.wording import (
    FEW,
    MOST_ROWS,
    alike,
    capital,
    count,
    everything_low,
    listed,
    number,
    sentence,
    shorten,
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
    groups = alike(plan.repairs, lambda r: (r.rule, r.identity, r.before, r.after, str(r.proof)))
    lines = [line for group in groups for line in _group_lines(group)]
    undone = [remark(one) for one in plan.remarks if one.kind in UNDONE]
    title = f"Repairs: {len(plan.repairs)}{f', {len(undone)} undone' if undone else ''}"
    return lines_of(
        title, [*first_of(lines, most=MOST_ROWS), *first_of(undone, "more undone: see run.json")]
    )


def _group_lines(group: Sequence[Repair]) -> Iterator[str]:
    first = group[0]
    nodes = [node for repair in group for node in repair.nodes]
    scales = [scale for repair in group for scale in repair.exponents.values() if scale]
    # Mending one of several faults leaves everything low as wrong as before.
    before, after = first.before, first.after
    helps = before is not None and after is not None and after < before
    yield say(
        "repairs",
        "line",
        first,
        first.proof,
        many=len(nodes) > 2,
        nodes=nodes,
        groups=len(group) if len(group) > 1 else None,
        done=DONE[first.rule],
        tensors=len(scales) or None,
        least=min(scales, default=0),
        most=max(scales, default=0),
        after=after if helps else None,
        infinite=helps and before == inf,
        samples=first.proof and sum(first.proof.samples.values()),
    )
    if guards := [f"{at.kind} at {at.node}" for repair in group for at in repair.guards]:
        yield f"Fixed: {listed([*dict.fromkeys(guards)])}."
    room = min((repair.room for repair in group if repair.room is not None), default=inf)
    if 1 <= room < ROOM:
        yield say("repairs", "room", room=room)
    if advice := dict.fromkeys(repair.advice for repair in group if repair.advice):
        yield f"In the training or export code: {' '.join(first_of([*advice]))}"


def blame_lines(blame: Blame | None) -> Lines | None:
    """Return which parts of a quantised model its error comes from; None if not examined."""
    if blame is None:
        return None
    return lines_of("Where the error comes from", _blamed(blame), first=True)


def _blamed(blame: Blame) -> Iterator[str]:
    """Yield the parts, by the share of the error that they remove, and what is constant."""
    limit = "the default tolerance" if blame.by_metric else "what is allowed"
    whole = {"before": blame.error, "limit": limit, "few": not blame.is_spread}
    for one in blame.left_out:
        yield say("blame", "part", blame, one, **whole)
        if one.joined is not None:
            levels = one.joined.largest / one.joined.scale
            yield say("blame", "joined", one.joined, node=one.nodes[0], levels=levels)
    if not blame.left_out:
        yield say("blame", "spread" if blame.is_lossy else "elsewhere", blame, **whole)
    elif len(blame.left_out) > 1 or blame.is_spread:
        yield say("blame", "together", blame, **whole)
    for flat in blame.flat:
        all_of_it, ranges = flat.slices == flat.of, runs(flat.ranges, FEW)
        yield say("blame", "flat", flat, whole=all_of_it, runs=ranges)


def remade_line(remade: Remade) -> str:
    """Return the repairs that a candidate names, and whether they hold; or unnamed differences."""
    return say(
        "remade",
        "differs" if remade.differs else "holds" if remade.holds else "fails",
        remade,
        remade.proof,
        samples=remade.proof and sum(remade.proof.samples.values()),
        rules=list(dict.fromkeys(repair.rule for repair in remade.repairs)),
    )


State = Literal["cause", "suspected", "mended", "unexplained", "seen", "harmless"]
LABELS: Mapping[str, str] = WORDS["state"]
"""In display order.

"cause": a suspicion that its numbers make certain, on nodes that had to be kept, or what a
diagnosis or engines found at nodes; "suspected": a possible one on such nodes, or any where the
outputs fail; "mended": repairs answer it; "unexplained": nodes that had to be kept without any
suspicion; "seen": observations, such as non-finite values; "harmless": suspicions although the
outputs pass.
"""


class Found(Struct, frozen=True):
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


class Causes(Struct, frozen=True):
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

    def state_of(guard: Guard) -> State:
        if blamed.isdisjoint((guard.kind, node) for node in (guard.node, *guard.nodes)):
            return "harmless" if run.verdict.passed else "suspected"
        return "cause" if guard.severity >= 1 else "suspected"

    pairs = [*((state_of(one), one) for one in run.guards), *(("mended", one) for one in mended)]
    for pairs_alike in alike(pairs, lambda pair: (pair[0], pair[1].kind)):
        (state, first), guards = pairs_alike[0], [guard for _, guard in pairs_alike]
        where = count(len({guard.node for guard in guards}), "node")
        yield Causes(
            f"{capital(CAUSES[first.kind])}, at {where}", state, tuple(map(_suspected, guards))
        )


def _suspected(guard: Guard) -> Found:
    text = sentence(capital(message(guard), (guard.node, guard.tensor or "")))
    return Found(guard.node, text, guard.tensor, sentence(guard.fix))


def _unexplained(run: Run) -> Iterator[Causes]:
    bare = [
        Found(kept.node, sentence(kept.reason))
        for kept in (run.plan.keep if run.plan is not None else ())
        if kept.guard is None
        and not (kept.unknown or kept.spare)
        and kept.kept_by in ("search", "engine")
    ]
    if bare:
        title = f"{count(len(bare), 'node')} had to be kept, and no suspicion says why"
        yield Causes(title, "unexplained", tuple(bare))


def _engines(run: Run) -> Iterator[Causes]:
    for engines in run.devices:
        where = f" on {engines.worker.name}" if len(run.devices) > 1 else ""
        for cause in engines.causes:
            first = Found(None, sentence(f"{capital(engine_cause(cause), cause.nodes)}."))
            places = (first, *(Found(node, "") for node in cause.nodes))
            state: State = "cause" if cause.nodes else "seen"
            yield Causes(f"What the engines{where} show", state, places)


def faults(run: Run, observations: Observations | None) -> Iterator[Causes]:
    """Yield what a diagnosis or a verification found at nodes."""
    seen = () if observations is None else observations.tensors
    made = {one.producer: one.tensor for one in seen if one.detail is not None}
    for rung in run.diagnosis:
        if rung.passed is False:
            texts: dict[NodeName, str] = {}
            for sign in sorted(rung.evidence, key=lambda sign: sign.severity != "error"):
                at = (n for n in sign.nodes if sign.severity == "error" or n in rung.nodes)
                texts |= {node: sign.text for node in at if node not in texts}
            texts |= {node: "" for node in rung.nodes if node not in texts}
            places = [Found(node, sentence(text), made.get(node)) for node, text in texts.items()]
            yield Causes(sentence(rung.cause), "cause", tuple(places))
    if run.kind == "verify":
        yield from _seen(run.verdict)


def _seen(verdict: Verdict) -> Iterator[Causes]:
    inside = [
        Found(t.producer, sentence(say("inside", "values", t)), t.tensor)
        for t in verdict.intermediate_nonfinite
        if not t.harmless
    ]
    if inside:
        title = f"Values inside that are not finite, in {count(len(inside), 'tensor')}"
        yield Causes(title, "seen", tuple(inside))
    if failed := verdict.failed_runs:
        places = [Found(one.node, sentence(f"{one.sample}: {one.why}")) for one in failed]
        yield Causes(f"Cannot be run on {count(len(failed), 'sample')}", "seen", tuple(places))


_LAST = ("spare", "effect", "little", "unknown")
"""Reasons that come last, as they say least."""


def reason_line(run: Run) -> str:
    """Return why nodes are kept, most first, in one sentence; "" if none is."""
    keep, low = run.plan.keep if run.plan else (), run.baseline
    if not keep:
        return ""
    suspected = {node for guard in run.guards for node in guard.nodes}
    ruled = all(k.kept_by == "rule" and k.node not in suspected for k in keep)
    if low is not None and low.within and ruled:
        return say("trouble", "rules", nodes=len(keep))
    reasons = Counter(reason_of(kept, run.followed) for kept in keep)
    chosen = run.search is not None and any(s.kind == "chosen" for s in run.search.remarks)
    certain = {guard.kind for guard in run.guards if guard.severity >= 1}

    def told(reason: Reason) -> str:
        key = "rule-chosen" if reason == "rule" and chosen else reason
        if key in WORDS["cause"]:
            return say("cause", key, nodes=reasons[reason])
        return f"{'' if reason in certain else 'perhaps '}{CAUSES[reason]}"

    ordered = sorted(reasons, key=lambda r: (r in _LAST, -reasons[r]))
    why = "; ".join(f"{told(one)} ({reasons[one]})" for one in ordered)
    return sentence(say("trouble", "kept", nodes=len(keep), why=why))


def trouble(run: Run, *, brief: bool = False) -> Lines | None:
    """Return what is wrong with everything low, and usual fixes; None if unknown.

    `brief`: without fixes and what is not finite inside.
    """
    plan, low = run.plan, run.baseline
    if low is None or plan is None:
        return None
    title = f"With {everything_low(plan.low, len(plan.own), len(plan.unsupported))}"
    fixes = () if brief else tuple(_usual_fixes(run))
    if low.within and brief and not (plan.keep or plan.repairs):
        return None  # that is the plan
    if low.within:
        return Lines(title, (_within(run, plan), *fixes))
    failures = stated(low.failures)
    if brief:
        return Lines(title, failures[:FEW], hidden=len(failures[FEW:]))
    return Lines(title, (*first_of(failures, most=MOST_ROWS), *non_finite(low), *fixes))


def _within(run: Run, plan: Plan) -> str:
    """Return what is known of a model with everything low whose outputs are within tolerance."""
    guards = {kept.guard for kept in plan.keep}
    seen = next((r.numbers for r in plan.remarks if r.kind == "seen-only"), {})
    return say(
        "trouble",
        "within",
        seen,
        only=bool(seen),
        infinite="infinite" in guards,
        beyond=run.headroom if "headroom" in guards else None,
        repaired=plan.repairs,
        searched=any(kept.kept_by == "search" for kept in plan.keep),
        sums=sums_wide(run.verdict),
    )


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
    fixes = dict.fromkeys(
        g.fix
        for g in run.guards
        if g.fix and not reasons.isdisjoint((g.kind, node) for node in (g.node, *g.nodes))
    )
    yield from (sentence(f"Usual fix: {fix}") for fix in list(fixes)[:3])


def followed_lines(run: Run) -> Iterator[str]:
    """Yield where the error comes from that no guard explains, if it was followed."""
    if (followed := run.followed) is None or (plan := run.plan) is None:
        return
    own, allowed = len(plan.own), followed_over(run.criterion.metric)
    lacking = sum(k.guard is None and k.kept_by == "search" and not k.spare for k in plan.keep)
    several = followed.samples if followed.samples > 1 else None
    start = everything_low(plan.low, own, len(plan.unsupported), len(followed.kept) - own)
    if followed.accumulates:
        places = dict.fromkeys(round(i * (len(run.growth) - 1) / 3) for i in range(4))
        path = (f"{number(run.growth[i].error)} at {shorten(run.growth[i].node)}" for i in places)
        origin = say("trouble", "accumulates", path=", ".join(path))
    else:
        origin = say("trouble", "unknown")
    told = {"start": start, "allowed": allowed, "several": several, "origin": origin}
    kept = {"lacking": lacking or None, "kept": len(plan.keep)}
    yield sentence(say("trouble", "followed", followed, told, kept))


def told_of_nodes(
    run: Run, observations: Observations | None
) -> Mapping[NodeName, Sequence[tuple[str, str]]]:
    """Return what is planned, suspected and found of each node, as pairs of a kind and words.

    The kinds are "kept", "reason", "suspected", "found" and "repaired".
    """
    told: defaultdict[NodeName, list[tuple[str, str]]] = defaultdict(list)
    for node, kind, text in _told(run, observations):
        told[node].append((kind, sentence(text)))
    return told


def _told(run: Run, observations: Observations | None) -> Iterator[tuple[NodeName, str, str]]:
    keep: tuple[KeptNode, ...] = ()
    if (plan := run.plan) is not None:
        keep = (*plan.left_out, *plan.keep)
        yield from ((k.node, "kept", PRECISIONS[k.precision]) for k in keep)
        yield from ((k.node, "reason", k.reason) for k in keep)
        yield from ((n, "reason", say("of a node", "carried")) for n in plan.data_movement)
        yield from ((n, "reason", say("of a node", "int8")) for n in plan.int8)
        yield from ((p.node, "reason", say("of a node", "pinned", p)) for p in plan.unsupported)
        lowered = plan.lowered.items()
        yield from ((n, "reason", say("of a node", "lowered", rule=rule)) for n, rule in lowered)
    # The suspicion for which a node is kept is its reason.
    because = {(kept.node, kept.guard) for kept in keep}
    others = (guard for guard in run.guards if (guard.node, guard.kind) not in because)
    yield from ((guard.node, "suspected", guard.message) for guard in others)
    found = ((one, group.title) for group in faults(run, observations) for one in group.found)
    yield from ((o.node, "found", o.text or title) for o, title in found if o.node is not None)
    for repair in () if plan is None else plan.repairs:
        words = say("of a node", "repaired", repair, done=DONE[repair.rule])
        yield from ((node, "repaired", words) for node in repair.nodes)


def grown_with(run: Run) -> str:
    """Return what was low where the error after each node was measured."""
    kept = None if run.followed is None else run.followed.kept
    bare = run.followed is None and run.plan is not None and bool(run.plan.repairs)
    return say("trouble", "grown", what=low_name(run), kept=kept, unrepaired=bare)


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
    results = "/".join([name for name in types if name in TYPES.values()] or types)
    reads = f"{TYPES.get(read[0], read[0])} → " if op == "Cast" and read and results else ""
    return f"{reads}{results}"
