"""Try an assignment: emulate it on samples, worst first; stop at the first that fails."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf, isfinite, isnan

import numpy as np

from halfwise.case import Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.runner import Switching
from halfwise.errors import RunFailed
from halfwise.fixing.attribute import attribute
from halfwise.formats import Format
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles
from halfwise.graph.sensitivity import selects_constants
from halfwise.metrics import Computed, Excess, Metric, OutputMeasure, Outputs, metric_loss, totals
from halfwise.observing import DETAIL_SAMPLES, Observer
from halfwise.progress import Watcher
from halfwise.records import Criterion, Guard, NodeName, Observations, OutputError, TensorName

FIRST_LOOK = 8
"""Samples whose elements are visited before anything is known about a model: see `gather`."""


def headroom_limits(
    network: Network, roles: Roles, observations: Observations, fmt: Format, headroom: float
) -> dict[TensorName, float]:
    """Return a smaller range for tensors that fit, but not at `headroom` times their range.

    The search emulates these tensors with that range: elements beyond max / headroom become
    infinite. The output then shows whether an overflow on larger data would matter. A format with
    FP32's range has none; nor does a tensor whose large values are constants it selects: masks do
    not grow.
    """
    if fmt.has_range_of_fp32:
        return {}
    limit = fmt.overflow_threshold / headroom
    seen = {o.tensor: o for o in observations.tensors}
    near = {n: limit for n, o in seen.items() if limit <= o.absmax < fmt.overflow_threshold}
    computed = [v for n in network.nodes() for v in n.outputs if v.name in near]
    fixed = (v for v in computed if selects_constants(v, roles, seen, limit))
    return {n: near[n] for n in near.keys() - {v.name for v in fixed}}


@dataclass(frozen=True)
class Evidence:
    """Evidence from one set of samples.

    Attributes:
        observations: Ranges and inner numbers.
        references: Outputs of each sample.
        guards: Guards, most severe first.
        limits: Reduced ranges of tensors that would overflow within the headroom.
        closer: Returns what more samples show; None once all permitted ones were visited.
    """

    observations: Observations
    references: list[Outputs]
    guards: tuple[Guard, ...]
    limits: dict[TensorName, float]
    closer: Callable[[], "Evidence"] | None = None

    @property
    def nonfinite(self) -> frozenset[TensorName]:
        """Tensors that are not finite in FP32 either."""
        return frozenset(o.tensor for o in self.observations.tensors if o.nonfinite)

    @property
    def suspected(self) -> frozenset[NodeName]:
        """Nodes that some guard names."""
        return frozenset(n for guard in self.guards for n in guard.nodes)

    @property
    def certain(self) -> list[frozenset[NodeName]]:
        """Groups of nodes that are certain to lose precision."""
        return [frozenset(guard.nodes) for guard in self.guards if guard.severity >= 1]


def gather(
    network: Network,
    roles: Roles,
    samples: Samples,
    settings: Settings,
    progress: Callable[[int, int], None],
    budget: Budget | None = None,
    *,
    first: bool = False,
) -> Evidence:
    """Return the evidence from `samples`; incomplete if the budget ends: see `Observer`.

    With `first`, elements are visited on only `FIRST_LOOK` samples if these show nothing: no guard,
    and no op that chooses, whose closest choice is what counts. Extrema cover all samples.
    """
    observer = Observer(
        network,
        samples,
        settings.fmt,
        roles,
        runtime=settings.runtime,
        progress=progress,
        budget=budget,
        # Guards read sums only then: see `sum_guards`.
        few_sums=settings.accumulate != "fp16",
    )

    def seen() -> Evidence:
        observations = observer.records()
        guards = attribute(
            network,
            roles,
            observations,
            settings.fmt,
            headroom=settings.headroom,
            accumulate=settings.accumulate,
        )
        limits = headroom_limits(network, roles, observations, settings.fmt, settings.headroom)
        return Evidence(observations, list(observer.outputs), guards, limits)

    def closer() -> Evidence:
        observer.look(DETAIL_SAMPLES)
        return seen()

    if not first or settings.accumulate == "fp16":
        return closer()
    observer.look(FIRST_LOOK)
    found = seen()
    if observer.is_complete:
        return found
    if found.guards or any(inner.kind == "margin" for inner in found.observations.inner):
        return closer()
    return replace(found, closer=closer)


Assignment = frozenset[NodeName]
"""The free nodes that are FP32."""


@dataclass(frozen=True)
class Outcome:
    """Result of one trial.

    Attributes:
        passed: Whether every tried sample passed.
        excess: Error relative to what the search allows; above 1 fails. A lower bound if it failed.
        sample: Index of the failing sample, or None.
        nonfinite: Whether it failed with NaN or infinities that are not in the reference.
    """

    passed: bool
    excess: float
    sample: int | None = None
    nonfinite: bool = False


@dataclass
class Trials:
    """Evaluates assignments on calibration samples; the `evaluate` of the search.

    Attributes:
        runner: The switched emulation.
        samples: Calibration samples; `join` appends held-out ones that failed.
        references: Reference outputs of each sample.
        criterion: Tolerances.
        factor: Fraction of the tolerance that a trial may use (of a metric, all).
        metric: Task metric; if given, it alone decides.
        resolve: Completes kept compute nodes to a full assignment (data movement included).
        spend: Called before each run of a sample; an exception from it ends the trial.
        passed: Called for each assignment that passes, with its excess.
        beyond: Error of a plan that passes, in another form: above 1 it fails after all.
        evaluations: Assignments run so far.
        runs: Samples run so far.
        late: Runs that hit the time limit for one sample.
        refused: Why ONNX Runtime failed on a run, the first time; empty if it never did.
        tried: Outcome of each evaluated assignment, on the samples of that time.
        since: Number of evaluations made when each assignment was first tried.
    """

    runner: Switching
    samples: Samples
    references: list[Outputs]
    criterion: Criterion
    factor: float
    metric: Metric | None
    resolve: Callable[[Assignment], Assignment]
    spend: Callable[[], None] = lambda: None
    passed: Callable[[Assignment, float], None] = lambda _kept, _excess: None
    beyond: Callable[[Assignment], float] = lambda _: 0.0
    evaluations: int = 0
    runs: int = 0
    late: int = 0
    refused: str = ""
    tried: dict[Assignment, Outcome] = field(default_factory=dict)
    since: dict[Assignment, int] = field(default_factory=dict)
    _order: list[int] = field(default_factory=list)
    _known: dict[Assignment, Outcome] = field(default_factory=dict)
    _excesses: dict[Assignment, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with the samples in their own order."""
        self._full = lru_cache(maxsize=4)(self.resolve)
        self._order = list(range(len(self.samples)))
        self.samples, self._totals = self.samples.held(), totals(self.references)

    def survey(self, kept: Assignment, watcher: Watcher) -> list[float]:
        """Run every sample and return the excess of each; orders later trials, worst first.

        A metric has no value for one sample: the default tolerance sets the order.
        """
        excess = Excess(Criterion() if self.metric else self.criterion, self._totals)
        each, results = list[float](), list[Computed]()
        for i, reference in enumerate(self.references):
            watcher.step(i, len(self.references), "samples")
            found = self._emulate(self._full(kept), i)
            each.append(excess.update(reference, found))
            results += [found] * (self.metric is not None)
        self._order = sorted(range(len(each)), key=lambda i: -each[i])
        own = excess.final() / self.factor if self.metric is None else self.excess_of(results)
        self._excesses[kept], self.evaluations = own, self.evaluations + 1
        self.since.setdefault(kept, self.evaluations)
        if own <= 1 or (self.metric is not None and isfinite(own)):
            self._take(kept, Outcome(own <= 1, own))
        if own <= 1:
            self.passed(kept, own)
        return each

    def on(self, runner: Switching) -> "Trials":
        """Return trials of the same samples on another emulation, in the samples' own order."""
        return self._anew(runner, self.samples, self.references)

    def of(self, samples: Samples, references: Sequence[Outputs]) -> "Trials":
        """Return trials of other samples on the same emulation, in their own order."""
        return self._anew(self.runner, samples, references)

    def _anew(self, runner: Switching, samples: Samples, references: Sequence[Outputs]) -> "Trials":
        return Trials(
            runner=runner,
            samples=samples,
            references=list(references),
            criterion=self.criterion,
            factor=self.factor,
            metric=self.metric,
            resolve=self.resolve,
            spend=self.spend,
        )

    def contribution(self, kept: Assignment) -> float:
        """Return the worst sample's error relative to the tolerance; with a metric, the default."""
        return next(self.contributions(kept, self._order))

    def contributions(self, kept: Assignment, indices: Iterable[int]) -> Iterator[float]:
        """Yield the error of `kept` on each given sample, as `contribution` does."""
        self.evaluations += 1
        yield from (self.error(i, self._emulate(self._full(kept), i)) for i in indices)

    def error(self, index: int, outputs: Computed) -> float:
        """Return `contribution`'s error of outputs, ≥ 0; inf for new NaN or a failed run."""
        criterion = Criterion() if self.metric else self.criterion
        own = Excess(criterion, self._totals).update(self.references[index], outputs)
        return inf if isnan(own) else own / self.factor

    def excess(self, kept: Assignment, results: Sequence[Computed] | None = None) -> float:
        """Return the error of `kept` on all samples, relative to what a trial may use.

        Args:
            kept: Compute nodes in FP32.
            results: Outputs of all samples, if they were run already.
        """
        if (known := self.exact(kept)) is not None:
            return known
        self.evaluations += 1
        self.since.setdefault(kept, self.evaluations)
        ran = (self._emulate(self._full(kept), i) for i in range(len(self.samples)))
        self._excesses[kept] = self.excess_of(ran if results is None else results)
        return self._excesses[kept]

    def bound(self, kept: Assignment) -> float:
        """Return a lower bound, ≥ 0, of the error of `kept`, from the samples it was tried on.

        A metric over some samples bounds nothing, unless one of them failed on its own.
        """
        tried = self.tried.get(kept)
        if tried is None or (self.metric is not None and tried.sample is None):
            return 0.0
        return tried.excess

    def exact(self, kept: Assignment) -> float | None:
        """Return what `excess` would, if it is known without a run; else None."""
        full = self._known.get(kept)
        if full is not None and full.sample is None:  # no sample ended the trial
            return full.excess
        return self._excesses.get(kept)

    def results(self, kept: Assignment, indices: Iterable[int] | None = None) -> list[Computed]:
        """Return the outputs, or the failure, of samples with `kept` in FP32; all by default."""
        every = range(len(self.samples)) if indices is None else indices
        assignment = self._full(kept)
        return [self._emulate(assignment, i) for i in every]

    def excess_of(self, results: Iterable[Computed]) -> float:
        """Return the error of given outputs of all samples, relative to what a trial may use."""
        if self.metric is None:
            excess = Excess(self.criterion, self._totals)
            for reference, result in zip(self.references, results, strict=True):
                excess.update(reference, result)
            return excess.final() / self.factor
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(self.references)
        if failed or any(map(has_new_nonfinite, self.references, computed)):
            return inf
        lost = 1.0 + self._lost(computed) - self.criterion.metric_drop
        return inf if isnan(lost) else lost

    @property
    def tolerance(self) -> float:
        """The excess at the full tolerance; a trial may use 1."""
        return 1.0 if self.metric is not None else 1 / self.factor

    def errors(self, kept: Assignment) -> dict[str, OutputError]:
        """Return the error measures of each output with `kept` in FP32, over all samples."""
        measures = {name: OutputMeasure(total) for name, total in self._totals.items()}
        for i, identifier in enumerate(self.samples.ids):
            ran = self._emulate(self._full(kept), i)
            outputs = {} if isinstance(ran, RunFailed) else ran
            for name, measure in measures.items():
                measure.update(self.references[i][name], outputs.get(name), identifier)
        self.evaluations += 1
        return {name: measure.result(self.criterion) for name, measure in measures.items()}

    def join(self, samples: Samples, references: Sequence[Outputs]) -> None:
        """Add samples to the calibration; trials look at them first."""
        count = len(self.samples)
        self.samples = (self.samples + samples).held()
        self.references = [*self.references, *references]
        self._order = [*range(count, len(self.samples)), *self._order]
        self._totals = totals(self.references)
        self._known.clear()
        self._excesses.clear()

    def restart(self, runner: Switching) -> None:
        """Switch to another emulation and forget all results: plans may differ in meaning there."""
        self.runner = runner
        self._full.cache_clear()
        self.tried, self.since, self._known, self._excesses = {}, {}, {}, {}

    def evaluate(self, kept: Assignment) -> Outcome:
        """Return whether `kept` stays within what the search allows, on all samples.

        Samples on which others failed are run first; the first that fails ends the trial.

        Args:
            kept: Compute nodes in FP32.
        """
        if known := self._known.get(kept):
            return known
        judge = self._judge_metric if self.metric is not None else self._judge_errors
        outcome = judge(self._full(kept))
        if outcome.passed and (beyond := self.beyond(kept)) > 1:
            outcome = Outcome(False, beyond)
        self.evaluations += 1
        self._take(kept, outcome)
        if outcome.passed:
            self.passed(kept, outcome.excess)
        if outcome.sample is not None:
            self._order.remove(outcome.sample)
            self._order.insert(0, outcome.sample)
        return outcome

    def learn(self, kept: Assignment, excess: float) -> None:
        """Record the error, at most 1, of a plan that passes on all samples in another form."""
        self._take(kept, Outcome(True, excess))

    def _take(self, kept: Assignment, outcome: Outcome) -> None:
        self._known[kept] = self.tried[kept] = outcome
        self.since.setdefault(kept, self.evaluations)

    def _judge_errors(self, assignment: Assignment) -> Outcome:
        excess = Excess(self.criterion, self._totals)
        for i in self._order:
            reference, ran = self.references[i], self._emulate(assignment, i)
            excess.update(reference, ran)
            if excess.value > self.factor:
                bad = not isinstance(ran, RunFailed) and has_new_nonfinite(reference, ran)
                return Outcome(False, excess.value / self.factor, i, bad)
        final = excess.final()
        return Outcome(final <= self.factor, final / self.factor)

    def _judge_metric(self, assignment: Assignment) -> Outcome:
        candidates = dict[int, Outputs]()
        for i in self._order:
            candidate = self._emulate(assignment, i)
            if isinstance(candidate, RunFailed):
                return Outcome(False, inf, i)
            candidates[i] = candidate
            if has_new_nonfinite(self.references[i], candidate):
                return Outcome(False, inf, i, nonfinite=True)
        excess = 1.0 + self._lost([found for _, found in sorted(candidates.items())])
        excess -= self.criterion.metric_drop
        return Outcome(excess <= 1, inf if isnan(excess) else excess)

    def _lost(self, candidates: Sequence[Outputs]) -> float:
        """Return the metric's loss on all samples."""
        assert self.metric is not None
        return metric_loss(self.metric, self.references, candidates, self.samples.labels)

    def _emulate(self, assignment: Assignment, index: int) -> Computed:
        self.spend()
        self.runs += 1
        self.runner.prepare(assignment)
        try:
            return self.runner.run(self.samples[index], assignment)
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
