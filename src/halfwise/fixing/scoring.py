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
from halfwise.graph.casts import Rewritten
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
PlanFile = tuple[Assignment, Types, Assignment]
"""Kept nodes, their types, and nodes that no plan may choose but that are held."""
_OnSamples = tuple[PlanFile, tuple[str, ...]]


@dataclass(frozen=True)
class Given:
    """Result of a plan on held-out samples; attributes as in `Point`."""

    heldout: float | None
    rel_max: float
    nonfinite: bool
    scores: tuple[TaskScore, ...]


class Scoring:
    """Measures each plan once, and remembers the result.

    Attributes:
        planner: What runs plans.
        heldout: The unseen samples.
        inside: What looks for infinities inside.
    """

    def __init__(self, planner: Planner, heldout: HeldOut) -> None:
        """Take what runs plans, and the unseen samples."""
        self.planner, self.heldout = planner, heldout
        self.inside = Infinities(planner, self._look_at)
        self._given: dict[_OnSamples, Given] = {}
        self._casts: dict[PlanFile, int] = {}
        self._searched: dict[_OnSamples, bool] = {}
        self._as_file: dict[_OnSamples, bool | None] = {}

    @cached_property
    def recognised(self) -> tuple[Recognised, ...]:
        """The task recognised from the outputs; empty if a metric was given."""
        case = self.planner.case
        if case.metric is not None:
            return case.criterion.recognised if case.criterion.metric == AUTO else ()
        return recognise(self.planner.trials.references, case.input_shapes)

    @property
    def reference(self) -> tuple[TaskScore, ...]:
        """The score of FP32's own outputs, if any plan was scored."""
        left, references = self.heldout.left, self.heldout.left_references
        return self._scores(references, references, left.labels) if self._given else ()

    def given(self, kept: Assignment) -> Given | None:
        """Return the result of a plan on the present held-out samples; None if it was not run."""
        return self._given.get(self._unseen(kept))

    def casts(self, kept: Assignment) -> int | None:
        """Return the number of Casts in the mixed model of a measured plan, else None."""
        return self._casts.get(self.plan(kept))

    def needs(self, kept: Assignment) -> Assignment | None:
        """Return what a plan must add so that nothing is infinite inside; None if unknown."""
        guards = self.inside.known(kept)
        if guards is None:
            return None
        return frozenset[NodeName]().union(*map(self.planner.holdable, guards))

    def measure(self, kept: Assignment, *, original: bool = False) -> None:
        """Run the held-out samples, and count the Casts.

        Args:
            kept: The compute nodes in FP32.
            original: Whether this is the model itself, which has already run.
        """
        left, references = self.heldout.left, self.heldout.left_references
        if left and self.given(kept) is None:
            if original:
                results: Sequence[Computed] = references
            else:
                results = self.planner.trials.of(left, references).results(kept)
                self.planner.trials.evaluations += 1
            self._given[self._unseen(kept)] = self.given_of(results)
        if self.casts(kept) is None:
            self._casts[self.plan(kept)] = self.planner.rewrite(kept)[0].casts

    def take(self, kept: Assignment, rewritten: Rewritten, results: Sequence[Computed]) -> None:
        """Take the model of a plan, and its outputs of the held-out samples, if there are any."""
        self._casts[self.plan(kept)] = rewritten.casts
        if self.heldout.unseen:
            self._given[self._unseen(kept)] = self.given_of(results)

    def searched(self, kept: Assignment) -> bool | None:
        """Return whether a plan serves on the present search samples; None if unknown."""
        trials = self.planner.trials
        if trials.metric is not None and (error := trials.exact(kept)) is not None:
            return error <= 1
        if (tried := trials.tried.get(kept)) is not None and tried.nonfinite:
            return False
        return self._searched.get(self._seen(kept))

    def search(self, kept: Assignment) -> None:
        """Run the search samples, if it is unknown whether a plan serves there."""
        if self.searched(kept) is not None:
            return
        results = self.planner.trials.results(kept)
        self.planner.trials.excess(kept, results)
        self._take_searched(kept, results)

    def _look_at(self, kept: Assignment, results: Sequence[Computed]) -> None:
        scored = self.planner.case.metric is not None or self.recognised
        if scored and self.searched(kept) is None:
            self._take_searched(kept, results)

    def _take_searched(self, kept: Assignment, results: Sequence[Computed]) -> None:
        trials = self.planner.trials
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        sound = not failed and not any(map(has_new_nonfinite, trials.references, computed))
        found = self._scores(trials.references, computed, trials.samples.labels) if sound else ()
        # Held-out samples test what these do not.
        passed = sound and all(isfinite(s.value) and s.value >= s.required for s in found)
        self._searched[self._seen(kept)] = passed

    def as_file(self, kept: Assignment) -> bool | None:
        """Return whether a plan's file serves in ONNX Runtime; None if it was not run."""
        return self._as_file.get(self._unseen(kept))

    def run_file(self, kept: Assignment) -> None:
        """Run the file that would be written on the held-out samples, as the verdict does."""
        if self.filed(kept):
            return
        left, references = self.heldout.left, self.heldout.left_references
        planner, runtime = self.planner, self.planner.settings.runtime
        planner.budget.spend("judge", len(left))
        try:
            results = run_as_file(planner.rewrite(kept)[0].model, left, references, runtime=runtime)
        except (CaseError, RunFailed):
            self._as_file[self._unseen(kept)] = None
            return
        self.take_file(kept, results)

    def take_file(self, kept: Assignment, results: Sequence[Computed]) -> None:
        """Take the outputs of a plan's file on the held-out samples, if there are any."""
        if self.heldout.unseen:
            given = self.given_of(results)
            passed = not given.nonfinite and all(one.passed for one in given.scores)
            self._as_file[self._unseen(kept)] = passed if given.scores else None

    def filed(self, kept: Assignment) -> bool:
        """Return whether a plan's file was run on the present held-out samples, or refused."""
        return self._unseen(kept) in self._as_file

    def look_inside(self, kept: Assignment) -> None:
        """Look for harmful infinities in the mixed model of a plan, on the calibration samples."""
        if self.inside.known(kept) is None:
            self.planner.budget.spend("pass", len(self.planner.trials.samples))
            self.inside.guards(kept, self.planner.rewrite(kept)[0])

    def plan(self, kept: Assignment) -> PlanFile:
        """Return what distinguishes the file of a plan."""
        planner = self.planner
        return kept, planner.types_of(kept), planner.held_nodes - planner.choices

    def _unseen(self, kept: Assignment) -> _OnSamples:
        return self.plan(kept), self.heldout.left.ids

    def _seen(self, kept: Assignment) -> _OnSamples:
        return self.plan(kept), self.planner.trials.samples.ids

    def given_of(self, results: Sequence[Computed]) -> Given:
        """Return the result of given outputs of the present held-out samples, at least one."""
        left, references = self.heldout.left, self.heldout.left_references
        # At these limits an excess is the needed share of the largest value.
        share = Excess(Criterion(rel_max=1.0, agreement=0.0), totals(references))
        for reference, result in zip(references, results, strict=True):
            share.update(reference, result)
        own, trials = None, self.planner.trials.of(left, references)
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
        case = self.planner.case
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
