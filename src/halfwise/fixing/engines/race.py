"""A race of engines in rounds, and the ratio of their times. It needs no engine."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import comb, inf
from statistics import median
from time import monotonic
from typing import TypeVar

from halfwise.records import (
    FULL_RUNGS,
    EngineRung,
    TimeRatio,
)

ROUNDS = 7
"""Rounds in which all take turns; the number doubles at each look for those in doubt. The
fewest from which an interval of `CONFIDENCE` can be had."""
LOOKS = 3
"""Maximum number of looks at whether more are needed: after 7, 14 and 28 rounds."""
CONFIDENCE = 1 - 0.05 / LOOKS
"""Confidence of one interval. The probabilities of error at all looks add up to at most 5 %
(Bonferroni), whatever decides whether there is another look: fewer looks only reduce it."""
MATTERS = 1.03
"""An engine that may be faster by this factor is worth more rounds."""
RACE_SHARE = 0.2
"""Share of the run's time so far that all rounds may take, except for the first `ROUNDS`, without
which there is no interval. Our choice."""

_Key = TypeVar("_Key", bound=Hashable)


def time_ratio(one: Sequence[float], other: Sequence[float]) -> TimeRatio | None:
    """Return the ratio of two engines' times, from paired rounds.

    The interval contains the median of the ratios with at least `CONFIDENCE`, whatever their
    distribution, if rounds are independent: the k-th smallest and the k-th largest of n do with 1 -
    2 P(X < k), where X is binomial with n and 1/2 (the sign test inverted; Thompson 1936, Hahn and
    Meeker 1991, section 5.2).

    Args:
        one: Its medians in ms (> 0), by round.
        other: Those of the other, in the same rounds; surplus rounds of either are ignored.

    Returns:
        The ratio; None with fewer than `ROUNDS` rounds.
    """
    ratios = sorted(a / b for a, b in zip(one, other, strict=False))
    left_out = _left_out(len(ratios))
    if left_out is None:
        return None
    return TimeRatio(low=ratios[left_out], high=ratios[-1 - left_out], rounds=len(ratios))


def _left_out(rounds: int) -> int | None:
    """Return how many of the smallest and largest the interval omits; None: too few rounds."""
    chance, found = 0.0, None
    for k in range(rounds // 2):
        chance += 2 * comb(rounds, k) / 2**rounds
        if chance > 1 - CONFIDENCE:
            break
        found = k
    return found


def race(
    engines: Sequence[_Key],
    lap: Callable[[_Key], float | None],
    effect: Mapping[_Key, EngineRung] | None = None,
    seconds: float = inf,
    clock: Callable[[], float] = monotonic,
) -> dict[_Key, tuple[float, ...]]:
    """Return the times of engines by round, in ms; empty for one that failed meanwhile.

    All run `ROUNDS` rounds. Those that may still be faster than the fastest by a relevant amount
    continue with it, until each is decided, the time is over, or the last look has come. That look
    includes only engines whose median differs by a relevant amount: for others it hardly matters
    which is faster.

    Args:
        engines: The engines.
        lap: Runs one for a while and returns its time in ms; None if it fails.
        effect: The rung whose outputs each gives; an FP32 or TF32 engine and one with the same
            outputs need no more rounds between them. None: each has different outputs.
        seconds: Time for all rounds (≥ 0): further ones start only if they are likely to end within
            it, at the previous pace.
        clock: Returns the time, s.
    """
    found: dict[_Key, tuple[float, ...]] = dict.fromkeys(engines, ())
    running, rounds, started = list(engines), ROUNDS, clock()
    for look in range(1, LOOKS + 1):
        for _ in range(rounds - max(map(len, found.values()), default=0)):
            for engine in list(running):
                time = lap(engine)
                if time is None:
                    running.remove(engine)
                found[engine] = () if time is None else (*found[engine], time)
        ran = len(running) * rounds
        running = _in_doubt(running, found, effect or {}, MATTERS if look == LOOKS - 1 else 1.0)
        # Estimate from the rounds so far: as many again are to come for those that continue.
        taken = clock() - started
        if not running or taken * (1 + len(running) * rounds / ran) > seconds:
            break
        rounds *= 2
    return found


def _in_doubt(
    running: Sequence[_Key],
    found: dict[_Key, tuple[float, ...]],
    effect: Mapping[_Key, EngineRung],
    apart: float,
) -> list[_Key]:
    """Return the fastest and those that may beat it by a relevant amount; empty if none may.

    Engines with medians nearer than `apart` times that of the fastest are left out.
    """
    fastest = min(running, key=lambda engine: median(found[engine]), default=None)
    if fastest is None:
        return []
    doubtful = []
    for engine in running:
        ratio = time_ratio(found[engine], found[fastest])
        alike = effect.get(engine) in FULL_RUNGS and effect[engine] == effect.get(fastest)
        near = median(found[engine]) < apart * median(found[fastest])
        if (
            engine != fastest
            and not alike
            and not near
            and ratio is not None
            and ratio.low * MATTERS < 1
        ):
            doubtful.append(engine)
    return [e for e in running if e == fastest or e in doubtful] if doubtful else []
