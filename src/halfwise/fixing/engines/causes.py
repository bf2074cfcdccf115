"""What engines show about why nothing of the low format passed.

A kernel, or the compiler, is to blame only where an engine shows it: the emulation of the plan is
right, the inspector shows every kept node in FP32, and the engine is off by more than rounding in
other places explains.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from halfwise.fixing.engines.candidates import Candidate
from halfwise.fixing.engines.localise import WORSE, Departure
from halfwise.records import Cause, CauseKind, EngineRound
from halfwise.tensorrt.contrast import alike


def causes(
    candidates: Sequence[Candidate],
    plain: Candidate,
    rounds: Sequence[EngineRound],
    departures: Mapping[int, Departure],
    *,
    passed: bool,
    relative: bool = True,
) -> tuple[Cause, ...]:
    """Return what the engines of the low format show, gravest first.

    Args:
        candidates: All builds of all plans.
        plain: The first with nothing kept.
        rounds: What the emulation, with fusion and without, predicts of each build.
        departures: Where engines depart from the emulation, by the number of their build.
        passed: Whether one of them passed in the end: then there is nothing to explain but what
            was seen on the way.
        relative: Whether errors are shares of what is allowed. What a metric falls is none, and
            shows neither that something has no effect nor that a kernel is at fault.
    """
    predicted = {r.build: max(r.predicted or 0.0, r.predicted_fused or 0.0) for r in rounds}
    ran = [c for c in candidates if c.excess is not None]
    if not ran and not passed:
        told = [c for c in candidates if not c.untold]
        built = any(c.build.engine is not None for c in told)
        kind: CauseKind = "not-run" if built else "no-engine"
        if candidates and not told:
            told, kind = list(candidates), "lost"
        return (Cause(kind=kind, builds=tuple(c.build.number for c in told)),)
    off = [c for c in ran if not c.passed]
    found = [*_ignored(off)]
    if relative:
        found += [*_idle(off, plain, predicted), *_kernels(off, predicted, departures)]
    if off and not found and not passed:
        nearest = min(off, key=lambda c: c.excess or 0.0)
        number = nearest.build.number
        cause = Cause(kind="unknown", builds=(number,))
        known = {"excess": nearest.excess, "other": predicted.get(number)}
        found = [cause.model_copy(update=known) if relative else cause]
    return tuple(found)


def idle(candidate: Candidate, plain: Candidate) -> bool:
    """Return whether what a plan keeps changes nothing in its engine.

    Its error is that of the engine with nothing kept, within what chance in the choice of kernels
    explains.
    """
    if not candidate.keep or candidate.excess is None or plain.excess is None:
        return False
    return alike(candidate.excess, plain.excess)


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
        c for c in off if idle(c, plain) and not alike(predicted.get(c.build.number, inf), without)
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
    off: Sequence[Candidate],
    predicted: Mapping[int, float],
    departures: Mapping[int, Departure],
) -> Iterator[Cause]:
    for candidate in off:
        number = candidate.build.number
        expected, excess = predicted.get(number, inf), candidate.excess or 0.0
        if expected > 1 or excess <= WORSE * expected or not candidate.honoured:
            continue
        departure = departures.get(number)
        nodes = () if departure is None else departure.nodes
        yield Cause(kind="kernel", builds=(number,), nodes=nodes, excess=excess, other=expected)
        return
