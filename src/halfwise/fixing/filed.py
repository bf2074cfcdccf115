"""Whether a plan also passes as its file runs, in ONNX Runtime and in each target."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Literal

import onnx_ir as ir
from msgspec import Struct

from halfwise import wording
from halfwise.case import FEW_SAMPLES, Case, FileRunner, Sample, Samples, Settings
from halfwise.emulation.accumulate import has_sum
from halfwise.emulation.blocks import MOST
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import Shapes, seen_shapes
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.attribute.evidence import Band, graded
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.kernels import elements, flops
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.graph.aside import write_back
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.sensitivity import decisions, first_of, leading_to
from halfwise.judging.judge import (
    Judged,
    build,
    fed,
    file_runners,
    flips,
    judge_outputs,
    run_as_file,
)
from halfwise.metrics import Computed, Excess, Outputs, OutputTotals, totals
from halfwise.records import Criterion, Failure, FileRun, Flip, Guard, NodeName, Verdict, replace
from halfwise.reporting.remarks import under, with_failures

Hard = tuple[Sample, Outputs, Mapping[str, OutputTotals]]
"""A sample with a large error, its reference outputs, and the totals of all references."""


class Filed(Struct, frozen=True):
    """What runners make of a plan's file on the samples of a search.

    Attributes:
        excess: The largest error, relative to what a trial may use.
        failing: Identifiers of the samples that fail.
        guards: What leads to the decisions that change there, as far as it may be kept.
    """

    excess: float = 0.0
    failing: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()


def filed(
    bench: Bench[Plan], budget: Budget, plan: Plan, asked: Sequence[int] | None = None
) -> Filed:
    """Return what targets make of a plan's file, and ONNX Runtime where nodes decide.

    On the samples that are asked, by index; on all without.

    Elsewhere, rounding less often hardly makes outputs worse; it is asked of plans once files have
    to pass. Nothing of what refuses the file, or has FP32 wrong: no other plan would change that.
    """
    asked = tuple(range(len(bench.samples)) if asked is None else asked)
    work = lambda: _filed(bench, budget, plan, asked)  # noqa: E731
    return bench.once(plan, "file", work, (bench.demands_files, asked))


def _filed(bench: Bench[Plan], budget: Budget, plan: Plan, asked: Sequence[int]) -> Filed:
    variant, model = plan.of, plan.of.write(plan)[0].model
    samples, references = bench.samples.select(asked), [bench.references[i] for i in asked]
    own, *targets = file_runners(variant.settings)
    deciding = tuple(decisions(variant.case.network))
    runners = [runner for runner in targets if runner.runs]
    if deciding or bench.demands_files:
        runners.insert(0, own)
    found = Filed()
    for runner in runners:
        if bench.demands_files and found.excess > 1:
            break  # The plan fails: a device need not say so twice.
        budget.spend("trial", len(samples))
        ran = _ran(runner, model, variant.case, samples, references)
        excess = 0.0 if ran.judged is None else bench.excess_of(ran.results, asked)
        if excess <= 1 or not may_mend(bench, variant, runner, samples, references):
            continue
        failing = () if ran.judged is None else ran.judged.failing
        found = Filed(
            max(found.excess, excess),
            tuple(dict.fromkeys((*found.failing, *(samples.ids[i] for i in failing)))),
            found.guards,
        )
        if runner is own and failing and not bench.demands_files:
            worst = samples.select(failing[:FEW_SAMPLES])
            flipped = _flips(model, deciding, worst, variant.settings)
            guards = _deciding(variant, deciding, flipped, excess * bench.tolerance.factor)
            found = replace(found, guards=tuple(guards))
    return found


def may_mend(
    bench: Bench[Plan],
    of: Variant,
    runner: FileRunner,
    samples: Samples,
    references: Sequence[Outputs],
) -> bool:
    """Return whether a plan may mend what a runner has wrong: not if it has FP32 wrong, too.

    FP32 has the repairs of the plans, and is asked once. ONNX Runtime computed the references.
    """
    if runner not in of.settings.targets:
        return True
    right = lambda: fp32_on(runner, of.case, samples, references)[0]  # noqa: E731
    return bench.once(Plan(of, of.computing), "fp32", right, (runner.name, samples.ids))


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


def judged_as_file(
    judged: Judged,
    candidate: ir.Model,
    case: Case,
    settings: Settings,
    samples: Samples,
    references: Sequence[Outputs],
    seen: Sequence[Hard] = (),
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
        seen: Other samples on which it has to hold with sums in FP16; see `lowest_sums`.
        budget: Likewise.
        shapes: Shapes of the network's tensors, likewise.
        always: Whether files run even if the emulation is not acceptable.
        may_mend: Returns whether a target that has the file wrong has FP32 right. If not, samples
            do not count as failing, as no search would mend that.
    """
    passed = judged.verdict.passed
    if not passed and not always:
        return judged
    ran = [
        _ran(runner, candidate, case, samples, references, settings.targets, may_mend)
        for runner in file_runners(settings)
    ]
    runs, failures = [one.run for one in ran], [f for one in ran for f in one.failures]
    failed = [one.judged for one in ran if one.judged and not one.judged.verdict.passed]
    if runs[0].passed is False:
        # The emulation has this arithmetic, and the tensors inside.
        few = samples.select(failed[0].failing[:FEW_SAMPLES])
        flips = _flips(candidate, decisions(case.network), few, settings)
        failures += map(_flip_failure, flips[: wording.FEW])
    verdict = replace(judged.verdict, as_file=tuple(runs))
    if failed:
        verdict = replace(verdict, failure_bound=failed[0].verdict.failure_bound)
    if passed and not failures:
        worst = _worst(judged.verdict, case.criterion)
        hard = (samples[worst], references[worst], totals(references)), *seen
        sums = lowest_sums(candidate, hard, case, settings, budget or Budget(), shapes)
        verdict = replace(verdict, sums=sums)
    verdict = with_failures(verdict, failures) if failures else verdict
    counts = (one.judged for one in ran if one.judged and one.run.fp32 is not False)
    failing = dict.fromkeys(index for judged in counts for index in judged.failing)
    return replace(judged, verdict=verdict, failing=tuple(failing), as_file=bool(failures))


def fp32_on(
    runner: FileRunner, case: Case, samples: Samples, references: Sequence[Outputs]
) -> tuple[bool, Sequence[int] | None]:
    """Return whether a target has the FP32 model right, and the samples where it has not.

    None for the samples if it does not run there. A builder has it right if it takes it.
    """
    ran = _ran(runner, case.network.model, case, samples, references, targets=[runner])
    right = not ran.run.not_run and ran.run.passed is not False
    return right, None if ran.judged is None else ran.judged.failing


def _outputs(
    runner: FileRunner,
    model: ir.Model,
    case: Case,
    samples: Samples,
    references: Sequence[Outputs],
    *,
    whole: bool,
) -> Sequence[Computed]:
    """Return what a runner computes; if `whole`, it has to run what was set aside, too.

    ONNX Runtime here lacks that, so only a target's refusal tells; it is asked on one sample.
    """
    results = run_as_file(model, samples, references, runner)
    if whole and case.aside is not None and case.aside.foreign:
        delivered = write_back(model, case.aside)
        names = {value.name for value in delivered.graph.inputs}
        sample = {name: array for name, array in samples[0].items() if name in names}
        runner.run(delivered, fed(delivered, Samples(samples.ids[:1], lambda _: sample)))
    return results


class _Ran(Struct, frozen=True):
    """What a runner made of a file: its record and its faults; judged outputs if there are any."""

    run: FileRun
    failures: tuple[Failure, ...] = ()
    results: Sequence[Computed] = ()
    judged: Judged | None = None


def _ran(
    runner: FileRunner,
    model: ir.Model,
    case: Case,
    samples: Samples,
    references: Sequence[Outputs],
    targets: Sequence[FileRunner] = (),
    has_fp32: Callable[[FileRunner], bool] | None = None,
) -> _Ran:
    """Run or build a file; what refuses it fails if it is a target: ONNX Runtime lacks kernels."""
    name, is_target = runner.name, runner in targets
    run, ran = FileRun(runner=name, version=runner.version, outputs={}), dict[str, Any]()
    try:
        if runner.runs:
            results = _outputs(runner, model, case, samples, references, whole=is_target)
            judged = judge_outputs(results, samples, references, case.criterion, case.metric)
            told = judged.verdict
            run = replace(run, passed=told.passed, outputs=told.outputs, metric=told.metric)
            ran = {"results": results, "judged": judged}
            failures = under("file", name, told.failures)
        else:
            built = build(model, samples, runner)
            run = replace(run, built=True, static=built.refused, traffic=built.traffic)
            failures = _folded(name, built.folded)
            if failures:
                run = replace(run, folded=built.folded, passed=False)
    except (CaseError, RunFailed) as error:
        run = replace(run, not_run=error.message)
        names = {"runner": name, "why": error.message}
        failures = (Failure(kind="refused", names=names),) if is_target else ()
        if is_target:
            run = replace(run, passed=False)
    if failures and is_target and has_fp32 is not None:
        run = replace(run, fp32=has_fp32(runner))
    return _Ran(run, failures, **ran)


def _folded(name: str, nodes: Sequence[NodeName]) -> tuple[Failure, ...]:
    names = {"runner": name, "nodes": wording.listed(nodes)}
    failure = Failure(kind="folded", names=names, numbers={"elements": len(nodes)})
    return (failure,) if nodes else ()


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


ADDITIONS = 2e8
"""Low sums are run if that rounds at most so many sums per sample, counted by `low_sum_work`: some
0.3 s, whatever else the machine does, as nothing is kept for what they show. Our choice."""
STEP = 1e4
"""Additions that take as long as starting a step of the loop: 1 ns each, and 10 µs."""
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


def _worst(verdict: Verdict, criterion: Criterion) -> int:
    """Return the index of the sample with the largest error.

    Where a share may fail, one that does shows nothing of the sums.
    """
    most = inf if criterion.failing is None else 1.0
    errors = [-1.0 if error > most else error for error in verdict.excesses]
    return errors.index(max(errors))


def lowest_sums(
    candidate: ir.Model,
    hard: Sequence[Hard],
    case: Case,
    settings: Settings,
    budget: Budget,
    shapes: Shapes | None = None,
) -> Literal["fp32", "fp16"] | None:
    """Return the lowest format of sums with which a candidate is known to pass.

    "fp16" if it passes with products, additions and reductions rounded one by one, as ONNX
    Runtime's WebGPU provider does, within `MARGIN` of the tolerance on a few samples, or if it has
    no such sum. "fp32" if it fails then, cannot be run so, takes more than `ADDITIONS`, or the
    budget is spent. None for a model without FP16, and for one with INT8, whose products are
    summed in INT32.

    Args:
        candidate: A typed model that passes.
        hard: The samples with the largest error.
        case: Criterion and metric.
        settings: Where to run, and the format of sums that the verdict assumed.
        budget: What is left for optional work; this is not counted.
        shapes: Shapes of the network's tensors; seen in a run if they are not known.
    """
    nodes = [*candidate.graph.all_nodes()]
    low = [n for n in nodes if any(v.dtype == ir.DataType.FLOAT16 for v in n.outputs)]
    if not low or any(n.op_type == "DequantizeLinear" for n in nodes):
        return None
    summing = [*filter(has_sum, low)]
    if settings.accumulate == "fp16" or not summing:
        return "fp16"
    if budget.is_spent:
        budget.leave_out("sums")
        return "fp32"
    try:
        if shapes is None:
            shapes = seen_shapes(case.network, hard[0][0], runtime=settings.runtime)
        names = set(map(node_name, summing))
        counted = (n for n in case.network.all_nodes() if node_name(n) in names)
        if low_sum_work(counted, shapes) > ADDITIONS:
            return "fp32"
        emulation = emulate_typed(candidate, accumulate="each")
        session = Session(emulation, runtime=settings.runtime)
        passes = all(_uses(case, session.run(s), r, scales) <= MARGIN for s, r, scales in hard)
    except (CaseError, RunFailed):
        return "fp32"
    return "fp16" if passes else "fp32"


def _uses(
    case: Case, outputs: Outputs, reference: Outputs, scales: Mapping[str, OutputTotals]
) -> float:
    """Return the error of a sample relative to what is allowed."""
    if case.metric is None:
        return Excess(case.criterion, scales).update(reference, outputs)
    return Tolerance(case.criterion, case.metric).of_one(reference, outputs)
