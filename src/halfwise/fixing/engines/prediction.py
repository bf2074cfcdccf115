"""What emulation predicts of an engine: without fusion, as plans are tried, and with fusion."""

from collections.abc import Callable
from typing import TypeVar

from halfwise.emulation.budget import OutOfTime
from halfwise.fixing.bench import Bench
from halfwise.fixing.emulating import predicting
from halfwise.fixing.engines.plan import Assignment
from halfwise.fixing.plan.plan import Plan
from halfwise.fixing.space import LowSpace
from halfwise.records import ALIKE

WORK = 300.0
"""Total work for predictions, in inferences over the data: a fifth of the search's.
Beyond it nothing is predicted."""
SECONDS = 300.0
"""Total time, whatever work is left: as long as a few builds."""

_Found = TypeVar("_Found")


class Prediction:
    """Predicts the errors of engines on the present samples of a search."""

    def __init__(self, space: LowSpace, *, work: float = WORK, seconds: float = SECONDS) -> None:
        """Take what has the emulation without fusion.

        Args:
            space: The plans.
            work: Budget for predictions, in inferences over the data.
            seconds: Time for them.
        """
        self._space = space
        self._budget = space.budget.beside(seconds=seconds, work=work * space.unit)
        self._fused: Bench[Plan] | None = None

    def is_enough(self, keep: Assignment, own: Assignment) -> bool:
        """Return whether a plan passes with fusion; false once the budget is spent.

        Args:
            keep: Compute nodes in FP32.
            own: Those that the engine with nothing kept has in FP32 by itself.
        """
        return self._in_time(
            lambda: self._bench.evaluate(self._space.fresh(keep | own)).passed, False
        )

    def is_beyond(self, keep: Assignment, own: Assignment) -> bool:
        """Return whether both put a plan beyond the limit by more than chance explains.

        False once the budget is spent; arguments as for `is_enough`.
        """

        def beyond() -> bool:
            fused, space = self._bench, self._space
            found = [
                fused.evaluate(space.fresh(keep | own)),
                space.bench.evaluate(space.plan(keep)),
            ]
            # A failed trial gives a lower bound: it ends at the first failing sample.
            return all(trial.excess > ALIKE for trial in found)

        return self._in_time(beyond, False)

    def fused(self, keep: Assignment, own: Assignment) -> float | None:
        """Return the error with fusion, on all samples; None once the budget is spent."""
        return self._in_time(lambda: self._bench.excess(self._space.fresh(keep | own)), None)

    def _in_time(self, work: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            with self._budget.bounding():
                return work()
        except OutOfTime:
            return otherwise

    @property
    def _bench(self) -> Bench[Plan]:
        """Evaluates plans with fusion on the present samples."""
        if self._fused is None or self._fused.samples is not self._space.bench.samples:
            self._fused = predicting(self._space)
        return self._fused
