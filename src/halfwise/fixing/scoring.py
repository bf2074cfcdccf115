"""The results of plans on held-out samples, and whether anything is infinite inside them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.infinities import Infinities
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import has_new_nonfinite
from halfwise.fixing.types import Types
from halfwise.judging.file_run import run_as_file
from halfwise.metrics import (
    AUTO,
    Computed,
    Excess,
    Outputs,
    recognise,
    scores,
    support_of,
    task_scores,
    totals,
    untested_task,
)
from halfwise.records import Criterion, NodeName, Recognised, TaskScore

Assignment = frozenset[NodeName]
_Plan = tuple[Assignment, Types]


@dataclass(frozen=True)
class Given:
    """Result of a plan on held-out samples; attributes as in `Point`."""

    heldout: float | None
    rel_max: float
    nonfinite: bool
    scores: tuple[TaskScore, ...]


class Scoring:
    """Measures each plan once, and remembers the result."""

    def __init__(self, planner: Planner, heldout: HeldOut) -> None:
        """Take what runs plans, and the unseen samples."""
        self._planner, self._heldout = planner, heldout
        self._inside = Infinities(planner)
        # A plan is its kept nodes, and those of them that are BF16.
        self._given: dict[tuple[_Plan, tuple[str, ...]], Given] = {}
        self._casts: dict[_Plan, int] = {}
        self._needs: dict[tuple[_Plan, tuple[str, ...]], Assignment] = {}
        self._searched: dict[tuple[_Plan, tuple[str, ...]], bool] = {}
        self._as_file: dict[tuple[_Plan, tuple[str, ...]], bool | None] = {}

    @cached_property
    def recognised(self) -> tuple[Recognised, ...]:
        """The task recognised from the outputs; empty if a metric was given."""
        case = self._planner.case
        if case.metric is not None:
            return case.criterion.recognised if case.criterion.metric == AUTO else ()
        return recognise(self._planner.trials.references, case.input_shapes)

    @property
    def reference(self) -> tuple[TaskScore, ...]:
        """The score of FP32's own outputs, if any plan was scored."""
        left, references = self._heldout.left, self._heldout.left_references
        return self._scores(references, references, left.labels) if self._given else ()

    def given(self, kept: Assignment) -> Given | None:
        """Return the result of a plan on the present held-out samples; None if it was not run."""
        return self._given.get((self._plan(kept), self._heldout.left.ids))

    def casts(self, kept: Assignment) -> int | None:
        """Return the number of Casts in the mixed model of a measured plan, else None."""
        return self._casts.get(self._plan(kept))

    def needs(self, kept: Assignment) -> Assignment | None:
        """Return what a plan must add so that nothing is infinite inside; None if unknown."""
        return self._needs.get(self._here(kept))

    def measure(self, kept: Assignment, *, original: bool = False) -> None:
        """Run the held-out samples, and count the Casts.

        Args:
            kept: The compute nodes in FP32.
            original: Whether this is the model itself, which has already run.
        """
        left, references = self._heldout.left, self._heldout.left_references
        plan = self._plan(kept)
        if left and (plan, left.ids) not in self._given:
            if original:
                results: Sequence[Computed] = references
            else:
                results = self._planner.trials.of(left, references).results(kept)
                self._planner.trials.evaluations += 1
            self._given[plan, left.ids] = self.given_of(results)
        if plan not in self._casts:
            self._casts[plan] = self._planner.rewrite(kept)[0].casts

    def searched(self, kept: Assignment) -> bool | None:
        """Return whether a plan serves on the present search samples; None if unknown."""
        trials = self._planner.trials
        if trials.metric is not None and (error := trials.exact(kept)) is not None:
            return error <= 1
        return self._searched.get(self._here(kept))

    def search(self, kept: Assignment) -> None:
        """Run the search samples, which also gives a plan's error on all of them."""
        if self.searched(kept) is not None:
            return
        trials = self._planner.trials
        results = trials.results(kept)
        trials.excess(kept, results)
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        sound = not failed and not any(map(has_new_nonfinite, trials.references, computed))
        found = self._scores(trials.references, computed, trials.samples.labels) if sound else ()
        # Held-out samples test what these do not.
        passed = sound and all(isfinite(s.value) and s.value >= s.required for s in found)
        self._searched[self._here(kept)] = passed

    def as_file(self, kept: Assignment) -> bool | None:
        """Return whether a plan's file serves in ONNX Runtime; None if it was not run."""
        return self._as_file.get((self._plan(kept), self._heldout.left.ids))

    def run_file(self, kept: Assignment) -> None:
        """Run the file that would be written on the held-out samples, as the verdict does."""
        left, references = self._heldout.left, self._heldout.left_references
        here = self._plan(kept), left.ids
        if here in self._as_file:
            return
        planner, runtime = self._planner, self._planner.settings.runtime
        planner.budget.spend("judge", len(left))
        try:
            results = run_as_file(planner.rewrite(kept)[0].model, left, references, runtime=runtime)
        except (CaseError, RunFailed):
            self._as_file[here] = None
            return
        given = self.given_of(results)
        self._as_file[here] = not given.nonfinite and all(one.passed for one in given.scores)

    def look_inside(self, kept: Assignment) -> None:
        """Look for harmful infinities in the mixed model of a plan, on the calibration samples."""
        planner, here = self._planner, self._here(kept)
        if here not in self._needs:
            planner.budget.spend("pass", len(planner.trials.samples))
            guards = self._inside.guards(planner.rewrite(kept)[0])
            self._needs[here] = frozenset[NodeName]().union(*map(planner.holdable, guards))

    def _plan(self, kept: Assignment) -> _Plan:
        return kept, self._planner.types_of(kept)

    def _here(self, kept: Assignment) -> tuple[_Plan, tuple[str, ...]]:
        return self._plan(kept), self._planner.trials.samples.ids

    def given_of(self, results: Sequence[Computed]) -> Given:
        """Return the result of given outputs of the present held-out samples, at least one."""
        left, references = self._heldout.left, self._heldout.left_references
        # At these limits an excess is the needed share of the largest value.
        share = Excess(Criterion(rel_max=1.0, agreement=0.0), totals(references))
        for reference, result in zip(references, results, strict=True):
            share.update(reference, result)
        own, trials = None, self._planner.trials.of(left, references)
        with suppress(CaseError):  # a few samples may be too few for a metric
            own = trials.excess_of(results) * trials.factor
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        return Given(
            heldout=own,
            rel_max=share.final(),
            nonfinite=failed or any(map(has_new_nonfinite, references, computed)),
            scores=() if failed else self._scores(references, computed, left.labels),
        )

    def _scores(
        self,
        references: Sequence[Outputs],
        computed: Sequence[Outputs],
        labels: Sequence[Any] | None,
    ) -> tuple[TaskScore, ...]:
        """Return a plan's scores by the given metric, else by those of the recognised task."""
        case = self._planner.case
        name, drop = case.criterion.metric, case.criterion.metric_drop
        with suppress(CaseError):  # a few samples may be too few for a metric
            if case.metric is None or name in (None, AUTO):
                return task_scores(self.recognised, references, computed, labels)
            before, after = scores(name, case.metric, references, computed, labels)
            untested = bool(untested_task(case.criterion, case.metric, references, labels))
            passed = isfinite(after) and after >= before - drop
            rests, unit = support_of(case.criterion, references, labels)
            one = TaskScore(
                metric=name,
                outputs=tuple(references[0]),
                value=after,
                required=before - drop,
                passed=passed and not untested,
                untested=untested,
                evidence=rests,
                unit=unit,
            )
            return (one,)
        return ()
