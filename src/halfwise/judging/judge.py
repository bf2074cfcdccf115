"""Judges a candidate model on samples against the reference, whatever plan it came from."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, isnan, nan
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, Built, FileRunner, Runtime, Sample, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner, OnnxRuntime
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.model import node_name
from halfwise.graph.sensitivity import decided
from halfwise.graph.weights import LOW_TYPES
from halfwise.judging.inside import emulate, lacking_in, nonfinite_records
from halfwise.metrics import (
    AUTO,
    Computed,
    Excess,
    Metric,
    OutputMeasure,
    Outputs,
    OutputTotals,
    evidence_of,
    loss_of_one,
    rises,
    scores,
    task_scores,
    totals,
    usual,
)
from halfwise.metrics.slices import place
from halfwise.metrics.untested import failure_bound, needed
from halfwise.records import (
    Criterion,
    FailedRun,
    Failure,
    FailureBound,
    Flip,
    IntermediateNonfinite,
    Level,
    MetricResult,
    NodeName,
    OutputError,
    TensorName,
    Verdict,
    replace,
)
from halfwise.wording import listed

IN_ORT = OnnxRuntime()
_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE, *LOW_TYPES}


def run_as_file(
    model: ir.Model,
    samples: Samples,
    references: Sequence[Outputs],
    runner: FileRunner = IN_ORT,
) -> list[Outputs]:
    """Return the outputs of each sample in the references' dtypes.

    Args:
        model: A typed model, as it is written.
        samples: FP32 inputs.
        references: Outputs of the reference.
        runner: What runs it.

    Raises:
        CaseError: it cannot be loaded; a `KernelMissing` if ONNX Runtime lacks a kernel.
        RunFailed: it cannot be run.
    """
    results = runner.run(model, fed(model, samples))
    assert not isinstance(results, Built)
    return [
        {n: _as(result[n], wanted) for n, wanted in reference.items()}
        for result, reference in zip(results, references, strict=True)
    ]


def build(model: ir.Model, samples: Samples, runner: FileRunner) -> Built:
    """Return what a builder makes of a file; arguments and errors as for `run_as_file`."""
    built = runner.run(model, fed(model, samples))
    assert isinstance(built, Built)
    return built


def file_runners(settings: Settings) -> tuple[FileRunner, ...]:
    """Return what runs files: ONNX Runtime, and each target."""
    return OnnxRuntime(settings.runtime), *settings.targets


def _as(output: NDArray[np.generic], reference: NDArray[np.generic]) -> NDArray[np.generic]:
    with np.errstate(over="ignore"):
        return output.astype(reference.dtype)


def fed(model: ir.Model, samples: Samples) -> Samples:
    """Return the samples, floats in the types of the model's inputs."""
    floats = {str(v.name): v.dtype.numpy() for v in model.graph.inputs if v.dtype in _FLOATS}

    def load(index: int) -> Sample:
        with np.errstate(over="ignore"):
            return {
                name: array.astype(floats[name])
                if name in floats and array.dtype.kind == "f"
                else array
                for name, array in samples[index].items()
            }

    return Samples(samples.ids, load)


def flips(
    model: ir.Model,
    decisions: Sequence[ir.Node],
    samples: Samples,
    *,
    accumulate: str = "fp32",
    runtime: Runtime = CPU,
) -> tuple[Flip, ...]:
    """Return the decisions that differ between the file as run and its emulation.

    Args:
        model: The mixed model.
        decisions: Nodes of the original to examine; skipped if the mixed model lacks their outputs.
        samples: Samples to examine.
        accumulate: Format of running sums inside low ops.
        runtime: Where to run.
    """
    emulation = emulate_typed(model, accumulate=accumulate)
    one = ModelRunner(emulation, samples, runtime=runtime)
    other = ModelRunner(model, fed(model, samples), runtime=runtime)
    wanted = [t for node in decisions for t in decided(node)]
    unlike, total = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    for a, b in zip(one.get(wanted), other.get(wanted), strict=True):
        for name in map(TensorName, a.keys() & b.keys()):
            unlike[name] += _differing(a[name], b[name])
            total[name] += max(a[name].size, b[name].size)
    compared = ((n, t) for n in decisions for t in [t for t in decided(n) if total[t]][:1])
    return tuple(
        Flip(node=node_name(n), op=n.op_type, elements=unlike[t], of=total[t])
        for n, t in compared
        if unlike[t]
    )


def _differing(one: NDArray[np.generic], other: NDArray[np.generic]) -> int:
    """Return how many elements differ; all of them if the shapes do."""
    if one.shape != other.shape:
        return max(one.size, other.size)
    return int(np.count_nonzero(one != other))


class Judged(Struct, frozen=True):
    """A verdict, and what the search learns from it.

    Attributes:
        verdict: The verdict.
        failing: Indices of the samples that fail on their own, worst first; with a metric or a
            pooled threshold, of those that contribute most. Empty if the verdict passed.
        as_file: Whether they fail only as the file runs.
    """

    verdict: Verdict
    failing: tuple[int, ...]
    as_file: bool = False


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
    runtime: Runtime = CPU,
) -> Judged:
    """Return the verdict on the typed emulation of `candidate` on every sample.

    Args:
        candidate: A typed model with the reference's input and output names.
        samples: Samples to judge on.
        references: Reference outputs of each sample.
        criterion: What is acceptable.
        metric: Task metric; if given, it alone decides, except that new non-finite values fail.
        reference_nonfinite: Tensors that are non-finite in the reference too.
        accumulate: Format of running sums inside low ops.
        unseen: Whether no search has used these samples; otherwise the verdict fails.
        runtime: Where to run.
    """
    results, found = emulate(candidate, samples, accumulate=accumulate, runtime=runtime)
    new = lacking_in(reference_nonfinite, candidate, found)
    return judge_outputs(
        results,
        samples,
        references,
        criterion,
        metric,
        intermediate=nonfinite_records(candidate, new),
        unseen=unseen,
    )


def computed(session: Session, sample: Sample) -> Computed:
    """Return a model's outputs for a sample, or why it did not run."""
    try:
        return session.run(sample)
    except RunFailed as failure:
        return failure


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
        results: The candidate's outputs of each sample in the references' dtypes, or why it did not
            run, which is a failure.
        samples: Samples to judge on.
        references: Reference outputs of each sample.
        criterion: What is acceptable.
        metric: Task metric; see `judge`.
        intermediate: What is non-finite inside the candidate.
        level: What computed `results`.
        runner: What computed recorded outputs.
        unseen: Whether no search has used these samples; otherwise the verdict fails.
    """
    scales = totals(references)
    # A metric decides alone; the default tolerance then only breaks ties.
    excess = Excess(criterion if metric is None else Criterion(), scales)
    each = [excess.update(*pair) for pair in zip(references, results, strict=True)]
    losses = _losses(criterion, metric, samples, references, results)
    measures = _measures(scales, samples, references, results)
    alone = _alone(measures, criterion, results, losses)
    excused = frozenset[int]()
    if criterion.failing is not None and sum(alone) <= criterion.failing * len(alone):
        excused = frozenset(i for i, fails in enumerate(alone) if fails)
    rest = [i for i in range(len(samples)) if i not in excused]
    others = samples.select(rest), [references[i] for i in rest], [results[i] for i in rest]
    if excused:
        measures = _measures(scales, *others)
    errors = {name: measure.result(criterion) for name, measure in measures.items()}
    score = _score(criterion, metric, *others)
    failed = _failed_runs(*others[::2])
    failures = tuple(_failures(errors, score, failed, others[0].ids, unseen=unseen))
    verdict = Verdict(
        passed=not failures,
        level=level,
        runner=runner,
        samples=samples.ids,
        unseen=unseen and len(samples) > 0,
        outputs=errors,
        worst_sample=_worst_sample(errors),
        excesses=tuple(each),
        strict=excess.final() if metric is not None and each else None,
        intermediate_nonfinite=intermediate,
        metric=score,
        failed_runs=failed,
        failures=failures,
    )
    if unseen and alone and not any(map(isnan, losses)):
        ids = [name for name, fails in zip(samples.ids, alone, strict=True) if fails]
        verdict = with_bound(verdict, failure_bound(ids, len(alone)), criterion.failing)
    if verdict.passed:
        return Judged(verdict, ())
    worst = sorted(range(len(each)), key=lambda i: (losses[i], each[i]), reverse=True)
    if criterion.failing is None:
        alone = [metric is not None or error > 1 for error in each]
    return Judged(verdict, tuple([i for i in worst if alone[i]] or worst[:1]))


def worst_first(errors: Sequence[float]) -> list[int]:
    """Return the places of samples, those with the largest errors first."""
    return sorted(range(len(errors)), key=lambda i: -errors[i])


def not_failing(verdict: Verdict, samples: Samples, criterion: Criterion) -> Samples:
    """Return the judged samples, without those that fail if a share of inputs may."""
    if criterion.failing is None or verdict.failure_bound is None:
        return samples
    failing = verdict.failure_bound.samples
    return samples.select([i for i, name in enumerate(samples.ids) if name not in failing])


def with_bound(verdict: Verdict, bound: FailureBound, share: float | None) -> Verdict:
    """Return a verdict with what its samples show of all inputs.

    If a share of inputs may fail, it fails unless the bound shows that no more do: for "rate" if
    more of the samples fail, for "few" if they are too few to show it.
    """
    failures = [one for one in verdict.failures if one.kind not in ("rate", "few")]
    if share is not None and bound.upper > share:
        failing, judged = bound.failing + bound.joined, bound.judged + bound.joined
        few = failing <= share * judged
        numbers = {"size": judged, "allowed": share, "upper": bound.upper}
        numbers |= {"failing": failing} if failing else {}
        numbers |= {"needed": needed(failing, share)} if few else {}
        failures.insert(0, Failure(kind="few" if few else "rate", numbers=numbers))
    return replace(verdict, failures=tuple(failures), passed=not failures, failure_bound=bound)


def _measures(
    scales: Mapping[str, OutputTotals],
    samples: Samples,
    references: Sequence[Outputs],
    results: Sequence[Computed],
) -> dict[str, OutputMeasure]:
    measures = {name: OutputMeasure(total) for name, total in scales.items()}
    for result, reference, identifier in zip(results, references, samples.ids, strict=True):
        outputs = {} if isinstance(result, RunFailed) else result
        for output, measure in measures.items():
            measure.update(reference[output], outputs.get(output), identifier)
    return measures


def _losses(
    criterion: Criterion,
    metric: Metric | None,
    samples: Samples,
    references: Sequence[Outputs],
    results: Sequence[Computed],
) -> list[float]:
    """Return what each sample loses of the metric, see `loss_of_one`; zeros without a metric.

    NaN where a user's function has no value for one sample.

    Raises:
        CaseError: it has none, and a share of inputs may fail.
    """
    losses = [0.0] * len(results)
    for i, candidate in enumerate(results if metric is not None else ()):
        assert metric is not None
        labels = None if samples.labels is None else [samples.labels[i]]
        if isinstance(candidate, RunFailed):
            losses[i] = inf
            continue
        try:
            losses[i] = loss_of_one(criterion, metric, references[i], candidate, labels)
        except CaseError:
            if criterion.failing is not None:
                raise
            losses[i] = nan
    return losses


def _alone(
    measures: Mapping[str, OutputMeasure],
    criterion: Criterion,
    results: Sequence[Computed],
    losses: Sequence[float],
) -> list[bool]:
    """Return which samples fail by themselves."""
    recognised = {name for one in criterion.recognised for name in one.outputs}
    flags = [[isinstance(result, RunFailed) for result in results]]
    flags.append([loss > 1 for loss in losses])
    for name, measure in measures.items():
        beside = criterion.metric == AUTO and name not in recognised
        flags.append(measure.failing(Criterion() if beside else criterion))
    return [any(each) for each in zip(*flags, strict=True)]


def _failed_runs(samples: Samples, results: Sequence[Computed]) -> tuple[FailedRun, ...]:
    return tuple(
        FailedRun(sample=name, node=NodeName(r.node) if r.node else None, why=r.why or r.message)
        for name, r in zip(samples.ids, results, strict=True)
        if isinstance(r, RunFailed)
    )


def _score(
    criterion: Criterion,
    metric: Metric | None,
    samples: Samples,
    references: Sequence[Outputs],
    results: Sequence[Computed],
) -> MetricResult | None:
    ran = [r for r in results if not isinstance(r, RunFailed)]
    if metric is None or not results or len(ran) < len(results):
        return None
    labels = None if samples.labels is None else list(samples.labels)
    return score_of(criterion, metric, references, ran, labels)


def score_of(
    criterion: Criterion,
    metric: Metric,
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> MetricResult:
    """Return the result of a metric, beside that of the references.

    Raises:
        CaseError: the samples are too few for it.
    """
    name = criterion.metric or "metric"
    before, after = scores(name, metric, references, candidates, labels)
    evidence, unit = evidence_of(name, before)
    return MetricResult(
        name=name,
        reference=before,
        candidate=after,
        allowed_drop=criterion.metric_drop,
        passed=isfinite(after) and after >= before - criterion.metric_drop,
        labelled=labels is not None,
        parts=task_scores(criterion.recognised, references, candidates, labels)
        if name == AUTO
        else (),
        evidence=evidence,
        unit=unit,
    )


def _failures(
    errors: dict[str, OutputError],
    score: MetricResult | None,
    failed: Sequence[FailedRun],
    samples: Sequence[str],
    *,
    unseen: bool,
) -> Iterator[Failure]:
    if not samples:
        yield Failure(kind="no-sample")
    elif not unseen:
        yield Failure(kind="seen")
    if failed:
        first, more = failed[0], {"more": len(failed) - 1} if len(failed) > 1 else {}
        node = {"node": first.node} if first.node else {}
        yield Failure(
            kind="run", names={"sample": first.sample, "why": first.why, **node}, numbers=more
        )
    for name, error in errors.items():
        if error.passed:
            continue
        if error.nonfinite:
            # Whether the reference has some, too, elsewhere.
            side = "unlike" if error.reference.nonfinite else "elements"
            numbers: dict[str, int | float] = {side: error.nonfinite}
            yield Failure(kind="non-finite", names={"output": name}, numbers=numbers)
        elif failed:
            continue
        elif error.misshapen:
            numbers = {"elements": error.misshapen, "size": len(samples)}
            yield Failure(kind="shape", names={"output": name}, numbers=numbers)
        else:
            yield _off(name, error, samples)
    if score is not None and not score.passed:
        yield from _of_metric(score)


def _of_metric(score: MetricResult) -> Iterator[Failure]:
    """Yield the failure of the metric; with several metrics, that of each that failed."""
    for part in score.parts:
        if not part.value >= part.required:
            kinds = {"metric": part.metric, "outputs": listed(part.outputs)}
            kinds["least"] = "most" if rises(part.metric) else "least"
            limits = {n: usual(part.metric, getattr(part, n)) for n in ("value", "required")}
            yield Failure(kind="part", names=kinds, numbers=limits)
    if not score.parts:
        name = score.name
        numbers = {
            "before": usual(name, score.reference),
            "after": usual(name, score.candidate),
            "allowed": score.allowed_drop,
        }
        names = {"metric": name, **({"rises": "yes"} if rises(name) else {})}
        yield Failure(kind="metric", names=names, numbers=numbers)


def _off(name: str, error: OutputError, samples: Sequence[str]) -> Failure:
    names = {"output": name, "sample": error.worst_sample}
    if error.agreement is not None:
        few = {} if error.rare_agreement is None else {"rare": error.rare_agreement}
        agreement = {"agreement": error.agreement, **few}
        return Failure(kind="agreement", names=names, numbers=agreement)
    numbers = {"max_abs": error.max_abs, "rel_max": error.rel_max, "snr": error.snr_db}
    # Slices beyond the tolerance of their own scale.
    groups = [group for group in error.groups if not group.passed]
    if groups:
        worst = max(groups, key=lambda g: g.max_abs / g.allowed if g.allowed else inf)
        names |= {"slices": place(worst, samples), "of": worst.worst_sample}
        numbers |= {"off": worst.max_abs, "allowed": worst.allowed, "scale": worst.scale}
        numbers |= {} if worst.span is None else {"span": worst.span}
    return Failure(kind="tolerance", names=names, numbers=numbers)


def _worst_sample(errors: dict[str, OutputError]) -> str | None:
    if not errors:
        return None
    return max(errors.values(), key=lambda e: (e.nonfinite > 0, e.rel_max)).worst_sample
