"""Whether a plan is right: one memo and one budget for all who ask."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf, isinf, isnan
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from halfwise.case import Sample, Samples
from halfwise.errors import RunFailed
from halfwise.metrics import (
    AUTO,
    Computed,
    Excess,
    Metric,
    Outputs,
    OutputTotals,
    loss_of_one,
    metric_loss,
    others_of,
    shortfall_of_one,
    totals,
)
from halfwise.metrics.untested import may_fail
from halfwise.progress import Watcher
from halfwise.records import Criterion, replace

Depth = Literal[
    "few",
    "samples",
    "all",
    "inside",
    "alone",
    "emulated",
    "file",
    "fp32",
]
"""How closely a plan is looked at.

"few": on the samples that probes ask, until they fail; "samples": on all of the search, likewise;
"all": its error on all of them; "alone": its largest error on the hardest ones; "inside": whether
its model is infinite inside there; "emulated": the verdict on its emulation, on held-out samples;
"file": what runners make of its file; "fp32":
whether a target has the model in FP32 right.
"""

FEW = 4
"""Samples that trials ask at first, besides as many as may fail. Our choice."""

P = TypeVar("P", bound=Hashable)
P_contra = TypeVar("P_contra", bound=Hashable, contravariant=True)
Finding = TypeVar("Finding")


class Judge(Protocol[P_contra]):
    """Runs plans: an emulation, a runtime, a device."""

    def prepare(self, plan: P_contra, /) -> None:
        """Load what runs a plan; raises `CaseError` if it cannot be loaded."""

    def run(self, sample: Sample, plan: P_contra, /) -> Outputs:
        """Return the outputs of a plan; raises `RunFailed`."""

    def release(self) -> None:
        """Free what was loaded."""


class Outcome(Struct, frozen=True):
    """What a bench knows of a plan.

    Attributes:
        passed: Whether every tried sample passed.
        excess: Error relative to what a trial may use; above 1 fails. A lower bound if one sample
            ended the trial, or if only few were asked.
        sample: Index of that sample, or None.
        nonfinite: Whether it failed with NaN or infinities that are not in the reference.
        not_run: Why the sample could not be run, which says nothing of the plan; "" if it was.
    """

    passed: bool
    excess: float
    sample: int | None = None
    nonfinite: bool = False
    not_run: str = ""


class Tolerance(Struct, frozen=True):
    """What a trial may use.

    Attributes:
        criterion: Tolerances.
        metric: Task metric; if given, it alone decides.
        factor: Fraction of the tolerance that a trial may use.
    """

    criterion: Criterion
    metric: Metric | None = None
    factor: float = 1.0

    @property
    def of_samples(self) -> Criterion:
        """What orders samples: a metric has no value for one, so the default tolerance does."""
        return Criterion() if self.metric else self.criterion

    def spare(self, samples: int) -> int:
        """Return how many samples may fail: as many as would show the share that may."""
        share = self.criterion.failing
        return 0 if share is None else may_fail(samples, share)

    def excess(
        self, results: Iterable[Computed], samples: Samples, references: Sequence[Outputs]
    ) -> float:
        """Return the error of outputs of all samples, ≥ 0, relative to what a trial may use.

        Where a share of inputs may fail, the worst samples do not count.

        Raises:
            CaseError: the samples are too few for the metric.
        """
        return Trial(self, samples, references, totals(references)).of(results)

    def of_one(self, reference: Outputs, result: Outputs) -> float:
        """Return the error of a sample's outputs, ≥ 0, relative to what a trial may use."""
        if self.metric is None:
            excess = Excess(self.criterion, totals([reference]))
            excess.update(reference, result)
            return excess.final() / self.factor
        if has_new_nonfinite(reference, result):
            return inf
        worst = loss_of_one(self.criterion, self.metric, reference, result, None)
        others = others_of(self.criterion.recognised, reference)
        if self.criterion.metric == AUTO and others:
            rest = ({name: outputs[name] for name in others} for outputs in (reference, result))
            worst = max(worst, Tolerance(Criterion()).of_one(*rest))
        return worst / self.factor


class Trial:
    """The error of a plan, sample by sample, relative to what a trial may use."""

    def __init__(
        self,
        tolerance: Tolerance,
        samples: Samples,
        references: Sequence[Outputs],
        scales: Mapping[str, OutputTotals],
    ) -> None:
        """Take what a plan may use, and all samples, of which none was run; `scales`: `totals`."""
        self._tolerance, self._samples, self._references = tolerance, samples, references
        self._spare = tolerance.spare(len(samples))
        self._excess = Excess(tolerance.criterion, scales, self._spare)
        # With a metric: the outputs that it can judge, and what each sample uses by itself.
        self._outputs, self._alone = dict[int, Outputs](), dict[int, float]()
        self._added = 0

    def add(self, index: int, result: Computed) -> float:
        """Add the result of a sample; return a lower bound of the error, above 1 if all fails."""
        self._added += 1
        if self._tolerance.metric is None:
            self._excess.update(self._references[index], result)
            return self._excess.value / self._tolerance.factor
        self._alone[index] = self._used_alone(index, result)
        return 0.0 if self._spare else self._alone[index]

    def of(self, results: Iterable[Computed], indices: Iterable[int] | None = None) -> float:
        """Add the results of samples, of all without indices; return the error, see `error`."""
        asked = range(len(self._samples)) if indices is None else indices
        for i, result in zip(asked, results, strict=True):
            self.add(i, result)
        return self.error()

    def _used_alone(self, index: int, result: Computed) -> float:
        reference, of = self._references[index], self._tolerance
        if isinstance(result, RunFailed) or has_new_nonfinite(reference, result):
            return inf
        self._outputs[index] = result
        labels, metric = self._samples.labels, of.metric
        if self._spare and metric is not None:
            label = None if labels is None else [labels[index]]
            return loss_of_one(of.criterion, metric, reference, result, label)
        if labels is None:
            return shortfall_of_one(of.criterion.recognised, reference, result) / of.factor
        return 0.0

    def error(self) -> float:
        """Return the error, ≥ 0: a lower bound until all samples were added, as if others had none.

        With a metric it is what that loses: inf for NaN, and for any loss where none is allowed.

        Raises:
            CaseError: they are too few for the metric.
        """
        of = self._tolerance
        if of.metric is None:
            is_whole = self._added == len(self._samples)
            return (self._excess.final() if is_whole else self._excess.value) / of.factor
        order = sorted(self._alone, key=lambda i: self._alone[i])
        last = max(0, len(order) - self._spare)  # fewer may have been added than may fail
        counted, spared = order[:last], order[last:]
        if not self._outputs.keys() >= {*counted}:
            return inf
        rest = [i for i in range(len(self._samples)) if i not in spared]
        references = [self._references[i] for i in rest]
        outputs = [self._outputs.get(i, self._references[i]) for i in rest]
        loss = metric_loss(of.metric, references, outputs, self._samples.select(rest).labels)
        if not loss > 0:
            return inf if isnan(loss) else 0.0
        allowed = of.criterion.metric_drop * of.factor
        return loss / allowed if allowed else inf


class Bench(Generic[P]):
    """Evaluates plans on the samples of a search, each once; samples can join.

    Attributes:
        judge: Runs plans.
        samples: The samples.
        references: Reference outputs of each.
        tolerance: What a plan may use.
        evaluations: Plans run so far.
        runs: Samples run so far.
        late: Runs that hit the time limit for one sample.
        refused: Why a run failed, the first time; empty if none did.
    """

    def __init__(
        self,
        judge: Judge[P],
        samples: Samples,
        references: Sequence[Outputs],
        tolerance: Tolerance,
        spend: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what runs plans; `spend` is called before each run, and may end it by raising."""
        self.judge, self.samples, self.references = judge, samples.held(), list(references)
        self.tolerance, self._spend = tolerance, spend
        self.evaluations = self.runs = self.late = 0
        self.refused = ""
        self._totals = totals(self.references)
        self._order = list(range(len(samples)))
        self._asked = FEW + tolerance.spare(len(samples))
        self._of_file: Callable[[P, Sequence[int]], float] | None = None
        self._memo: dict[tuple[P, Depth, object], Any] = {}

    def on(self, judge: Judge[P]) -> "Bench[P]":
        """Return a bench for the same samples, in the same order, and another judge."""
        other = Bench(judge, self.samples, self.references, self.tolerance, self._spend)
        other._order, other._asked = [*self._order], self._asked
        return other

    @property
    def demands_files(self) -> bool:
        """Whether the files of plans have to pass, too."""
        return self._of_file is not None

    @property
    def hardest(self) -> tuple[Sample, Outputs, Mapping[str, OutputTotals]]:
        """The sample that trials run first, its reference outputs, and the totals of all."""
        first = self._order[0]
        return self.samples[first], self.references[first], self._totals

    def release(self) -> None:
        """Free what runs plans; the next run loads it again."""
        self.judge.release()

    # --- the memo ------------------------------------------------------------------------------

    def recall(self, plan: P, depth: Depth, key: object = None) -> Any:  # noqa: ANN401
        """Return what `once` returned for the present samples; None if it was not called."""
        return self._memo.get((plan, depth, (self.samples.ids, key)))

    def once(
        self, plan: P, depth: Depth, work: Callable[[], Finding], key: object = None
    ) -> Finding:
        """Return what `work` finds of a plan, which is done once for the present samples.

        Args:
            plan: The plan.
            depth: What is looked at.
            work: Looks at it.
            key: What else the result depends on, such as other samples.
        """
        place = plan, depth, (self.samples.ids, key)
        if place not in self._memo:
            self._memo[place] = work()
        finding: Finding = self._memo[place]
        return finding

    def tried(self) -> dict[P, Outcome]:
        """Return the latest outcome of each plan that was run, on the samples of that time.

        In the order of their first run.
        """
        found = self._memo.items()
        return {plan: one for (plan, *_), one in found if isinstance(one, Outcome)}

    # --- evaluation ----------------------------------------------------------------------------

    def evaluate(self, plan: P) -> Outcome:
        """Return whether a plan stays within what the search allows, on all samples.

        The hardest are run first, until they fail. Probes ask what failed from then on.
        """
        outcome = self._whole(plan)
        if outcome is None or isinf(outcome.excess):  # of all samples, it does not tell why
            outcome = self.once(plan, "samples", lambda: self._evaluated(plan, self._order))
        return self._as_file(plan, outcome, range(len(self.samples)))

    def probe(self, plan: P) -> Outcome:
        """Return the outcome of a plan on few samples: the hardest, and those that failed others.

        What fails there fails on all; what passes may fail there. With labels, others might win
        back what these lose: it is believed to fail all the same, but `evaluate` looks at all.
        """
        asked = self._order[: self._asked]
        if len(asked) == len(self.samples) or self._whole(plan) or self.recall(plan, "samples"):
            return self.evaluate(plan)
        work = lambda: self._evaluated(plan, asked)  # noqa: E731
        outcome = self.once(plan, "few", work, frozenset(asked))
        if outcome.passed or self.samples.labels is not None:
            return self._as_file(plan, outcome, sorted(asked))
        return self.once(plan, "samples", lambda: outcome)

    def _as_file(self, plan: P, outcome: Outcome, asked: Sequence[int]) -> Outcome:
        if outcome.passed and self._of_file and (excess := self._of_file(plan, asked)) > 1:
            self._asked = max(self._asked, len(asked))
            return replace(outcome, passed=False, excess=excess)
        return outcome

    def _evaluated(self, plan: P, asked: Sequence[int]) -> Outcome:
        """Return the outcome on samples, in their order; it ends once they fail.

        What they lose together is looked at each time that their number has doubled, and after the
        last. With labels that ends nothing, as others may win it back.
        """
        self.evaluations += 1
        trial, looked, enough = self._trial(), 1, len(asked)
        for count, i in enumerate([*asked], start=1):
            result = self._run(plan, self.samples[i])
            excess = trial.add(i, result)
            if excess > 1:
                self._ask(i, count)
                if isinstance(result, RunFailed):
                    return Outcome(False, excess, i, not_run=result.message)
                return Outcome(False, excess, i, has_new_nonfinite(self.references[i], result))
            if count in (2 * looked, len(asked)) and count <= enough and count < len(self.samples):
                looked = count
                if (excess := trial.error()) > 1:
                    enough = count
                    if self.samples.labels is None:
                        self._asked = max(self._asked, count)
                        return Outcome(False, excess, i)
        excess = trial.error()
        if excess > 1:
            self._asked = max(self._asked, enough)
        return Outcome(excess <= 1, excess)

    def _ask(self, index: int, count: int) -> None:
        """Ask a sample first that failed as one of `count`: alone, or with as many as may fail."""
        if self.tolerance.spare(len(self.samples)):
            self._asked = max(self._asked, count)
        else:
            self._asked += count > self._asked
        self._put_first(index)

    def _put_first(self, index: int) -> None:
        self._order.remove(index)
        self._order.insert(0, index)

    def _trial(self) -> Trial:
        return Trial(self.tolerance, self.samples, self.references, self._totals)

    def survey(self, plan: P, watcher: Watcher) -> list[float]:
        """Run every sample and return the error of each; orders later trials, worst first."""
        trial, each = self._trial(), list[float]()
        for i, outputs in enumerate(self.outputs(plan)):
            watcher.step(i, len(self.samples), "samples")
            trial.add(i, outputs)
            each.append(self.error(i, outputs))
        self._order = sorted(range(len(each)), key=lambda i: -each[i])
        error = trial.error()
        self.once(plan, "all", lambda: Outcome(error <= 1, error))
        return each

    def excess(self, plan: P) -> float:
        """Return the error of a plan on all samples, relative to what a trial may use."""

        def measured() -> Outcome:
            error = self.excess_of(self.outputs(plan))
            return Outcome(error <= 1, error)

        return (self._whole(plan) or self.once(plan, "all", measured)).excess

    def exact(self, plan: P) -> float | None:
        """Return what `excess` would, if it is known without a run; else None."""
        whole = self._whole(plan)
        return None if whole is None else whole.excess

    def _whole(self, plan: P) -> Outcome | None:
        """Return the outcome of a plan that ran on all samples, none of which ended it; or None."""
        found: list[Outcome | None] = [self.recall(plan, "all"), self.recall(plan, "samples")]
        return next((one for one in found if one is not None and one.sample is None), None)

    def outputs(self, plan: P) -> Iterator[Computed]:
        """Yield the outputs of each sample, or why it could not be run; counts as an evaluation."""
        self.evaluations += 1
        yield from (self._run(plan, sample) for sample in self.samples)

    def contribution(self, plan: P, most: float = -inf) -> float:
        """Return the largest error of a plan on a sample, hardest first, as `contributions` does.

        The first sample with an error above `most` ends it, and is the hardest from then on.
        """

        def measured() -> float:
            worst, order = 0.0, tuple(self._order)
            for i, error in zip(order, self.contributions(plan, order), strict=False):
                worst = max(worst, error)
                if worst > most:
                    self._put_first(i)
                    break
            return worst

        return self.once(plan, "alone", measured, (self._order[0], most))

    def contributions(self, plan: P, indices: Iterable[int]) -> Iterator[float]:
        """Yield a plan's error on given samples relative to the tolerance, see `error`."""
        self.evaluations += 1
        yield from (self.error(i, self._run(plan, self.samples[i])) for i in indices)

    def error(self, index: int, outputs: Computed) -> float:
        """Return the error of outputs, ≥ 0, by the default tolerance if there is a metric.

        It is inf for new NaN or a failed run.
        """
        excess = Excess(self.tolerance.of_samples, self._totals)
        value = excess.update(self.references[index], outputs)
        return inf if isnan(value) else value / self.tolerance.factor

    def excess_of(self, results: Iterable[Computed], indices: Iterable[int] | None = None) -> float:
        """Return the error of outputs of all or given samples, relative to what a trial may use."""
        return self._trial().of(results, indices)

    def join(self, samples: Samples, references: Sequence[Outputs]) -> None:
        """Add samples; trials look at them first."""
        count = len(self.samples)
        self.samples = (self.samples + samples).held()
        self.references = [*self.references, *references]
        self._order = [*range(count, len(self.samples)), *self._order]
        self._asked += len(samples)
        self._totals = totals(self.references)

    def demand(self, of_file: Callable[[P, Sequence[int]], float]) -> None:
        """Let plans that pass fail if `of_file`, their file's error on samples, is above 1."""
        self._of_file = of_file

    def _run(self, plan: P, sample: Sample) -> Computed:
        self._spend()
        self.runs += 1
        self.judge.prepare(plan)
        try:
            return self.judge.run(sample, plan)
        except RunFailed as failure:
            self.late += failure.late
            if not failure.late:
                self.refused = self.refused or failure.message
            return failure


def has_new_nonfinite(reference: Outputs, candidate: Outputs) -> bool:
    """Return whether a float output has NaN or inf where the reference has not the same value."""
    for name, expected in reference.items():
        if not np.issubdtype(expected.dtype, np.floating):
            continue
        actual = candidate[name]
        if actual.shape != expected.shape:
            return not np.isfinite(actual).all()
        bad = ~np.isfinite(actual)
        if bad.any() and not np.array_equal(actual[bad], expected[bad], equal_nan=True):
            return True
    return False
