"""Engines take turns in rounds, and the ratio of two engines' times. It needs no engine."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import comb
from typing import TypeVar

from halfwise.records import TimeRatio

ROUNDS = 7
"""Rounds in which all take turns: the fewest from which an interval of `CONFIDENCE` can be had."""
CONFIDENCE = 0.98
"""Confidence of the interval of a ratio."""

_Key = TypeVar("_Key", bound=Hashable)
_Engine = TypeVar("_Engine")


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
    trimmed = _trimmed(len(ratios))
    if trimmed is None:
        return None
    return TimeRatio(low=ratios[trimmed], high=ratios[-1 - trimmed], rounds=len(ratios))


def _trimmed(rounds: int) -> int | None:
    """Return how many of the smallest and largest the interval omits; None: too few rounds."""
    chance, most = 0.0, None
    for k in range(rounds // 2):
        chance += 2 * comb(rounds, k) / 2**rounds
        if chance > 1 - CONFIDENCE:
            break
        most = k
    return most


def race(
    engines: Mapping[_Key, _Engine], lap: Callable[[_Engine], float | None]
) -> dict[_Key, tuple[float, ...]]:
    """Return the times of engines by round, in ms; empty for one that failed meanwhile.

    Args:
        engines: The engines.
        lap: Runs one for a while and returns its time in ms; None if it fails.
    """
    times: dict[_Key, list[float | None]] = {key: [] for key in engines}
    for _ in range(ROUNDS):
        for key, engine in engines.items():
            if None not in times[key]:
                times[key].append(lap(engine))
    return {
        key: tuple(t for t in laps if t is not None) if None not in laps else ()
        for key, laps in times.items()
    }
