"""What both emulations, without and with fusion, predict of a plan before its engine is built."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.emulation.rounding import fp32_nodes
from halfwise.fixing.engines.attempts import Assignment, Candidate, Step
from halfwise.fixing.engines.band import Bands
from halfwise.fixing.engines.terms import Terms
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import Trials
from halfwise.graph.roles import Role
from halfwise.interruption import interruption, offered
from halfwise.records import Band, BuildOutcome, PrecisionProof
from halfwise.tensorrt.constrain import alike

WORK = 300.0
"""Total work for predictions, in inferences over the data: a fifth of the search's.
Beyond it nothing is predicted."""
SECONDS = 300.0
"""Total time, whatever work is left: as long as a few builds."""
BRIEFLY = 5.0
"""Seconds after Ctrl-C: the user is waiting for the last measurements."""

Attempt = Callable[[Assignment, Step, Terms], Candidate]
_Found = TypeVar("_Found")
_Other = TypeVar("_Other")


@dataclass
class Prediction:
    """Predicts the errors of engines.

    Attributes:
        planner: Has the emulation without fusion.
        inspect: Returns what an engine computes in; None if unknown.
        work: Budget for predictions, in inferences over the data.
        seconds: Time for them.
        always_tf32: Whether every build may use TF32.
        weak: Whether typing is weak.
        fp32: Compute nodes that the engine with nothing kept has in FP32 by itself.
    """

    planner: Planner
    inspect: Callable[[BuildOutcome, Planner], PrecisionProof | None]
    work: float = WORK
    seconds: float = SECONDS
    always_tf32: bool = False
    weak: bool = True
    fp32: Assignment = frozenset()
    _fused: Trials | None = None
    _bands: Bands | None = None

    def __post_init__(self) -> None:
        """Start with the full budget."""
        self._budget = self.planner.budget.beside(
            seconds=self.seconds, work=self.work * self.planner.unit
        )

    def learn(self, plain: BuildOutcome) -> None:
        """Read from the engine with nothing kept what it computes in FP32 by itself."""
        proof, roles = self.inspect(plain, self.planner), self.planner.roles
        if proof is None:
            return
        found = fp32_nodes(self.planner.case.network, proof.layers)
        found = frozenset(n for n in found if roles[n].role is Role.COMPUTE)
        self.fp32 = found - frozenset(self.planner.forced.lowered)

    def enough(self, keep: Assignment) -> bool | None:
        """Return whether a plan passes the emulation with fusion; None once the budget is spent."""
        return self._in_time(
            lambda: self._trials().evaluate(keep | self.fp32, confirm=True).passed, None
        )

    def band(self, keep: Assignment, *, tf32: bool = False) -> Band | None:
        """Return the error band that low precision explains in the engine of a plan.

        None if it is unknown, and once the budget is spent.

        Args:
            keep: Compute nodes requested in FP32.
            tf32: Whether kept nodes may compute in TF32.
        """
        return self._in_time(lambda: self._band(keep, tf32=tf32), None)

    def banded(self, candidate: Candidate) -> Candidate:
        """Return a candidate with the band of its plan on the present samples."""
        return replace(candidate, band=self._told(candidate.keep, candidate.terms))

    def before(self, attempt: Attempt) -> Attempt:
        """Return a function for `attempt` that predicts a plan's band before it is built.

        If samples join meanwhile, the band covers these too, as the error does.
        """

        def attempt_after(keep: Assignment, step: Step, terms: Terms) -> Candidate:
            samples = self.planner.trials.samples
            band = self._told(keep, terms)
            found = replace(attempt(keep, step, terms), band=band)
            return found if self.planner.trials.samples is samples else self.banded(found)

        return attempt_after

    def _told(self, keep: Assignment, terms: Terms) -> Band | None:
        """Return the band of a plan on its terms; None if kept nodes may still be low.

        Also None for the model without repairs.
        """
        if terms.loose or terms.unrepaired:
            return None
        tf32 = self.always_tf32 or terms.types_of(self.planner, keep).tf32
        return self.band(keep, tf32=tf32)

    def _band(self, keep: Assignment, *, tf32: bool) -> Band | None:
        bands = self._in_bands()
        low = bands.emulated(keep, self.fp32).band()
        more = bands.tf32() if tf32 else None
        if low is None or more is None:
            return low
        return low.model_copy(update={"most": low.most + more.most})

    def tf32(self) -> Band | None:
        """Return the error band that TF32 explains; None as in `band`.

        Also computed, briefly, after Ctrl-C: this engine is then likely to be delivered.
        """
        if not interruption().asked:
            return self._in_time(lambda: self._in_bands().tf32(), None)
        with offered():  # nobody asked for it
            budget = self.planner.budget.beside(seconds=BRIEFLY, work=inf)
            return self._in_time(lambda: self._in_bands().tf32(), None, budget)

    def beyond(self, keep: Assignment) -> bool:
        """Return whether both put a plan beyond the limit by more than chance explains.

        False once the budget is spent.
        """
        found = self._in_time(
            lambda: [t.evaluate(kept, confirm=True) for t, kept in self._both(keep)], ()
        )
        # A failed trial gives a lower bound: it ends at the first failing sample.
        if not found or any(outcome.passed for outcome in found):
            return False
        far = all(not alike(outcome.excess, 1.0) for outcome in found)
        return far or not alike(max(self.error(keep), 1.0), 1.0)

    def refuted(self, keep: Assignment, measured: float) -> bool:
        """Return whether an engine beats both predictions by more than chance explains."""
        error = self.error(keep)
        return measured < error and not alike(measured, error)

    def error(self, keep: Assignment) -> float:
        """Return the smaller predicted error, on all samples; 0 once the budget is spent."""
        return self._in_time(
            lambda: min(trials.excess(kept) for trials, kept in self._both(keep)), 0.0
        )

    def excess(self, keep: Assignment) -> float:
        """Return the error predicted by the emulation with fusion, on all samples."""
        return self._trials().excess(keep | self.fp32)

    def _both(self, keep: Assignment) -> Iterator[tuple[Trials, Assignment]]:
        yield self._trials(), keep | self.fp32
        yield self.planner.trials, keep

    def _in_time(
        self, work: Callable[[], _Found], otherwise: _Other, budget: Budget | None = None
    ) -> _Found | _Other:
        try:
            with (budget or self._budget).bounding():
                return work()
        except OutOfTime:
            return otherwise

    def _trials(self) -> Trials:
        """Return trials on the present samples."""
        if self._fused is None or self._fused.samples is not self.planner.trials.samples:
            self._fused, self._bands = self.planner.engine_trials(), None
        return self._fused

    def _in_bands(self) -> Bands:
        fused = self._trials()
        if self._bands is None:
            self._bands = Bands(self.planner, fused, weak=self.weak)
        return self._bands
