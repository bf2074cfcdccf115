"""What both emulations, without fusion and with it, say of a plan before its engine is built."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from halfwise.emulation.bounded import OutOfTime
from halfwise.emulation.rounding import fp32_nodes
from halfwise.fixing.engines.attempts import Assignment
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import Trials
from halfwise.graph.roles import Role, Roles
from halfwise.records import BuildOutcome, PrecisionProof

WORK = 300.0
"""What predictions may take in all, in inferences over the data: a fifth of what the search may.
Then nothing is foretold."""
SECONDS = 300.0
"""Likewise, whatever work is left: what a few builds take."""

_Found = TypeVar("_Found")
_Other = TypeVar("_Other")


@dataclass
class Prediction:
    """Predicts the errors of engines in weak typing.

    Attributes:
        planner: Has the emulation without fusion.
        inspect: Returns what an engine computes in; None where it cannot be told.
        work: Work for predictions, in inferences over the data.
        seconds: Time for them.
        fp32: Compute nodes that the engine with nothing kept computes in FP32 by itself.
    """

    planner: Planner
    inspect: Callable[[BuildOutcome, Roles], PrecisionProof | None]
    work: float = WORK
    seconds: float = SECONDS
    fp32: Assignment = frozenset()
    _fused: Trials | None = None

    def __post_init__(self) -> None:
        """Begin with all of the budget."""
        self._budget = self.planner.budget.beside(
            seconds=self.seconds, work=self.work * self.planner.unit
        )

    def learn(self, plain: BuildOutcome) -> None:
        """Take from the engine with nothing kept what it computes in FP32 by itself."""
        roles = self.planner.roles
        proof = self.inspect(plain, roles)
        if proof is None:
            return
        found = fp32_nodes(self.planner.case.network, proof.layers)
        found = frozenset(n for n in found if roles[n].role is Role.COMPUTE)
        self.fp32 = found - frozenset(self.planner.forced.lowered)

    def enough(self, keep: Assignment) -> bool | None:
        """Return whether a plan passes by the emulation with fusion; None when it is spent."""
        return self._in_time(
            lambda: self._trials().evaluate(keep | self.fp32, confirm=True).passed, None
        )

    def beyond(self, keep: Assignment, limit: float) -> bool:
        """Return whether both predict an error beyond `limit` (≥ 1); false when it is spent."""
        found = self._in_time(
            lambda: [t.evaluate(kept, confirm=True) for t, kept in self._both(keep)], ()
        )
        # Of a plan that fails, a trial tells a lower bound: it ends at the first sample that does.
        if not found or any(outcome.passed for outcome in found):
            return False
        return all(outcome.excess > limit for outcome in found) or self.error(keep) > limit

    def error(self, keep: Assignment) -> float:
        """Return the smaller error that both predict, on all samples; 0 when it is spent."""
        return self._in_time(
            lambda: min(trials.excess(kept) for trials, kept in self._both(keep)), 0.0
        )

    def excess(self, keep: Assignment) -> float:
        """Return the error that the emulation with fusion predicts, on all samples."""
        return self._trials().excess(keep | self.fp32)

    def _both(self, keep: Assignment) -> Iterator[tuple[Trials, Assignment]]:
        yield self._trials(), keep | self.fp32
        yield self.planner.trials, keep

    def _in_time(self, work: Callable[[], _Found], otherwise: _Other) -> _Found | _Other:
        try:
            with self._budget.bounding():
                return work()
        except OutOfTime:
            return otherwise

    def _trials(self) -> Trials:
        """Return trials on the samples that there are now."""
        if self._fused is None or self._fused.samples is not self.planner.trials.samples:
            self._fused = self.planner.fused_trials()
        return self._fused
