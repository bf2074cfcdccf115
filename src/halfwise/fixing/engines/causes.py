"""Why nothing in the low format passed, as the engines show.

If the builder refused every plan that the emulation predicts to pass, that is the cause: what the
other engines show is why other plans do not suffice.

What low precision explains in an engine is predicted before it is built (`band`). An error within
it is one of precision. A larger one is blamed on a kernel, or the compiler, only if the inspector
shows every kept node in FP32 and another engine passes that differs only in some more FP32 nodes:
the fault is there. Otherwise the cause is unknown.
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
    """Return what the engines in the low format show, most severe first.

    Args:
        candidates: All builds of all plans.
        plain: The first build with nothing kept; None if none was built.
        rounds: What the emulation predicts of each build, with fusion and without.
        passed: Whether an engine passed in the end: then only what was seen on the way needs an
            explanation.
        relative: Whether errors are shares of what is allowed. The fall of a metric is not, and
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
    """Yield that every plan predicted to pass was refused, and where, if in one place."""
    told = {r.build: r.nodes for r in refusals}
    builds = tuple(c.build.number for c in awaited)
    if builds and all(number in told for number in builds):
        places = {told[number] for number in builds}
        nodes = places.pop() if len(places) == 1 else ()
        yield Cause(kind="refused", builds=builds, nodes=nodes)


def _left(nearest: Candidate, awaited: Sequence[Candidate]) -> CauseKind:
    """Return the cause if none is shown, of the engine with the smallest error.

    It is not precision if a plan predicted to pass has no engine that runs.
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
    """Yield the plans predicted to beat plain low precision that do not."""
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
    """Yield the smallest set of nodes that an engine needs in FP32 to pass, if one shows it.

    What low precision explains need not be a fault, and a constraint not honoured shows nothing.
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
