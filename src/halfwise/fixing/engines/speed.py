"""When an engine is slow, and when looking for another plan cannot make it the fastest."""

from collections.abc import Callable
from math import inf

from halfwise.fixing.engines.attempts import Assignment, Candidate
from halfwise.fixing.engines.terms import WITH_TF32, Terms
from halfwise.records import ProvenEngine, Spared
from halfwise.wording import number

FUTILE = 1.07
"""Where the low format with nothing kept, and TF32 allowed, takes so many times as long as an FP32
or TF32 engine that is proven, no plan is looked for: what is kept gains no speed. Of the 15 mixed
engines on an H200 in `bench/results/gpu_*.json` one was 6 % faster than the one with nothing kept,
by chance (another build of its plan took 1.3 times as long), and no other one more than 1 %."""
NEAR = 1.05
"""Engines that were timed alone, at different times, and differ by less take turns before one of
them counts as slower. Our choice: builds of one plan with the same kernels differed by up to 2 %
on an H200."""
SLOW = 1.1
"""A mixed engine that takes longer than this many times plain FP16 is worth wider islands."""


Attempt = Callable[[Assignment, str, Terms], Candidate]


def futile(first: Candidate, plain: Candidate, full: ProvenEngine | None) -> Spared | None:
    """Return that the low format is slower than an engine that is proven; None where it is not.

    In strong typing nothing is foretold: there what is kept may have faster kernels.

    Args:
        first: The first plan that was built.
        plain: The engine with nothing kept.
        full: The fastest FP32 or TF32 engine that is proven; None without.
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
    """Return the build to go on from, and why not at all; None where a plan may be the fastest.

    Where an engine with TF32 is faster than all that is low, low kernels may lack speed where TF32
    has it. Then TF32 is allowed: with nothing kept all kernels are free. Where that engine is slow
    too no plan is looked for; where it is off, the search goes on from the plan with TF32.

    Args:
        first: The first plan that was built.
        plain: The engine with nothing kept.
        full: The fastest FP32 or TF32 engine that is proven; None without.
        attempt: Builds and measures a plan; told why, and on which terms.
    """
    if futile(first, plain, full) is None:
        return first, None
    freest = attempt(frozenset(), "plain low precision with TF32", WITH_TF32)
    spared = futile(freest, freest, full)
    if spared is not None or freest.passed or not first.keep:
        return freest, spared
    return attempt(first.keep, "the same plan with TF32", WITH_TF32), None


def slow(candidate: Candidate, plain: Candidate) -> bool:
    """Return whether what a plan keeps makes its engine slow."""
    is_slow = SLOW * plain.milliseconds < candidate.milliseconds < inf
    return is_slow and len(candidate.keep) > 0


def quicker(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine seems faster than another, as each was timed alone."""
    return one.milliseconds < other.milliseconds < inf


def near(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine may be faster than another, as each was timed alone."""
    return one.milliseconds < NEAR * other.milliseconds < inf


def tf32_note(fastest: Candidate, best: Candidate) -> str:
    """Return what TF32 for what is kept gains, a sentence."""
    assert fastest.excess is not None
    assert best.excess is not None
    return (
        "TF32 is allowed for the kept nodes of the engine that the search chose: a run takes "
        f"{number(fastest.milliseconds)} ms with it and {number(best.milliseconds)} ms without, "
        f"the error is {number(fastest.excess)} and {number(best.excess)} of what is allowed."
    )
