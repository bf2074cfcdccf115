"""The best plan so far: reported during the search, and kept on Ctrl-C."""

from collections.abc import Callable

from halfwise.interruption import interruption
from halfwise.metrics import usual
from halfwise.progress import Watcher
from halfwise.records import NodeName, TaskScore
from halfwise.wording import number, ratio

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

    def passed(self, kept: Assignment, error: float | None, *, whole: bool) -> None:
        """Report a plan that passes on all calibration samples if it is clearly better.

        Args:
            kept: Its compute nodes in FP32.
            error: Relative to what is allowed; None if a metric decides.
            whole: Whether it ran on all of them. If not, nothing is reported; the search tries such
                plans on all samples at its end.
        """
        if len(kept) >= self._candidates:
            return
        self._interruption.ready = True
        if not whole:
            return
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
