"""What a run knows about each node, as values and in words."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from halfwise.records import (
    EngineLayer,
    Growth,
    Guard,
    KeptNode,
    NodeName,
    NodePrecision,
    Observation,
    Observations,
    PrecisionProof,
    Repair,
    Run,
)
from halfwise.reporting.causes import faults
from halfwise.reporting.precision import WORDS
from halfwise.reporting.remarks import in_words
from halfwise.reporting.repairs import DONE
from halfwise.reporting.trouble import low_name
from halfwise.wording import count, listed, number, ratio, sentence


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
    found = [(one, group) for group in faults(run, observations) for one in group.found]
    for one, group in found:
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
            found = facts[seen.producer]
            found.nonfinite += seen.nonfinite
            if found.seen is None or found.seen.absmax < seen.absmax:
                found.seen = seen


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


def type_words(op: str, read: Sequence[str], given: Sequence[str]) -> str:
    """Return the types of a node's results: the float ones, else all; "" if unknown.

    Args:
        op: Its operator; for a Cast the input type is included.
        read: Element types of its inputs, as onnx-ir names them, without unknown ones.
        given: Element types of its outputs.
    """
    known = dict.fromkeys(TYPES.get(name, name) for name in given)
    floats = [name for name in known if name in TYPES.values()]
    told = "/".join(floats or known)
    return f"{TYPES.get(read[0], read[0])} → {told}" if op == "Cast" and read and told else told


def words_on(facts: NodeFacts, samples: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield what is known about a node: a short key, such as "reason", and clean words.

    Args:
        facts: The facts.
        samples: Samples that `Observation.worst_sample` indexes; if empty, none is named.
    """
    yield from planned_words(facts)
    for key, text in (*_measured(facts, samples), *_built(facts)):
        yield key, sentence(text)


def planned_words(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield the same for plan, suspicions and repairs only."""
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


def _measured(facts: NodeFacts, samples: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if (growth := facts.growth) is not None:
        inherited = number(growth.inherited)
        yield "error", f"{number(growth.error)} relative RMS; {inherited} in its inputs"
    if (seen := facts.seen) is not None:
        where = samples[seen.worst_sample] if seen.worst_sample < len(samples) else ""
        yield "largest-value", f"{number(seen.absmax)}{f' ({where})' if where else ''}"
    if facts.nonfinite:
        yield "not-finite", f"{facts.nonfinite} NaN or infinite values in FP32"


def _built(facts: NodeFacts) -> Iterator[tuple[str, str]]:
    if (engine := facts.engine) is not None:
        asked = f" ({WORDS[engine.asked]} was requested)" if engine.asked else ""
        yield "engine-precision", f"{WORDS[engine.precision]}{asked}"
    if facts.layers:
        yield "engine-layer", listed([layer.name for layer in facts.layers])
    times = [layer.milliseconds for layer in facts.layers if layer.milliseconds is not None]
    if times:
        others = sum(len(layer.nodes) - 1 for layer in facts.layers)
        shared = f", shared with {count(others, 'other node')}" if others else ""
        yield "engine-time", f"{number(sum(times))} ms{shared}"


def _numbered(key: str, place: int) -> str:
    return key if place == 0 else f"{key}-{place + 1}"
