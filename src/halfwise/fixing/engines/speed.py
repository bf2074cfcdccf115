"""When an engine is slow, and when no other plan can make it the fastest."""

from collections.abc import Callable
from math import inf

from halfwise.fixing.engines.attempts import Assignment, Candidate
from halfwise.fixing.engines.terms import WITH_TF32, Terms
from halfwise.records import ProvenEngine, Spared
from halfwise.wording import number

FUTILE = 1.07
"""If the low format with nothing kept, and TF32 allowed, takes this many times as long as an FP32
or TF32 engine that is proven, no plan is searched: keeping nodes gains no speed. Of the 15 mixed
engines on an H200 in `bench/results/gpu_*.json` one was 6 % faster than the one with nothing kept,
by chance (another build of its plan took 1.3 times as long), and no other one more than 1 %."""
NEAR = 1.05
"""Engines timed alone, at different times, that differ by less take turns before one of them counts
as slower. Our choice: builds of one plan with the same kernels differed by up to 2 % on an H200."""
SLOW = 1.1
"""A mixed engine that takes more than this many times as long as plain FP16 is worth wider
islands."""


Attempt = Callable[[Assignment, str, Terms], Candidate]


def futile(first: Candidate, plain: Candidate, full: ProvenEngine | None) -> Spared | None:
    """Return why the low format is slower than a proven engine; None if it is not.

    Nothing is predicted in strong typing: kept nodes may have faster kernels there.

    Args:
        first: The first plan built.
        plain: The engine with nothing kept.
        full: The fastest proven FP32 or TF32 engine; None if there is none.
    """
    if full is None or full.median_ms is None or plain.latency is None:
        return None
    if plain.build.config.typing == "strong":
        return None
    if min(first.milliseconds, plain.milliseconds) < FUTILE * full.median_ms:
        return None
    return Spared(
        kind="slower",
        build=plain.build.number,
        median_ms=plain.milliseconds,
        full=full.build,
        full_ms=full.median_ms,
    )


def without_futile(
    first: Candidate, plain: Candidate, full: ProvenEngine | None, attempt: Attempt
) -> tuple[Candidate, Spared | None]:
    """Return the build to continue from, or why to stop; no reason if a plan may be the fastest.

    If an engine with TF32 is faster than everything low, low kernels may be slow where TF32 is not.
    Then TF32 is allowed: with nothing kept, all kernels are free. If that engine is slow too, no
    plan is searched; if it is off, the search continues from the plan with TF32.

    Args:
        first: The first plan built.
        plain: The engine with nothing kept.
        full: The fastest proven FP32 or TF32 engine; None if there is none.
        attempt: Builds and measures a plan; receives the reason and the terms.
    """
    if futile(first, plain, full) is None:
        return first, None
    freest = attempt(frozenset(), "plain low precision with TF32", WITH_TF32)
    spared = futile(freest, freest, full)
    if spared is not None or freest.passed or not first.keep:
        return freest, spared
    return attempt(first.keep, "the same plan with TF32", WITH_TF32), None


def slow(candidate: Candidate, plain: Candidate) -> bool:
    """Return whether a plan's kept nodes make its engine slow."""
    is_slow = SLOW * plain.milliseconds < candidate.milliseconds < inf
    return is_slow and len(candidate.keep) > 0


def quicker(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine seems faster than another, each timed alone."""
    return one.milliseconds < other.milliseconds < inf


def near(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine may be faster than another, each timed alone."""
    return one.milliseconds < NEAR * other.milliseconds < inf


def tf32_note(fastest: Candidate, best: Candidate) -> str:
    """Return a sentence on what TF32 gains for kept nodes."""
    assert fastest.excess is not None
    assert best.excess is not None
    return (
        "TF32 is allowed for the kept nodes of the engine that the search chose: a run takes "
        f"{number(fastest.milliseconds)} ms with it and {number(best.milliseconds)} ms "
        f"without; the error is {number(fastest.excess)} and {number(best.excess)} of what is "
        "allowed."
    )
