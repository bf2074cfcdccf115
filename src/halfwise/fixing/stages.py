"""The stages of a run: reported as they begin, and timed."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from halfwise.emulation.budget import WORK, sized
from halfwise.emulation.ort import give_back
from halfwise.interruption import interruption
from halfwise.metrics import usual
from halfwise.progress import Watcher
from halfwise.records import NodeName, TaskScore
from halfwise.wording import number, ratio

_JUDGING = ("baseline", "judge")
"""Stages that judge one model on the held-out samples, and take as long each time."""


class Stages:
    """Begins stages by name; a stage may begin several times.

    Attributes:
        seconds: Total time of each stage.
    """

    def __init__(self, watcher: Watcher, nodes: int = 0) -> None:
        """Take what stages are reported to, and the number of nodes; 0 if nothing depends on it."""
        self._watcher, self._nodes = watcher, nodes
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Report a stage, and time its block."""
        self._watcher.stage(name)
        started = time.monotonic()
        try:
            with self._expected(name):
                yield
        finally:
            # Graphs and their weights are cycles: else they would stay, for there are few
            # collections (cli). Only of objects made since the last stage: 10 ms.
            gc.collect(1)
            give_back()  # else what follows would need its memory on top of the last run's
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def _expected(self, name: str) -> AbstractContextManager[None]:
        kind = "judge" if name in _JUDGING else name
        # The others do not repeat themselves.
        is_new = kind == "judge" or name not in self.seconds
        return sized(kind, max(1, self._nodes)) if is_new and kind in WORK else nullcontext()


Assignment = frozenset[NodeName]

CLEARLY = 0.5
"""A better plan is reported if its cost above everything low is at most this share of the last
one's: a long search then takes few lines."""


class Best:
    """Reports improving plans: those that pass, and those that pass by their task metric.

    Attributes:
        serving: Price of the latter, see `Search`; None if the user said what is right.
    """

    def __init__(
        self,
        watcher: Watcher,
        everything: Assignment,
        price: Callable[[Assignment], float | None],
        kept: str = "in FP32",
    ) -> None:
        """Take the watcher, all candidates, a plan's price over all low, and the words for kept."""
        self._watcher, self._everything, self._price = watcher, everything, price
        self._candidates = len(everything)
        self._interruption, self._kept = interruption(), kept
        self._told: float | None = None
        self.serving: float | None = None

    def passed(self, kept: Assignment, error: float | None) -> None:
        """Report a plan that passes on all calibration samples if it is clearly better.

        Args:
            kept: Its compute nodes in FP32.
            error: Relative to what is allowed; None if a metric decides.
        """
        if len(kept) >= self._candidates:
            return
        self._interruption.ready = True
        price, fp32 = self._price(kept), self._price(self._everything)
        if price is not None and fp32 is not None and price >= fp32:
            return  # all of FP32 is better
        least = min(1.0, self._price(frozenset()) or 1.0)
        extra = float(len(kept)) if price is None else price - least
        # An empty plan ends the search, which reports it itself.
        if not kept or (self._told is not None and extra > CLEARLY * self._told):
            return
        self._told = extra
        error_told = "" if error is None else f", error {ratio(error)} what is allowed"
        self._watcher.note(f"best plan so far: {self._described(kept, price)}{error_told}")

    def serves(self, kept: Assignment, scores: tuple[TaskScore, ...]) -> None:
        """Report a plan whose task metrics pass on held-out samples, before the search."""
        self._interruption.ready = True
        told = ", ".join(
            f"{score.metric} {number(usual(score.metric, score.value))}" for score in scores
        )
        self._watcher.note(
            f"serves the task: {self._described(kept, self._price(kept))}, {told} on held-out "
            "samples"
        )

    def _described(self, kept: Assignment, price: float | None) -> str:
        cost = "" if price is None else f", {ratio(price)} the cost of everything low"
        return f"{len(kept)} of {self._candidates} nodes {self._kept}{cost}"
