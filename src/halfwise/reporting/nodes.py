"""Why nodes are kept, where the error comes from, and what is told of a node."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from halfwise.records import (
    Followed,
    NodeName,
    Observations,
    Plan,
    PrecisionProof,
    Run,
)
from halfwise.reporting.causes import DONE, faults
from halfwise.reporting.engines import WORDS
from halfwise.reporting.guards import (
    CAUSES,
    Reason,
    appears,
    flipped,
    followed_names,
    followed_over,
    reason_of,
)
from halfwise.reporting.parts import Lines, first_of
from halfwise.reporting.remarks import in_words, stated
from halfwise.reporting.verdict import non_finite, sums_wide
from halfwise.reporting.words import WORDS as ALL_WORDS
from halfwise.reporting.words import say
from halfwise.wording import everything_low, filled, listed, number, sentence, shorten

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
    own, names = ALL_WORDS["cause"], followed_names(run.followed)

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
    facts: dict[str, object] = {
        "what": everything_low(plan.low, len(plan.own), len(plan.unsupported))
    }
    facts |= {"candidates": plan.candidates} if plan.unsupported else {}
    title = say("trouble", "title", facts)
    more = () if brief else tuple(_usual_fixes(run))
    if low.within:
        return Lines(title, (say("trouble", "within", _within(run, plan)), *more))
    inside = () if brief else tuple(non_finite(low))
    return Lines(title, (*first_of(stated(low.failures)), *inside, *more))


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
            yield kept.node, "kept", WORDS[kept.precision]
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
