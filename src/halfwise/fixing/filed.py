"""Whether a plan also passes as its file runs, in ONNX Runtime and in each target."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Literal

import onnx_ir as ir

from halfwise import wording
from halfwise.case import FEW_SAMPLES, Case, FileRunner, Samples, Settings
from halfwise.emulation.accumulate import has_sum
from halfwise.emulation.blocks import MOST
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import Shapes, inspect_samples, seen_shapes
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.attribute.evidence import Band, graded
from halfwise.fixing.bench import Outcome
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.kernels import elements, flops
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.fixing.space import Space
from halfwise.graph.casts import Rewritten
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.sensitivity import decisions, first_of, leading_to
from halfwise.judging.judge import (
    AsFile,
    Judged,
    build,
    file_runners,
    flips,
    judge_outputs,
    run_as_file,
    run_files,
)
from halfwise.metrics import Computed, Excess, Outputs, totals
from halfwise.records import Criterion, Failure, FileRun, Flip, Guard
from halfwise.reporting.remarks import under, with_failures


@dataclass(frozen=True)
class Wrong:
    """What files get wrong on the samples of a search.

    Attributes:
        samples: Identifiers of samples that fail.
        guards: What leads to the decisions that change there, as far as it may be kept.
    """

    samples: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()


def wrong_as_file(space: Space, plan: Plan) -> Wrong:
    """Return what targets get wrong of a plan's file, and ONNX Runtime where nodes decide.

    Elsewhere, rounding less often hardly makes outputs worse. Nothing of what refuses the file: no
    other plan would change that.
    """
    bench, variant = space.bench, plan.of
    case, settings, samples = variant.case, variant.settings, bench.samples
    own, *targets = file_runners(settings)
    deciding = tuple(decisions(case.network))
    runners = [own] * bool(deciding) + [runner for runner in targets if runner.runs]
    wrong, guards, model = dict[str, None](), tuple[Guard, ...](), variant.write(plan)[0].model
    for runner in runners:
        space.budget.spend("judge", len(samples))
        with suppress(CaseError, RunFailed):
            results = run_as_file(model, samples, bench.references, runner)
            question = samples, bench.references, case.criterion, case.metric
            judged = judge_outputs(results, *question)
            if judged.verdict.passed or not may_mend(space, runner, samples, bench.references):
                continue
            # Where a share may fail, it is one of all that do.
            few = FEW_SAMPLES if case.criterion.failing is None else None
            wrong |= {samples.ids[i]: None for i in judged.failing[:few]}
            if runner is own:
                worst = samples.select(judged.failing[:FEW_SAMPLES])
                flipped = _flips(model, deciding, worst, settings)
                excess = bench.excess_of(results) * bench.tolerance.factor
                guards = tuple(_deciding(variant, deciding, flipped, excess))
    return Wrong(tuple(wrong), guards)


def may_mend(
    space: Space, runner: FileRunner, samples: Samples, references: Sequence[Outputs]
) -> bool:
    """Return whether a plan may mend what a runner has wrong: not if it has FP32 wrong, too.

    FP32 has the repairs of the plans, and is asked once. ONNX Runtime computed the references.
    """
    case, settings = space.variant.case, space.variant.settings
    if runner not in settings.targets:
        return True
    plan, key = space.fresh(space.choices), (runner.name, samples.ids)
    right = lambda: fp32_on(runner, case, samples, references)[0]  # noqa: E731
    return space.bench.once(plan, "fp32", right, key)


def _deciding(
    of: Variant, deciding: Iterable[ir.Node], flipped: Sequence[Flip], excess: float
) -> Iterator[Guard]:
    """Yield a guard for each decision that changes and does not depend on others that do."""
    nodes, by_name = {node_name(n): n for n in deciding}, {f.node: f for f in flipped}
    for decision in first_of(nodes[name] for name in by_name):
        leading = tuple(n for n in leading_to(decision, of.roles) if n not in of.lowered)
        if not leading:
            continue
        flip, source = by_name[node_name(decision)], decision.inputs[0]
        yield Guard(
            kind="decision",
            node=flip.node,
            tensor=None if source is None else tensor_name(source),
            names={"op": flip.op},
            numbers={"elements": flip.elements, "size": flip.of, "value": excess},
            fix="Compute the deciding values in integers, or look them up in a table.",
            nodes=leading,
            severity=graded(Band.INEXACT, excess),
        )


def judged_plan_as_file(
    judged: Judged,
    space: Space,
    plan: Plan,
    written: Rewritten,
    samples: Samples,
    references: Sequence[Outputs],
) -> Judged:
    """Add the result of a plan's file to a verdict, see `judged_as_file`."""
    bench, variant = space.bench, space.variant
    outcome: Outcome | None = bench.recall(plan, "samples")
    results = cache(lambda: [*bench.outputs(plan)])
    worst = None if outcome is None else outcome.worst
    passes = (LowSums(bench.samples, bench.references, results, worst),)
    return judged_as_file(
        judged,
        written.model,
        *(variant.case, variant.settings, samples, references),
        *(passes, space.budget, variant.shapes),
        may_mend=lambda runner: may_mend(space, runner, samples, references),
    )


def judged_as_file(
    judged: Judged,
    candidate: ir.Model,
    case: Case,
    settings: Settings,
    samples: Samples,
    references: Sequence[Outputs],
    seen: Sequence["LowSums"] = (),
    budget: Budget | None = None,
    shapes: Shapes | None = None,
    *,
    always: bool = False,
    may_mend: Callable[[FileRunner], bool] | None = None,
) -> Judged:
    """Add what ONNX Runtime and each target make of the candidate's file; the worst decides.

    And whether a file that passes also does with sums in FP16. A verdict that failed already is
    returned without a run, unless they are `always` asked.

    Args:
        judged: Verdict on the candidate's emulation.
        candidate: A typed model with the names of the case.
        case: Reference, criterion and metric.
        settings: Where to run, the targets, and the format of sums.
        samples: The judged samples.
        references: Reference outputs of each sample.
        seen: Other samples on which it has to hold with sums in FP16.
        budget: Pays for the runs with sums in FP16; see `lowest_sums`.
        shapes: Shapes of the network's tensors, likewise.
        always: Whether files run even if the emulation is not acceptable.
        may_mend: Returns whether a target that has the file wrong has FP32 right. If not, samples
            do not count as failing, as no search would mend that.
    """
    passed = judged.verdict.passed
    if not passed and not always:
        return judged
    files = [*run_files(candidate, samples, references, settings)]
    question = samples, references, case.criterion, case.metric
    outputs = [None if f.results is None else judge_outputs(f.results, *question) for f in files]
    runs = [_file_run(*pair, may_mend) for pair in zip(files, outputs, strict=True)]
    failures = [failure for pair in zip(files, outputs, strict=True) for failure in _against(*pair)]
    failed = [filed for filed in outputs if filed is not None and not filed.verdict.passed]
    if runs[0].passed is False:
        # The emulation has this arithmetic, and the tensors inside.
        few = samples.select(failed[0].failing[:FEW_SAMPLES])
        flips = _flips(candidate, decisions(case.network), few, settings)
        failures += map(_flip_failure, flips[: wording.FEW])
    fields: dict[str, object] = {"as_file": tuple(runs)}
    if failed:
        fields["failure_bound"] = failed[0].verdict.failure_bound
    if passed and not failures:
        results = cache(lambda: files[0].results or _emulated(candidate, samples, settings))
        passes = (LowSums(samples, references, results), *seen)
        budget = budget or Budget()
        fields["sums"] = lowest_sums(candidate, passes, case, settings, budget, shapes)
    verdict = judged.verdict.model_copy(update=fields)
    verdict = with_failures(verdict, failures) if failures else verdict
    counts = (filed for run, filed in zip(runs, outputs, strict=True) if run.fp32 is not False)
    failing = dict.fromkeys(index for filed in counts if filed for index in filed.failing)
    return replace(judged, verdict=verdict, failing=tuple(failing), as_file=bool(failures))


def fp32_on(
    runner: FileRunner, case: Case, samples: Samples, references: Sequence[Outputs]
) -> tuple[bool, Sequence[int] | None]:
    """Return whether a target has the FP32 model right, and the samples where it has not.

    None for the samples if it does not run there. A builder has it right if it takes it.
    """
    model = case.network.model
    try:
        if not runner.runs:
            build(model, samples, runner)
            return True, None
        results = run_as_file(model, samples, references, runner)
    except (CaseError, RunFailed):
        return False, None
    judged = judge_outputs(results, samples, references, case.criterion, case.metric)
    return judged.verdict.passed, judged.failing


def _file_run(
    file: AsFile, filed: Judged | None, has_fp32: Callable[[FileRunner], bool] | None
) -> FileRun:
    name, version = file.runner.name, file.runner.version
    run = FileRun(runner=name, version=version, not_run=file.error, outputs={})
    update: dict[str, object] = {"passed": False} if file.error and file.required else {}
    if filed is not None:
        verdict = filed.verdict
        update = {"passed": verdict.passed, "outputs": verdict.outputs, "metric": verdict.metric}
    elif file.built is not None:
        names = file.built.folded
        update = {"built": True, "static": file.built.refused, "folded": names}
        update["traffic"] = file.built.traffic
        update["passed"] = False if names else None
    if update.get("passed") is False and file.required and has_fp32 is not None:
        update["fp32"] = has_fp32(file.runner)
    return run.model_copy(update=update)


def _against(file: AsFile, filed: Judged | None) -> Iterator[Failure]:
    """Yield why a file fails in a runner."""
    name = file.runner.name
    if filed is not None:
        yield from under("file", name, filed.verdict.failures)
    elif file.built is not None and (nodes := file.built.folded):
        names = {"runner": name, "nodes": wording.listed(nodes)}
        yield Failure(kind="folded", names=names, numbers={"elements": len(nodes)})
    elif file.required and file.error:
        yield Failure(kind="refused", names={"runner": name, "why": file.error})


def _flips(
    model: ir.Model, decisions: Iterable[ir.Node], samples: Samples, settings: Settings
) -> tuple[Flip, ...]:
    with suppress(RunFailed):
        return flips(
            model,
            list(decisions),
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
    return ()


def _flip_failure(flip: Flip) -> Failure:
    names, numbers = {"node": flip.node, "op": flip.op}, {"elements": flip.elements}
    return Failure(kind="flip", names=names, numbers=numbers | {"size": flip.of})


def demand_files(space: Space, heldout: HeldOut) -> None:
    """Demand of plans that their files pass, on samples where files failed."""
    bench = space.bench
    places = [i for i, name in enumerate(bench.samples.ids) if name in heldout.demanding]
    if places:
        references = tuple(bench.references[i] for i in places)
        bench.demand(Filed(space, bench.samples.select(places), references), heldout.demanding)


@dataclass(frozen=True)
class Filed:
    """Runs the files of plans that pass; samples on which files failed demand that.

    Attributes:
        space: The plans.
        samples: Those samples; at least one.
        references: Reference outputs of each.
    """

    space: Space
    samples: Samples
    references: tuple[Outputs, ...]

    def __call__(self, plan: Plan) -> float:
        """Return the largest error of a plan's file in a runner, relative to what a trial may use.

        0 if ONNX Runtime refuses the file, as a verdict does not count that either, or if a target
        has FP32 wrong. With a metric
        that needs more samples than these, it is the error on all samples of the search.
        """
        model, excess = plan.of.write(plan)[0].model, 0.0
        for runner in file_runners(plan.of.settings):
            if runner.runs and excess <= 1:
                excess = max(excess, self._excess(model, runner))
        return excess

    def _excess(self, model: ir.Model, runner: FileRunner) -> float:
        bench = self.space.bench
        pairs = (self.samples, self.references), (bench.samples, bench.references)
        for samples, references in pairs:
            self.space.budget.spend("trial", len(samples))
            results: Sequence[Computed]
            try:
                results = run_as_file(model, samples, references, runner)
            except CaseError:
                return 0.0
            except RunFailed as failure:
                results = [failure] * len(samples)
            with suppress(CaseError):
                excess = bench.tolerance.excess(results, samples, references)
                mends = excess <= 1 or may_mend(self.space, runner, samples, references)
                return excess if mends else 0.0
        return inf


ADDITIONS = 2e9
"""Low sums are run if that rounds at most so many sums per sample, counted by `low_sum_work`: some
three seconds, whatever else the machine does. Our choice."""
STEP = 1e4
"""Additions that take as long as starting a step of the loop: 1 ns each, and 10 µs."""
BACKSTOP = 60.0
"""Seconds that low sums may take where the count is wrong by far. Our choice."""
MARGIN = 0.5
"""Share of the tolerance that low sums may use: the same sums in another order had errors 1.7 times
as large (magika on ONNX Runtime's WebGPU provider)."""


def low_sum_work(nodes: Iterable[ir.Node], shapes: Shapes) -> float:
    """Return how many elements are rounded if nodes round each sum; of unknown shapes none.

    Args:
        nodes: Nodes with sums, products or not.
        shapes: Shapes of the tensors on a sample.
    """
    total = 0.0
    for node in nodes:
        read = max(elements(v, shapes) for v in node.inputs if v is not None)
        written = max(1, *(elements(v, shapes) for v in node.outputs if v.name))
        terms = flops(node, shapes, written) / 2 or read
        total += min(MOST, terms / written) * (written + STEP)
    return total


def lowest_sums(
    candidate: ir.Model,
    passes: Sequence["LowSums"],
    case: Case,
    settings: Settings,
    budget: Budget,
    shapes: Shapes | None = None,
) -> Literal["fp32", "fp16"] | None:
    """Return the lowest format of sums with which a candidate is known to pass.

    "fp16" if it passes with products, additions and reductions rounded one by one, as ONNX
    Runtime's WebGPU provider does, within `MARGIN` of the tolerance on the sample with the
    largest error, or if it has no such sum. "fp32" if it fails then, cannot be run so, takes more
    than `ADDITIONS`, or the budget ends it. None for a model without FP16, and for one with INT8,
    whose products are summed in INT32.

    Args:
        candidate: A typed model that passes.
        passes: Sets of samples on which it is to pass.
        case: Criterion and metric. A metric needs the outputs of all samples, and has no margin.
        settings: Where to run, and the format of sums that the verdict assumed.
        budget: Pays for the runs.
        shapes: Shapes of the network's tensors; seen in a run if they are not known.
    """
    nodes = [*candidate.graph.all_nodes()]
    low = [n for n in nodes if any(v.dtype == ir.DataType.FLOAT16 for v in n.outputs)]
    if not low or any(n.op_type == "DequantizeLinear" for n in nodes):
        return None
    summing = [*filter(has_sum, low)]
    if settings.accumulate == "fp16" or not summing:
        return "fp16"
    try:
        if shapes is None:
            sample = passes[0].samples[0]
            shapes = seen_shapes(case.network, sample, runtime=settings.runtime)
        names = set(map(node_name, summing))
        counted = (n for n in case.network.all_nodes() if node_name(n) in names)
        if low_sum_work(counted, shapes) > ADDITIONS:
            return "fp32"
        emulation = emulate_typed(candidate, accumulate="each")
        beside = budget.beside(seconds=min(budget.left, BACKSTOP), work=budget.work - budget.spent)
        passed = beside.within(
            "sums", lambda: _hold(emulation, passes, case, settings, budget), False
        )
        budget.took_in(beside)
    except (CaseError, RunFailed):
        return "fp32"
    return "fp16" if passed else "fp32"


def _emulated(candidate: ir.Model, samples: Samples, settings: Settings) -> Sequence[Computed]:
    return inspect_samples(emulate_typed(candidate), (), samples, runtime=settings.runtime)[0]


def _hold(
    emulation: ir.Model,
    passes: Sequence["LowSums"],
    case: Case,
    settings: Settings,
    budget: Budget,
) -> bool:
    session = Session(emulation, runtime=settings.runtime)
    for one in passes:
        worst = one.worst(case)
        budget.spend("sums")
        if not one.hold(worst, session.run(one.samples[worst]), case):
            return False
    return True


@dataclass(frozen=True)
class LowSums:
    """Samples; a candidate runs with low sums on the one with the largest error.

    Attributes:
        samples: The samples.
        references: Reference outputs of each.
        results: Returns the outputs of each without low sums.
        known: Index of the sample with the largest error; None if it is not known.
    """

    samples: Samples
    references: Sequence[Outputs]
    results: Callable[[], Sequence[Computed]]
    known: int | None = None

    def worst(self, case: Case) -> int:
        """Return the index of the sample with the largest error."""
        # A sample that may fail, and does, shows nothing of the sums.
        may = case.criterion.failing is not None
        if self.known is not None and not may:
            return self.known
        by_size = case.criterion if case.metric is None else Criterion()
        scales = totals(self.references)
        pairs = zip(self.references, self.results(), strict=True)
        errors = [Excess(by_size, scales).update(*pair) for pair in pairs]
        return max(range(len(errors)), key=lambda i: -1 if may and errors[i] > 1 else errors[i])

    def hold(self, index: int, low: Outputs, case: Case) -> bool:
        """Return whether a candidate passes with the outputs of low sums on a sample."""
        criterion = case.criterion
        if case.metric is None:
            excess = Excess(criterion, totals(self.references))
            return excess.update(self.references[index], low) <= MARGIN
        results = [*self.results()]
        results[index] = low
        judged = judge_outputs(results, self.samples, self.references, criterion, case.metric)
        return judged.verdict.passed
