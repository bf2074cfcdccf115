"""Engines take turns until it is known which is faster, or that it hardly matters.

How one engine's time compares with another's is told by an interval: rounds are paired, since what
slows the GPU down slows both, and the median of their ratios lies between two of them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import comb, inf
from statistics import median
from time import monotonic
from typing import TypeVar

from halfwise.records import FULL_RUNGS, EngineRung, TimeRatio

ROUNDS = 7
"""Rounds in which all take turns; so many more, twice as often each time, for those in doubt. The
fewest from which an interval of `CONFIDENCE` can be had."""
LOOKS = 3
"""How often it is looked at most whether more are needed: after 7, 14 and 28 rounds."""
CONFIDENCE = 1 - 0.05 / LOOKS
"""Of one interval. What may be wrong at each look adds up to 5 % at most (Bonferroni), whatever
decides whether there is another look: fewer of them only make it less."""
MATTERS = 1.03
"""An engine that may be so many times as fast is worth more rounds."""
RACE_SHARE = 0.2
"""Of the time that a run took before: what all rounds may take, the first `ROUNDS` apart, without
which there is no interval. Our choice."""

_Key = TypeVar("_Key", bound=Hashable)


def time_ratio(one: Sequence[float], other: Sequence[float]) -> TimeRatio | None:
    """Return the time of one engine over that of another, as paired rounds show it.

    The interval holds the median of the ratios with at least `CONFIDENCE`, whatever their
    distribution, if one round does not depend on another: the k-th smallest and the k-th largest of
    n do with 1 - 2 P(X < k), where X is binomial with n and 1/2 (the sign test turned round;
    Thompson 1936, Hahn and Meeker 1991, section 5.2).

    Args:
        one: Its medians in ms (> 0), round by round.
        other: Those of the other, in the same rounds; what one has more of is left out.

    Returns:
        The ratio; None where there are fewer than `ROUNDS`.
    """
    ratios = sorted(a / b for a, b in zip(one, other, strict=False))
    left_out = _left_out(len(ratios))
    if left_out is None:
        return None
    return TimeRatio(low=ratios[left_out], high=ratios[-1 - left_out], rounds=len(ratios))


def _left_out(rounds: int) -> int | None:
    """Return how many of the smallest and of the largest the interval leaves out; None: too few."""
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
    """Return the times of engines, round by round, in ms; none of one that failed meanwhile.

    All run `ROUNDS` rounds. Those that may yet be faster than the fastest by what matters go on
    with it, until that is known of each, the time is over, or the last look. At that only those
    come whose median differs by what matters: of others it hardly does which is faster.

    Args:
        engines: What takes turns.
        lap: Runs one for a while and returns its time in ms; None where it fails.
        effect: The rung whose outputs each gives; an FP32 or TF32 engine and what gives the same
            need no more rounds between them. None: each gives others.
        seconds: Time for all rounds (≥ 0): further ones begin only if they are likely to end
            within it, at the pace of those before.
        clock: Tells the time, s.
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
        # What has run so far took so long; as many rounds again, of those that go on, are to come.
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
    """Return the fastest and those that may be faster by what matters; none where none may.

    Those with medians nearer than `apart` times that of the fastest are left out.
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
