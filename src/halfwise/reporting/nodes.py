"""Where the trouble is, and everything that the reports say of a node."""

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
from halfwise.wording import count, everything_low, listed, number, ratio, sentence, shorten

_UNGUARDED: Mapping[Reason, str] = {
    "rule": "rules of the user",
    "model": "types in the file itself",
    "engine": "what the engine needs or is faster with",
    "flip": "decisions that change, of {decision}",
    "origin": "error that {verb} at {origin}",
    "accumulated error": "accumulated error",
    "spare": "conversions, which would cost more than lowering saves",
    "effect": "unknown, effect measured",
    "unknown": "unknown, not lowered",
}
_UNKNOWN = ("effect", "unknown")
_LAST = ("spare", *_UNKNOWN)

_ASKED = ("margin", "headroom")


def trouble(run: Run, *, brief: bool = False) -> Lines | None:
    """Return what fails with everything low, and why; None if that was not judged.

    Args:
        run: The run.
        brief: Omit non-finite inner values and the usual fixes.
    """
    if run.baseline is None or run.plan is None:
        return None
    title, causes = f"With {_lowest(run.plan)}", tuple(_causes(run, brief=brief))
    beside = () if brief else tuple(non_finite(run.baseline))
    fixes = () if brief else tuple(_usual_fixes(run))
    if not run.baseline.within:
        wrong = first_of(stated(run.baseline.failures))
        return Lines(title, (*wrong, *beside, *causes, *fixes))
    guards = {kept.guard for kept in run.plan.keep}
    searched = any(kept.kept_by == "search" for kept in run.plan.keep)
    but = ", but values inside become infinite" if "infinite" in guards else ""
    if seen := next((r for r in run.plan.remarks if r.kind == "seen-only"), None):
        but = _only_heldout(run, seen.numbers)
    elif "headroom" in guards and not but:
        but = f", but values inside overflow at {ratio(run.headroom)} the ranges seen"
    elif run.plan.repairs and not (but or searched):
        but = "; what happened inside was repaired"
        if run.search is not None and any((r.before or 0.0) > 1 for r in run.plan.repairs):
            limits = {"margin": run.search.tolerance_factor, "headroom": run.headroom}
            but = f"{_only_heldout(run, limits)}; that was repaired"
    sums = " with sums in FP32" if sums_wide(run.verdict) else ""
    fine = "The outputs are" if searched or but else f"Nothing is wrong{sums}: the outputs are"
    return Lines(title, (f"{fine} within tolerance{but}.", *causes, *fixes))


def _only_heldout(run: Run, limits: Mapping[str, float]) -> str:
    """Return that outputs pass on held-out samples only: how many are left, and what fails how."""
    joined, filed = (run.search.joined, run.search.filed) if run.search else ((), ())
    remaining = count(len(run.verdict.samples), "held-out sample")
    where = f"{remaining} that did not join the search" if joined else "held-out samples"
    only = f", {len(filed)} of which failed only as the file runs" if filed else ""
    return f" on the {where}, but not{_with_margin(limits)} on the calibration samples{only}"


def _with_margin(limits: Mapping[str, float]) -> str:
    """Return what the search asks beyond the tolerance, which alone may be met there."""
    asks = [f"{name} of {number(limits[name])}" for name in _ASKED if name in limits]
    return f", with a {' and a '.join(asks)}," if asks else ""


def low_name(run: Run) -> str:
    """Return what costs are relative to: everything low, in the low format if known."""
    plan = run.plan or run.worth
    low = plan.low if plan is not None else None
    return f"everything in {low.upper()}" if low else "everything low"


def _lowest(plan: Plan) -> str:
    words = everything_low(plan.low, len(plan.own), len(plan.unsupported))
    others = f", besides the {count(plan.candidates, 'compute node')} that could be low"
    return f"{words}{others}" if plan.unsupported else words


def _causes(run: Run, *, brief: bool) -> Iterator[str]:
    """Yield a line per reason for kept nodes, causes first, then those of most nodes.

    Merely possible causes say so. Brief ones share a line, lest one be cut.
    """
    assert run.plan is not None
    certain = {g.kind for g in run.guards if g.severity >= 1}
    names = followed_names(run.followed)
    steps = () if run.search is None else run.search.remarks
    chosen = any(step.kind == "chosen" for step in steps)
    kinds: dict[Reason, Counter[str]] = {}
    for kept in run.plan.keep:
        reason = reason_of(kept, run.followed)
        kinds.setdefault(reason, Counter())[shorten(kept.op, 20)] += 1
    causes = []
    for reason, ops in sorted(kinds.items(), key=lambda i: (i[0] in _LAST, -i[1].total())):
        most = ", ".join(f"{quantity} {op}" for op, quantity in ops.most_common(4))
        more = " and others" if len(ops) > 4 else ""
        sure = reason in certain or reason in _UNGUARDED
        why = _UNGUARDED[reason].format(**names) if reason in _UNGUARDED else CAUSES[reason]
        if reason == "rule" and chosen:
            why = "the plan that was chosen"
        because = "" if reason in _UNKNOWN else " because of that"
        causes.append((sure, why, count(ops.total(), "node"), f"{because} ({most}{more})"))
    if brief and len(causes) > 1:
        some = (f"{'' if sure else 'suspected: '}{why} ({n})" for sure, why, n, _ in causes)
        yield f"Causes: {'; '.join(some)}."
        return
    for sure, why, nodes, end in causes:
        yield f"{'Cause' if sure else 'Suspected cause'}: {why}; {nodes} kept{end}."


def mended(plan: Plan) -> str:
    """Return what a plan's repairs answer, as a sentence; "" without repairs."""
    if not plan.repairs:
        return ""
    rules = ", ".join(dict.fromkeys(repair.rule for repair in plan.repairs))
    guards = dict.fromkeys(guard for repair in plan.repairs for guard in repair.guards)
    kinds = Counter(guard.kind for guard in guards)
    what = ", ".join(
        f"{CAUSES[kind]} at {count(places, 'node')}" for kind, places in kinds.most_common(3)
    )
    if len(kinds) > 3:
        what += " and others"
    nodes = [node for repair in plan.repairs for node in repair.nodes]
    return sentence(f"Repaired ({rules}): {what or listed(nodes, 3, 40)}.")


def _usual_fixes(run: Run) -> Iterator[str]:
    """Yield the usual fixes for the reasons of kept nodes, each once."""
    assert run.plan is not None
    reasons = {(kept.guard, kept.node) for kept in run.plan.keep}
    fixes = (
        g.fix
        for g in run.guards
        if g.fix and not reasons.isdisjoint((g.kind, node) for node in (g.node, *g.nodes))
    )
    for fix in list(dict.fromkeys(fixes))[:3]:
        yield sentence(f"Usual fix: {fix}")


def followed_lines(run: Run) -> Iterator[str]:
    """Yield the sources of errors that no guard or rule explains, as far as trials show them."""
    if run.followed is None or run.plan is None:
        return
    followed, keep, kept_nodes = run.followed, run.plan.keep, len(run.plan.own)
    start = everything_low(
        run.plan.low, kept_nodes, len(run.plan.unsupported), len(followed.kept) - kept_nodes
    )
    lacking = sum(k.guard is None and k.kept_by == "search" and not k.spare for k in keep)
    allowed = followed_over(run.criterion.metric)
    on = "one sample" if followed.samples == 1 else f"the worst of {followed.samples} samples"
    none = f"No guard explains {lacking} of {count(len(keep), 'kept node')}. " if lacking else ""
    yield (
        f"{none}With {start}, the error is {ratio(followed.error)} {allowed} on "
        f"{on}: {_origin(followed, run)}."
    )


def _origin(followed: Followed, run: Run) -> str:
    if followed.decided is not None:
        return flipped(followed.decided, followed_over(run.criterion.metric))
    if (origin := followed.origin) is not None:
        rest = [name for name in origin.kept if name != origin.node]
        beside = f" with {listed(rest)}" if rest else ""
        most = " or less on each of them" if followed.samples > 1 else ""
        return (
            f"most of it {appears(origin)} at {shorten(origin.node)}, since FP32 there{beside} "
            f"leaves {ratio(origin.error)}{most}"
        )
    if followed.accumulates:
        places = dict.fromkeys(round(i * (len(run.growth) - 1) / 3) for i in range(4))
        path = (f"{number(run.growth[i].error)} at {shorten(run.growth[i].node)}" for i in places)
        return f"it grows with depth (relative RMS: {', '.join(path)})"
    tried = count(len(followed.tried), "node")
    ended = " before the budget was spent" if followed.out_of_time else ""
    undone = " on all samples that fail, and lets the others pass" if followed.samples > 1 else ""
    return (
        f"where it starts is unknown; of {tried} tried in FP32{ended}, each with its neighbours, "
        f"none halves the error{undone}"
    )


@dataclass
class NodeFacts:
    """What is known about one node; unknown values are None or empty.

    Attributes:
        kept: Whether and why a plan keeps it in FP32 (or BF16), or out of INT8.
        carried: Whether it only moves data between kept nodes, and is FP32 with them.
        pinned: Why it must be FP32 in any case.
        lowered: The user's rule that lowered it.
        int8: Whether it reads its inputs through Q/DQ pairs.
        growth: Its error with few or no nodes in FP32.
        seen: Its tensor with the largest finite magnitude in FP32.
        nonfinite: NaN and infinite elements of all its tensors in FP32.
        guards: Suspicions that arise at it, most severe first.
        faults: What a diagnosis or a verification found at it.
        repairs: Repairs that change it.
        engine: Its precision in the engine.
        layers: The engine's layers that compute it.
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
    """Return what is known about each node of the model, by name; unknown nodes are omitted.

    Names are those of the plan's network: a node that a repair replaced keeps its facts.
    """
    run = in_words(run)
    facts: defaultdict[NodeName, NodeFacts] = defaultdict(NodeFacts)
    _plan_facts(run, facts)
    for growth in run.growth:
        facts[growth.node].growth = growth
    for guard in run.guards:
        facts[guard.node].guards.append(guard)
    reports = [(one, group) for group in faults(run, observations) for one in group.found]
    for one, group in reports:
        if one.node is not None:
            facts[one.node].faults.append(one.text or group.title)
    _seen_facts(observations, facts)
    if (proof := engine_proof(run)) is not None:
        for node in proof.nodes:
            facts[node.node].engine = node
        for layer in proof.layers:
            for name in layer.nodes:
                facts[name].layers.append(layer)
    return facts


def _seen_facts(observations: Observations | None, facts: Mapping[NodeName, NodeFacts]) -> None:
    for seen in observations.tensors if observations is not None else ():
        if seen.producer is not None:
            node = facts[seen.producer]
            node.nonfinite += seen.nonfinite
            if node.seen is None or node.seen.absmax < seen.absmax:
                node.seen = seen


def grown_with(run: Run) -> str:
    """Return what is low where `Run.growth` was measured, such as "everything in FP16"."""
    kept = 0 if run.followed is None else len(run.followed.kept)
    but = f" but {count(kept, 'node')}" if kept else ""
    unrepaired = run.followed is None and run.plan is not None and run.plan.repairs
    return f"{low_name(run)}{but}{', before repairs' if unrepaired else ''}"


def _plan_facts(run: Run, facts: Mapping[NodeName, NodeFacts]) -> None:
    if (plan := run.plan) is None:
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
    """Return the precision of the run's delivered or judged engine; None without one."""
    if run.engines is not None and run.engines.row is not None:
        return run.engines.row.proof
    return None if run.given_engine is None else run.given_engine.proof


TYPES = {"FLOAT": "FP32", "FLOAT16": "FP16", "BFLOAT16": "BF16", "DOUBLE": "FP64"}
"""Words for float types, by onnx-ir's names."""


def type_words(op: str, read: Sequence[str], written: Sequence[str]) -> str:
    """Return the types of a node's results: the float ones, else all; "" if unknown.

    Args:
        op: Its operator; for a Cast the input type is included.
        read: Element types of its inputs, as onnx-ir names them, without unknown ones.
        written: Element types of its outputs.
    """
    types = dict.fromkeys(TYPES.get(name, name) for name in written)
    floats = [name for name in types if name in TYPES.values()]
    results = "/".join(floats or types)
    return (
        f"{TYPES.get(read[0], read[0])} → {results}"
        if op == "Cast" and read and results
        else results
    )


def planned_words(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield what plan, guards and repairs say of a node: a short key, and clean words."""
    for key, text in _planned(facts):
        yield key, sentence(text)


def _planned(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    if (kept := facts.kept) is not None:
        yield "kept", WORDS[kept.precision]
        yield "reason", kept.reason
        if kept.error_without is not None:
            yield "error-if-lowered", f"{ratio(kept.error_without)} what the search allows"
    if facts.carried:
        yield "reason", "Only moves data between kept nodes, and costs nothing in FP32."
    if facts.pinned:
        yield "reason", f"FP32 in any case: {facts.pinned}."
    if facts.lowered:
        yield "reason", f"Lowered by the rule {facts.lowered}."
    if facts.int8:
        yield "reason", "Reads its inputs through Q and DQ, for INT8."
    for i, guard in enumerate(facts.guards):
        yield _numbered("suspected", i), guard.message
    for i, fault in enumerate(facts.faults):
        yield _numbered("found", i), fault
    for i, repair in enumerate(facts.repairs):
        formula = f": {repair.identity}" if repair.identity else ""
        yield _numbered("repaired", i), f"{repair.rule}, {DONE[repair.rule]}{formula}"


def _numbered(key: str, place: int) -> str:
    return key if place == 0 else f"{key}-{place + 1}"
