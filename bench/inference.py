"""Cases loaded as on the command line, and timings side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.runs import ROOT, Subject
from halfwise.case import Case
from halfwise.metrics import Outputs
from halfwise.options.loading import load_case
from halfwise.options.options import Data
from halfwise.records import Criterion

MIN_ROUNDS, MAX_ROUNDS = 5, 400


def loaded(subject: Subject) -> Case:
    """Return the model and all of its samples, none held out."""
    model, inputs = (ROOT / Path(p) for p in (subject.model, subject.inputs))
    return load_case(model, Data(str(inputs)), Criterion(), split=False)


@dataclass(frozen=True)
class Times:
    """Times of one call in seconds.

    Attributes:
        median: The median, which counts.
        fastest: The smallest, close to that of an idle machine.
    """

    median: float
    fastest: float


def timed(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Times]:
    """Return the times of each call; each round makes every call once, in turn.

    So a slow phase of the machine affects all of them, and ratios stay valid.

    Args:
        calls: Calls to time, by name; each is made once before.
        seconds: How long to go on, within 5 to 400 rounds.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and time.perf_counter() > end:
            break
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {n: Times(statistics.median(values), min(values)) for n, values in times.items()}


def difference(one: Outputs, other: Outputs) -> float:
    """Return the largest absolute difference; inf if only one side is NaN or infinite."""
    return max(_difference(one[name], other[name]) for name in one)


def _difference(a: NDArray[np.generic], b: NDArray[np.generic]) -> float:
    if a.shape != b.shape:
        return float("inf")
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(x - y))
    # NaN where one side is NaN, or both are infinite with different signs.
    distance[np.isnan(distance)] = np.inf
    return float(distance.max(initial=0.0))
