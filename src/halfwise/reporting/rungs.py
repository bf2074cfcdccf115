"""The rungs of a run with engines, and why it delivers none lower, in words."""

from collections.abc import Mapping

from halfwise.records import FULL_RUNGS, Cause, CauseKind, EngineRung, Engines, RungEnd, RungTried
from halfwise.wording import count, filled, listed, number, verb

_RUNGS: Mapping[EngineRung, str] = {"fp32": "FP32", "tf32": "TF32", "bf16": "BF16", "fp16": "FP16"}
_ENDS_OF_RUNGS: Mapping[RungEnd, str] = {
    "delivered": "delivered",
    "slower": "passed, and is slower",
    "not-preferred": "passed, and is not shown to be slower",
    "held-out": "passed the search, and failed on held-out samples or at other shapes",
    "unsteady": "passed in half of the builds of its plan or less",
    "tolerance": "out of tolerance",
    "not-run": "no engine runs to the end",
    "unbuildable": "no engine could be built",
    "unfetched": "passed, and could not be fetched",
    "lost": "the worker was lost, which tells nothing of it",
}

_WHY_FULL: Mapping[RungEnd, str] = {
    "slower": "it is faster than the {low} engines that passed",
    "not-preferred": "{low} engines that passed are not shown to be faster",
    "unfetched": "the {low} engine that passed could not be fetched",
    "lost": "the worker was lost before any {low} engine was judged",
}
"""Why FP32 is delivered, by how the low rung ended."""
_CAUSES: Mapping[CauseKind, str] = {
    "lost": "nothing is known of engines of the low format: the worker was lost in all of {builds}",
    "no-engine": "no engine of the low format could be built, in {builds}",
    "not-run": "no engine of the low format runs, of {builds}",
    "ignored": "the builder did not honour constraints: the inspector shows {nodes} in the low "
    "format, where FP32 was asked for ({builds})",
    "no-effect": "what is kept in FP32 changes nothing in the engine: its error is [{excess}|"
    "unknown] of what is allowed, {other} with nothing kept ({builds})",
    "kernel": "a kernel or the compiler is to blame[ in {nodes}]: the engine computes in what was "
    "asked, and its error is [{excess}|unknown] of what is allowed, where the emulation predicts "
    "{other} ({builds})",
    "unknown": "why the engines are off is unknown: none shows a constraint that was not honoured "
    "or a kernel at fault[; the nearest has {excess} of what is allowed, {other} by the emulation] "
    "({builds})",
}
"""Templates, see `wording.filled`."""


def rung_line(tried: RungTried) -> str:
    """Return what was tried of a rung and what became of it, as a sentence."""
    text = f"{_RUNGS[tried.rung]}: {_ENDS_OF_RUNGS[tried.end]}"
    facts = []
    if tried.rung not in FULL_RUNGS:
        facts.append(
            f"{count(tried.plans, 'plan')}, {tried.built} of {count(tried.builds, 'build')}"
        )
        facts[-1] += " gave an engine"
    if tried.excess is not None:
        whose = "its error is" if tried.end == "delivered" else "the nearest has"
        kept = f" with {count(tried.kept, 'node')} kept" if tried.kept else ""
        facts.append(f"{whose} {number(tried.excess)} of what the search may use{kept}")
    return f"{text} ({'; '.join(facts)})." if facts else f"{text}."


def judged_name(engines: Engines | None) -> str:
    """Return what the judged model is called beside the all-low one."""
    if engines is None or engines.rung is None or not engines.full:
        return "mixed"
    return _RUNGS[engines.rung]


def rung_caution(engines: Engines | None) -> str:
    """Return that the delivered engine computes nothing low, a sentence; "" where it does."""
    low = engines.rungs[-1] if engines is not None and engines.rungs else None
    if engines is None or not engines.full or low is None:
        return ""
    what = "with TF32" if engines.rung == "tf32" else "without TF32"
    why = _WHY_FULL.get(low.end, "no {low} plan passed").format(low=_RUNGS[low.rung])
    return f"The delivered engine is FP32 {what}: {why}.{_untimed(engines)}"


def _untimed(engines: Engines) -> str:
    """Return what is not known of the delivered engine, a sentence; "" where it was timed."""
    row = engines.row
    if row is None or not row.untimed:
        return ""
    if row.lost:
        return (
            " It is right on the samples below; the worker was lost before the rest was measured."
        )
    return f" It could not be timed: {row.untimed.rstrip('.')}."


def cause_line(cause: Cause) -> str:
    """Return what engines show about why nothing low passed, as a sentence without its stop."""
    builds = verb(len(cause.builds), "build", "builds")
    facts = {"builds": f"{builds} {', '.join(map(str, cause.builds))}"}
    facts |= {"nodes": listed(cause.nodes)} if cause.nodes else {}
    facts |= {"excess": number(cause.excess)} if cause.excess is not None else {}
    facts["other"] = number(cause.other) if cause.other is not None else "unknown"
    return filled(_CAUSES[cause.kind], facts)
