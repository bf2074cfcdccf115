"""Why nodes are kept, where the error comes from, and what is told of a node."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from halfwise.records import (
    EngineLayer,
    Followed,
    Growth,
    Guard,
    KeptNode,
    NodeName,
    NodePrecision,
    Observation,
    Observations,
    Plan,
    PrecisionProof,
    Repair,
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
from halfwise.wording import everything_low, filled, listed, number, ratio, sentence, shorten

_LAST = ("spare", "effect", "unknown")
"""Reasons that come last, as they say least."""


@dataclass(frozen=True)
class Kept:
    """Nodes that are kept for one reason.

    Attributes:
        why: The reason, as a clause.
        sure: Whether numbers make it certain, or it is no suspicion.
        ops: How many nodes there are, by operator.
    """

    why: str
    sure: bool
    ops: Counter[str]


def kept_for(run: Run) -> tuple[Kept, ...]:
    """Return the reasons for which nodes are kept, most nodes first; what says least comes last."""
    keep, certain = (
        run.plan.keep if run.plan else (),
        {g.kind for g in run.guards if g.severity >= 1},
    )
    kinds: dict[Reason, Counter[str]] = {}
    for kept in keep:
        kinds.setdefault(reason_of(kept, run.followed), Counter())[shorten(kept.op, 20)] += 1
    chosen = run.search is not None and any(s.kind == "chosen" for s in run.search.remarks)
    own, names = ALL_WORDS["cause"], followed_names(run.followed)

    def told(reason: Reason) -> Kept:
        key = "rule-chosen" if reason == "rule" and chosen else reason
        why = filled(own[key], names) if key in own else CAUSES[reason]
        return Kept(why, key in own or reason in certain, kinds[reason])

    return tuple(map(told, sorted(kinds, key=lambda r: (r in _LAST, -kinds[r].total()))))


def reason_line(run: Run) -> str:
    """Return why nodes are kept, in one sentence; "" if none is."""
    causes, keep, low = kept_for(run), run.plan.keep if run.plan else (), run.baseline
    if keep and low is not None and low.within and all(k.kept_by == "rule" for k in keep):
        return say("trouble", "rules", {"nodes": len(keep)})
    some = (f"{'' if one.sure else 'perhaps '}{one.why} ({one.ops.total()})" for one in causes)
    nodes = sum(one.ops.total() for one in causes)
    facts = {"nodes": nodes, "why": "; ".join(some)}
    return sentence(say("trouble", "kept", facts)) if causes else ""


def trouble(run: Run, *, brief: bool = False) -> Lines | None:
    """Return what is wrong with everything low, and why nodes are kept; None if unknown.

    `brief`: without causes, usual fixes and what is not finite inside.
    """
    plan, low = run.plan, run.baseline
    if low is None or plan is None:
        return None
    facts: dict[str, object] = {
        "what": everything_low(plan.low, len(plan.own), len(plan.unsupported))
    }
    facts |= {"candidates": plan.candidates} if plan.unsupported else {}
    title = say("trouble", "title", facts)
    more = () if brief else (*map(_cause, kept_for(run)), *_usual_fixes(run))
    if low.within:
        return Lines(title, (say("trouble", "within", _within(run, plan)), *more))
    inside = () if brief else tuple(non_finite(low))
    return Lines(title, (*first_of(stated(low.failures)), *inside, *more))


def _cause(kept: Kept) -> str:
    most = ", ".join(f"{quantity} {op}" for op, quantity in kept.ops.most_common(4))
    facts = {"sure": kept.sure, "why": kept.why, "nodes": kept.ops.total(), "most": most}
    return say("trouble", "cause", {**facts, "others": len(kept.ops) > 4})


def _within(run: Run, plan: Plan) -> dict[str, object]:
    """Return what is known of a model with everything low whose outputs are within tolerance."""
    guards = {kept.guard for kept in plan.keep}
    facts: dict[str, object] = {
        "searched": any(kept.kept_by == "search" for kept in plan.keep),
        "sums": sums_wide(run.verdict),
        "heldout": len(run.verdict.samples),
        "joined": bool(run.search and run.search.joined),
    }
    if seen := next((r for r in plan.remarks if r.kind == "seen-only"), None):
        return facts | {"only": True, **seen.numbers}
    if "infinite" in guards:
        return facts | {"infinite": True}
    if "headroom" in guards:
        return facts | {"beyond": run.headroom}
    if plan.repairs and not facts["searched"]:
        facts |= {"repaired": True}
        if run.search is not None and any((r.before or 0.0) > 1 for r in plan.repairs):
            facts |= {"only": True, "margin": run.search.tolerance_factor, "headroom": run.headroom}
    return facts


def low_name(run: Run) -> str:
    """Return what is low in the model that everything is compared with."""
    plan = run.plan or run.worth
    low = plan.low if plan is not None else None
    return f"everything in {low.upper()}" if low else "everything low"


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


@dataclass
class NodeFacts:
    """What is known of a node.

    Attributes:
        kept: Why it is kept; None if it is not.
        carried: Whether it only moves data between kept nodes.
        pinned: Why it must be FP32; "" if it need not be.
        lowered: The rule that lowers it; "" for none.
        int8: Whether it reads its inputs through Q and DQ.
        growth: The error after it.
        seen: The largest of its tensors.
        nonfinite: Its values that are not finite.
        guards: What is suspected of it.
        faults: What was found at it, as sentences.
        repairs: Repairs of it.
        engine: Its precision in the engine.
        layers: Its layers in the engine.
    """

    kept: KeptNode | None = None
    carried: bool = False
    pinned: str = ""
    lowered: str = ""
    int8: bool = False
    growth: Growth | None = None
    seen: Observation | None = None
    nonfinite: int = 0
    guards: list[Guard] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    engine: NodePrecision | None = None
    layers: list[EngineLayer] = field(default_factory=list)


def node_facts(run: Run, observations: Observations | None) -> Mapping[NodeName, NodeFacts]:
    """Return what is known of each node by name; of others, nothing is."""
    run = in_words(run)
    facts: defaultdict[NodeName, NodeFacts] = defaultdict(NodeFacts)
    _plan_facts(run.plan, facts)
    for growth in run.growth:
        facts[growth.node].growth = growth
    for guard in run.guards:
        facts[guard.node].guards.append(guard)
    for group in faults(run, observations):
        for one in group.found:
            if one.node is not None:
                facts[one.node].faults.append(one.text or group.title)
    _seen_facts(observations, facts)
    proof = engine_proof(run)
    for precision in proof.nodes if proof is not None else ():
        facts[precision.node].engine = precision
    for made in proof.layers if proof is not None else ():
        for name in made.nodes:
            facts[name].layers.append(made)
    return facts


def _seen_facts(observations: Observations | None, facts: Mapping[NodeName, NodeFacts]) -> None:
    for seen in observations.tensors if observations is not None else ():
        if seen.producer is not None:
            node = facts[seen.producer]
            node.nonfinite += seen.nonfinite
            if node.seen is None or node.seen.absmax < seen.absmax:
                node.seen = seen


def grown_with(run: Run) -> str:
    """Return what was low where the error after each node was measured."""
    facts = {
        "what": low_name(run),
        "kept": len(run.followed.kept) or None if run.followed is not None else None,
        "unrepaired": run.followed is None and run.plan is not None and bool(run.plan.repairs),
    }
    return say("trouble", "grown", facts)


def _plan_facts(plan: Plan | None, facts: Mapping[NodeName, NodeFacts]) -> None:
    if plan is None:
        return
    for kept in (*plan.left_out, *plan.keep):
        facts[kept.node].kept = kept
    for name in plan.data_movement:
        facts[name].carried = True
    for unsupported in plan.unsupported:
        facts[unsupported.node].pinned = unsupported.reason
    for name, rule in plan.lowered.items():
        facts[name].lowered = rule
    for name in plan.int8:
        facts[name].int8 = True
    for repair in plan.repairs:
        for name in repair.nodes:
            facts[name].repairs.append(repair)


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


def planned_words(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield what is planned and suspected for a node, each under a key that occurs once."""
    seen = Counter[str]()
    for key, text in _planned(facts):
        seen[key] += 1
        yield key if seen[key] == 1 else f"{key}-{seen[key]}", sentence(text)


def _planned(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    if (kept := facts.kept) is not None:
        yield "kept", WORDS[kept.precision]
        yield "reason", kept.reason
        if kept.error_without is not None:
            yield "error-if-lowered", f"{ratio(kept.error_without)} what the search allows"
    for fact in ("carried", "pinned", "lowered", "int8"):
        if getattr(facts, fact):
            yield "reason", say("of a node", fact, {fact: getattr(facts, fact)})
    yield from (("suspected", guard.message) for guard in facts.guards)
    yield from (("found", fault) for fault in facts.faults)
    for repair in facts.repairs:
        formula = f": {repair.identity}" if repair.identity else ""
        yield "repaired", f"{repair.rule}, {DONE[repair.rule]}{formula}"
