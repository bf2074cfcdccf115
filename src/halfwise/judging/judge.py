"""Judge a candidate model on samples against the reference. Never looks at a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.runner import Nonfinite, inspect_samples
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.inside import inspect, lacking_in, told_inside
from halfwise.metrics import (
    Computed,
    Excess,
    Metric,
    OutputMeasure,
    Outputs,
    OutputTotals,
    metric_loss,
    rises,
    scores,
    totals,
    usual,
)
from halfwise.metrics.slices import extent, place
from halfwise.metrics.untested import failure_bound
from halfwise.records import (
    Criterion,
    FailedRun,
    FailureBound,
    IntermediateNonfinite,
    Level,
    MetricResult,
    NodeName,
    OutputError,
    TensorName,
    Verdict,
)
from halfwise.wording import count, fixed, number, verb


@dataclass(frozen=True)
class Judged:
    """A verdict and what to learn from it.

    Attributes:
        verdict: The verdict.
        failing: Indices of the samples that fail alone, worst first; with a metric or a pooled
            threshold, of those that contribute most. Empty where the verdict passed.
        inside: What is non-finite inside the candidate and not in the reference, by tensor of the
            candidate.
    """

    verdict: Verdict
    failing: tuple[int, ...]
    inside: Mapping[TensorName, Nonfinite] = field(default_factory=dict)


def judge(
    candidate: ir.Model,
    samples: Samples,
    references: Sequence[Outputs],
    criterion: Criterion,
    metric: Metric | None,
    *,
    reference_nonfinite: frozenset[TensorName] = frozenset(),
    accumulate: str = "fp32",
    unseen: bool = True,
    inspected: int | None = None,
    runtime: Runtime = CPU,
) -> Judged:
    """Return the verdict of the typed emulation of `candidate` on every sample.

    Args:
        candidate: A typed model with the reference's input and output names.
        samples: What to judge on.
        references: Reference outputs of each sample.
        criterion: What is acceptable.
        metric: Task metric; decides alone where given, but new non-finite values fail.
        reference_nonfinite: Tensors of the reference that are non-finite there too.
        accumulate: Format of running sums inside low ops.
        unseen: Whether no search has used these samples; without that the verdict fails.
        inspected: How many of the samples are searched for non-finite values inside the model,
            which costs up to three times a plain run; None for all.
        runtime: Where to run.
    """
    watched = samples.select(range(len(samples))[:inspected])
    unwatched = samples.select(range(len(samples))[len(watched) :])
    results, nonfinite = inspect(candidate, watched, accumulate=accumulate, runtime=runtime)
    if unwatched:
        emulation = emulate_typed(candidate, accumulate=accumulate)
        results += inspect_samples(emulation, (), unwatched, runtime=runtime)[0]
    new = lacking_in(reference_nonfinite, candidate, nonfinite)
    judged = judge_outputs(
        results,
        samples,
        references,
        criterion,
        metric,
        intermediate=told_inside(candidate, new),
        unseen=unseen,
    )
    return replace(judged, inside=new)


def judge_outputs(
    results: Sequence[Computed],
    samples: Samples,
    references: Sequence[Outputs],
    criterion: Criterion,
    metric: Metric | None,
    *,
    intermediate: tuple[IntermediateNonfinite, ...] = (),
    level: Level = "emulated",
    runner: str | None = None,
    unseen: bool = True,
) -> Judged:
    """Return the verdict on the outputs of a candidate.

    Args:
        results: The candidate's outputs of each sample, in the references' dtypes; or why it could
            not be run on it, which fails.
        samples: What to judge on.
        references: Reference outputs of each sample.
        criterion: What is acceptable.
        metric: Task metric; see `judge`.
        intermediate: What is non-finite inside the candidate.
        level: What computed `results`.
        runner: Who, where they were recorded.
        unseen: Whether no search has used these samples; without that the verdict fails.
    """
    scales = totals(references)
    measures = {name: OutputMeasure(total) for name, total in scales.items()}
    for result, reference, identifier in zip(results, references, samples.ids, strict=True):
        outputs = {} if isinstance(result, RunFailed) else result
        for output, measure in measures.items():
            measure.update(reference[output], outputs.get(output), identifier)
    errors = {name: measure.result(criterion) for name, measure in measures.items()}
    score = _score(criterion, metric, samples, references, results)
    failed = _failed_runs(samples, results)
    reasons = _reasons(errors, score, failed, samples.ids, unseen=unseen)
    verdict = Verdict(
        passed=not reasons,
        level=level,
        runner=runner,
        samples=samples.ids,
        unseen=unseen and len(samples) > 0,
        outputs=errors,
        worst_sample=_worst_sample(errors),
        intermediate_nonfinite=intermediate,
        metric=score,
        failed_runs=failed,
        reasons=reasons,
        failure_bound=_bound(measures, criterion, len(samples)) if unseen else None,
    )
    failing = (
        () if verdict.passed else _failing(criterion, metric, samples, references, results, scales)
    )
    return Judged(verdict, failing)


def _bound(
    measures: dict[str, OutputMeasure], criterion: Criterion, samples: int
) -> FailureBound | None:
    """Return what the samples show of all inputs; None with a metric, which knows no single one."""
    if criterion.metric is not None or not measures:
        return None
    alone = zip(*(measure.failing(criterion) for measure in measures.values()), strict=True)
    return failure_bound(sum(map(any, alone)), samples)


def _failed_runs(samples: Samples, results: Sequence[Computed]) -> tuple[FailedRun, ...]:
    return tuple(
        FailedRun(sample=name, node=NodeName(r.node) if r.node else None, why=r.why or r.message)
        for name, r in zip(samples.ids, results, strict=True)
        if isinstance(r, RunFailed)
    )


def _failing(
    criterion: Criterion,
    metric: Metric | None,
    samples: Samples,
    references: Sequence[Outputs],
    results: Sequence[Computed],
    scales: Mapping[str, OutputTotals],
) -> tuple[int, ...]:
    # A metric decides alone: for it the default tolerance sets the order among equals.
    excess = Excess(criterion if metric is None else Criterion(), scales)
    each = [excess.update(r, c) for r, c in zip(references, results, strict=True)]
    if metric is None:
        failing = [i for i, e in enumerate(each) if e > 1]
        failing = failing or ([max(range(len(each)), key=each.__getitem__)] if each else [])
        return tuple(sorted(failing, key=lambda i: -each[i]))
    losses = [0.0] * len(results)
    for i, (reference, candidate) in enumerate(zip(references, results, strict=True)):
        if isinstance(candidate, RunFailed):
            losses[i] = inf
            continue
        labels = None if samples.labels is None else [samples.labels[i]]
        try:
            lost = metric_loss(metric, [reference], [candidate], labels)
        except CaseError:
            # The metric knows no single samples: the plain error has to order them.
            break
        losses[i] = 0.0 if isnan(lost) else lost
    return tuple(sorted(range(len(losses)), key=lambda i: (losses[i], each[i]), reverse=True))


def _score(
    criterion: Criterion,
    metric: Metric | None,
    samples: Samples,
    references: Sequence[Outputs],
    results: Sequence[Computed],
) -> MetricResult | None:
    computed = [r for r in results if not isinstance(r, RunFailed)]
    if metric is None or not results or len(computed) < len(results):
        return None
    labels = None if samples.labels is None else list(samples.labels)
    name = criterion.metric or "metric"
    reference, candidate = scores(name, metric, references, computed, labels)
    return MetricResult(
        name=name,
        reference=reference,
        candidate=candidate,
        allowed_drop=criterion.metric_drop,
        passed=isfinite(candidate) and candidate >= reference - criterion.metric_drop,
        labelled=labels is not None,
    )


def _reasons(
    errors: dict[str, OutputError],
    score: MetricResult | None,
    failed: Sequence[FailedRun],
    samples: Sequence[str],
    *,
    unseen: bool,
) -> tuple[str, ...]:
    reasons: list[str] = []
    if not samples:
        reasons.append("there was no sample to judge on that the search had not seen")
    elif not unseen:
        reasons.append("the search had seen every sample, so this is no held-out result")
    if failed:
        first, more = failed[0], f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        reasons.append(
            f"it cannot be run on sample {first.sample}{more}, unlike the reference: "
            f"{f'node {first.node} fails' if first.node else 'it fails'} ({first.why})"
        )
    for name, error in errors.items():
        if error.nonfinite:
            reasons.append(
                f"output {name} has {error.nonfinite} non-finite "
                f"{verb(error.nonfinite, 'value', 'values')} that the reference lacks"
            )
        elif score is not None or failed or error.passed:
            continue
        elif error.misshapen:
            reasons.append(
                f"output {name} has another shape than the reference's on {error.misshapen} of "
                f"{count(len(samples), 'sample')}"
            )
        elif error.agreement is not None:
            few = error.rare_agreement
            rare = (
                "" if few is None else f", and {number(few, 4)} of those that are not what most are"
            )
            reasons.append(
                f"output {name} is out of tolerance: {number(error.agreement, 4)} of its "
                "elements agree"
                f"{rare} (worst sample {error.worst_sample})"
            )
        else:
            reasons.append(
                f"output {name} is out of tolerance: {_slices(error, samples)}max error "
                f"{number(error.max_abs)}, {number(error.rel_max)} of the largest reference "
                "value, SNR "
                f"{fixed(error.snr_db, 1)} dB (worst sample {error.worst_sample})"
            )
    if score is not None and not score.passed:
        name = score.name
        before, after = usual(name, score.reference), usual(name, score.candidate)
        moved, way = ("rose", "rise") if rises(name) else ("fell", "drop")
        reasons.append(
            f"{name} {moved} from {number(before, 6)} to {number(after, 6)}; a {way} of "
            f"{number(score.allowed_drop)} is allowed"
        )
    return tuple(reasons)


def _slices(error: OutputError, samples: Sequence[str]) -> str:
    """Return a clause on the worst slices that are out of the tolerance of their own scale."""
    failed = [group for group in error.groups if not group.passed]
    if not failed:
        return ""
    worst = max(failed, key=lambda group: group.max_abs / group.allowed if group.allowed else inf)
    return (
        f"{place(worst, samples)}, with values {extent(worst)}, off by {number(worst.max_abs)} "
        f"(sample {worst.worst_sample}) where {number(worst.allowed)} is allowed; in all "
    )


def _worst_sample(errors: dict[str, OutputError]) -> str | None:
    if not errors:
        return None
    return max(errors.values(), key=lambda e: (e.nonfinite > 0, e.rel_max)).worst_sample
