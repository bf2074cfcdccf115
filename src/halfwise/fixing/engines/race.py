"""Engines take turns until it is known which is faster, or that it hardly matters.

How one engine's time compares with another's is told by an interval: rounds are paired, since what
slows the GPU down slows both, and the median of their ratios lies between two of them.
"""

from collections.abc import Callable, Hashable, Sequence
from math import comb
from statistics import median
from typing import TypeVar

from halfwise.records import TimeRatio

ROUNDS = 7
"""Rounds in which all take turns; so many more, twice as often each time, for those in doubt. The
fewest from which an interval of `CONFIDENCE` can be had."""
LOOKS = 3
"""How often it is looked whether more are needed: after 7, 14 and 28 rounds."""
CONFIDENCE = 1 - 0.05 / LOOKS
"""Of one interval. What may be wrong at each look adds up to 5 % at most (Bonferroni)."""
MATTERS = 1.03
"""An engine that may be so many times as fast is worth more rounds."""

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
    engines: Sequence[_Key], lap: Callable[[_Key], float | None]
) -> dict[_Key, tuple[float, ...]]:
    """Return the times of engines, round by round, in ms; none of one that failed meanwhile.

    All run `ROUNDS` rounds. Those that may yet be faster than the fastest by what matters go on
    with it, until that is known of each, or the last look is over.

    Args:
        engines: What takes turns.
        lap: Runs one for a while and returns its time in ms; None where it fails.
    """
    found: dict[_Key, tuple[float, ...]] = dict.fromkeys(engines, ())
    running, rounds = list(engines), ROUNDS
    for _ in range(LOOKS):
        for _ in range(rounds - max(map(len, found.values()), default=0)):
            for engine in list(running):
                time = lap(engine)
                if time is None:
                    running.remove(engine)
                found[engine] = () if time is None else (*found[engine], time)
        running, rounds = _in_doubt(running, found), 2 * rounds
        if not running:
            break
    return found


def _in_doubt(running: Sequence[_Key], found: dict[_Key, tuple[float, ...]]) -> list[_Key]:
    """Return the fastest and those that may be faster by what matters; none where none may."""
    fastest = min(running, key=lambda engine: median(found[engine]), default=None)
    if fastest is None:
        return []
    doubtful = []
    for engine in running:
        ratio = time_ratio(found[engine], found[fastest])
        if engine != fastest and ratio is not None and ratio.low * MATTERS < 1:
            doubtful.append(engine)
    return [e for e in running if e == fastest or e in doubtful] if doubtful else []
