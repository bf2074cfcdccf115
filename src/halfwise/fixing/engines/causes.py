"""Why nothing of the low format passed, as its engines show.

Where the emulation predicts of some plans that they pass, and the builder refused them all, that is
why: what the others show is why these are not enough.

What low precision explains in an engine was told before it was built (`band`). An error that is no
larger is one of precision. A larger one is blamed on a kernel, or the compiler, only where the
inspector shows every kept node in FP32, and another engine is right that has some nodes more in
FP32, and nothing else: there it is. Else it is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from halfwise.fixing.engines.attempts import Candidate
from halfwise.records import Cause, CauseKind, EngineRound, NodeName, Refusal
from halfwise.tensorrt.constrain import alike


def causes(
    candidates: Sequence[Candidate],
    plain: Candidate | None,
    rounds: Sequence[EngineRound],
    *,
    passed: bool,
    relative: bool = True,
    refusals: Sequence[Refusal] = (),
) -> tuple[Cause, ...]:
    """Return what the engines of the low format show, gravest first.

    Args:
        candidates: All builds of all plans.
        plain: The first with nothing kept; None where none was built.
        rounds: What the emulation, with fusion and without, predicts of each build.
        passed: Whether one of them passed in the end: then there is nothing to explain but what
            was seen on the way.
        relative: Whether errors are shares of what is allowed. What a metric falls is none, and
            shows neither that something has no effect nor that a kernel is at fault.
        refusals: What the builder refused.
    """
    predicted = {
        r.build: max(r.predicted or 0.0, r.predicted_fused or 0.0)
        for r in rounds
        if (r.predicted, r.predicted_fused) != (None, None)
    }
    ran = [c for c in candidates if c.excess is not None]
    if not ran and not passed and candidates:
        told = [c for c in candidates if not c.untold]
        built = any(c.build.engine is not None for c in told)
        kind: CauseKind = "not-run" if built else "no-engine"
        if not told:
            told, kind = list(candidates), "lost"
        return (Cause(kind=kind, builds=tuple(c.build.number for c in told)),)
    off = [c for c in ran if not c.passed]
    nearest = min(off, key=lambda c: c.excess or 0.0, default=None)
    awaited = [c for c in candidates if predicted.get(c.build.number, inf) <= 1]
    found = [] if passed else [*_refused(awaited, refusals)]
    if relative and nearest is not None:
        known = {"excess": nearest.excess, "band": nearest.band}
        found = [cause.model_copy(update=known) for cause in found]
    found += _ignored(off)
    if relative:
        kept = {r.build: r.keep for r in rounds}
        found += [] if plain is None else _idle(off, plain, predicted)
        found += _kernels(off, ran, kept)
    if nearest is not None and not found and not passed:
        cause = Cause(kind=_left(nearest, awaited), builds=(nearest.build.number,))
        if relative:
            other = predicted.get(nearest.build.number)
            known = {"excess": nearest.excess, "other": other, "band": nearest.band}
            cause = cause.model_copy(update=known)
        found = [cause]
    return tuple(found)


def _refused(awaited: Sequence[Candidate], refusals: Sequence[Refusal]) -> Iterator[Cause]:
    """Yield that every plan was refused that is predicted to pass, and where, if in one place."""
    told = {r.build: r.nodes for r in refusals}
    builds = tuple(c.build.number for c in awaited)
    if builds and all(number in told for number in builds):
        places = {told[number] for number in builds}
        nodes = places.pop() if len(places) == 1 else ()
        yield Cause(kind="refused", builds=builds, nodes=nodes)


def _left(nearest: Candidate, awaited: Sequence[Candidate]) -> CauseKind:
    """Return the cause where none is shown, of the engine that is off least.

    It is not precision where a plan that is predicted to pass has no engine that runs.
    """
    band, excess = nearest.band, nearest.excess or 0.0
    shown = not awaited or any(c.excess is not None for c in awaited)
    return "precision" if shown and band is not None and band.explains(excess) else "unknown"


def _ignored(off: Sequence[Candidate]) -> Iterator[Cause]:
    nodes = tuple(dict.fromkeys(n for c in off for n in c.ignored))
    if nodes:
        shown = tuple(c.build.number for c in off if c.ignored)
        yield Cause(kind="ignored", builds=shown, nodes=nodes)


def _idle(
    off: Sequence[Candidate], plain: Candidate, predicted: Mapping[int, float]
) -> Iterator[Cause]:
    """Yield the plans that were predicted to be better than plain low precision, and are not."""
    without = predicted.get(plain.build.number, 0.0)
    found = [
        c
        for c in off
        if c.changes_nothing(plain) and not alike(predicted.get(c.build.number, inf), without)
    ]
    if found:
        nearest = min(found, key=lambda c: c.excess or 0.0)
        yield Cause(
            kind="no-effect",
            builds=tuple(c.build.number for c in found),
            excess=nearest.excess,
            other=plain.excess,
        )


def _kernels(
    off: Sequence[Candidate], ran: Sequence[Candidate], kept: Mapping[int, Sequence[NodeName]]
) -> Iterator[Cause]:
    """Yield the smallest set of nodes that an engine needs in FP32 to be right, where one shows it.

    What low precision explains need not be a fault, and what is not honoured shows nothing.
    """
    right = [c for c in ran if c.passed or (c.band and c.band.explains(c.excess or 0.0))]
    pairs = [
        (wrong, other)
        for wrong in off
        if wrong.band and not wrong.band.explains(wrong.excess or 0.0) and wrong.honoured
        for other in right
        if other.keep > wrong.keep and other.terms == wrong.terms
    ]
    if pairs:
        wrong, other = min(pairs, key=lambda pair: len(pair[1].keep - pair[0].keep))
        yield Cause(
            kind="kernel",
            builds=(wrong.build.number, other.build.number),
            nodes=tuple(n for n in kept[other.build.number] if n not in wrong.keep),
            excess=wrong.excess,
            band=wrong.band,
        )
