"""What is wrong, where and why: suspicions and observations, grouped by kind."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from halfwise.records import Guard, GuardKind, NodeName, Observations, Run, TensorName
from halfwise.reporting.guards import CAUSES, message
from halfwise.reporting.quantisation import cause_line
from halfwise.reporting.remarks import in_words
from halfwise.reporting.rungs import cause_line as engine_cause
from halfwise.wording import capital, count, sentence, verb

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
    accused = _accused(run)
    found: dict[tuple[State, GuardKind], list[Guard]] = {}
    kept: Counter[tuple[State, GuardKind]] = Counter()
    for i, guard in enumerate(run.guards):
        state: State = "cause" if guard.severity >= 1 else "suspected"
        if i not in accused:
            state = "harmless" if run.verdict.passed else "suspected"
        group = (state, guard.kind)
        found.setdefault(group, []).append(guard)
        kept[group] += accused.get(i, 0)
    for guard in mended:
        found.setdefault(("mended", guard.kind), []).append(guard)
    for (state, kind), guards in found.items():
        title = f"{capital(CAUSES[kind])}, at {count(len({g.node for g in guards}), 'node')}"
        if because := kept[state, kind]:
            title += f"; {count(because, 'node')} kept because of that"
        yield Causes(title, state, tuple(map(_told, guards)))


def _told(guard: Guard) -> Found:
    names = (guard.node, guard.tensor or "")
    text = sentence(capital(message(guard), names))
    return Found(guard.node, text, guard.tensor, sentence(guard.fix))


def _accused(run: Run) -> dict[int, int]:
    """Return the indices of guards that say why nodes are kept, with how many nodes each keeps.

    A node for which there are several counts at the most severe, so that it counts once.
    """
    places: dict[tuple[GuardKind, NodeName], list[int]] = {}
    for i, guard in enumerate(run.guards):
        for node in {guard.node, *guard.nodes}:
            places.setdefault((guard.kind, node), []).append(i)
    found: dict[int, int] = {}
    for kept in run.plan.keep if run.plan is not None else ():
        why = [] if kept.guard is None else list(places.get((kept.guard, kept.node), ()))
        if kept.because is not None and kept.because.guard is not None:
            why.insert(0, kept.because.guard)
        found |= {i: found.get(i, 0) for i in why}
        if why:
            found[max(why, key=lambda i: run.guards[i].severity)] += 1
    return found


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
        found = (Found(kept.node, sentence(kept.why or kept.reason)) for kept in bare)
        yield Causes(title, "unexplained", tuple(found))


def _engines(run: Run) -> Iterator[Causes]:
    """Yield what engines show about why none of the low format passed, with the nodes."""
    for engines in run.devices:
        where = f" on {engines.worker.name}" if len(run.devices) > 1 else ""
        for cause in engines.causes:
            told = Found(None, sentence(f"{capital(engine_cause(cause), cause.nodes)}."))
            found = (told, *(Found(node, "") for node in cause.nodes))
            state: State = "cause" if cause.nodes else "seen"
            yield Causes(f"What the engines{where} show", state, found)


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
            found = tuple(
                Found(node, sentence(text), made.get(node)) for node, text in texts.items()
            )
            where = f", at {count(len(found), 'node')}" if found else f": {sentence(rung.cause)}"
            yield Causes(f"Rung {rung.rung} ({rung.name}){where}", "cause", found)


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
        found = (Found(one.node, sentence(f"{one.sample}: {one.why}")) for one in failed)
        yield Causes(f"Cannot be run on {count(len(failed), 'sample')}", "seen", tuple(found))
    pairs = run.quantisation.causes if run.quantisation is not None else ()
    if pairs:
        title = f"Quantisation, at {count(len(pairs), 'pair')} of Q and DQ"
        found = (Found(pair.node, cause_line(pair), pair.tensor) for pair in pairs)
        yield Causes(title, "seen", tuple(found))
