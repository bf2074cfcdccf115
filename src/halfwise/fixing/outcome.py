"""Record a run and return it: costs, provenance, what no sample tests, remarks."""

import functools
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from halfwise import memory
from halfwise.case import Case, Samples, Settings
from halfwise.emulation.ort import Session, runtime_version
from halfwise.emulation.typed import TF32_MARK, emulate_tf32, tf32_nodes
from halfwise.errors import CaseError
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.next_steps import after_untested, next_steps, sample_profiles
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.fixing.plan.rules import starting_plan
from halfwise.fixing.space import Space
from halfwise.graph.casts import FORMATS
from halfwise.graph.conversion import low_nodes, raise_opset, upcast
from halfwise.graph.model import Network, opset_of
from halfwise.graph.quantised import quantising
from halfwise.graph.weights import (
    LOW_TYPES,
    without_weights,
)
from halfwise.judging.judge import computed, judge_outputs, with_bound
from halfwise.judging.reference import find_unjudged
from halfwise.metrics import Outputs, takes_any_sample
from halfwise.metrics.untested import failure_bound
from halfwise.options.options import Request
from halfwise.records import (
    FP32_ENGINE,
    UNSHOWN,
    Cost,
    Criterion,
    EngineRung,
    Engines,
    Failure,
    GivenEngine,
    Held,
    LadderRung,
    NodeName,
    Provenance,
    RightBy,
    Run,
    RunKind,
    Step,
    TaskScore,
    Verdict,
    Worth,
    replace,
)
from halfwise.reporting.remarks import clause, in_words, not_real, with_failures
from halfwise.reporting.verdict import ANY_SAMPLE, not_judged
from halfwise.wording import count, listed, number

_IMPORTED = {"onnx": onnx, "onnx-ir": ir, "numpy": np, "ml-dtypes": ml_dtypes}
"""Packages that tell their version; to look that of others up takes 0.7 ms each."""


def fix_run(
    case: Case,
    request: Request,
    fixed: Fixed,
    seconds: float,
    out: Path | None,
    engines: Engines | None = None,
    further: tuple[Engines, ...] = (),
) -> Run:
    """Return the record of a `fix`.

    Args:
        case: The case.
        request: The options.
        fixed: Result of the search.
        seconds: Wall time of the whole run.
        out: The run folder.
        engines: Results of real engines on the first device.
        further: Results on the other devices.
    """
    verdict = counting_joined(fixed.verdict, fixed.search.joined, case.criterion)
    model = None if verdict.level == "engine" else fixed.rewritten.model
    heldout = fixed.heldout.rest, fixed.heldout.rest_references
    verdict = with_unjudged(verdict, case, request, model, *heldout)
    kept = frozenset(k.node for k in fixed.plan.searched)
    worth = worth_of(fixed.space, fixed.assigned, engines)
    verdict = final_verdict(verdict, case, request)
    fixed = _at_the_end(fixed, None if engines is not None and engines.full else kept)
    profiles = sample_profiles(case) if engines is None else ()
    devices = () if engines is None else (engines, *further)
    run = Run(
        kind="fix",
        criterion=case.criterion,
        accumulate=request.settings.accumulate,
        io=request.settings.io,
        headroom=request.settings.headroom,
        baseline=fixed.baseline,
        all_int8=fixed.all_int8,
        guards=fixed.guards,
        growth=fixed.growth,
        followed=fixed.followed,
        plan=fixed.plan,
        search=fixed.search,
        verdict=verdict,
        original_names=dict(case.network.original_names),
        warnings=warnings(case, len(fixed.plan.repairs)),
        engines=engines,
        further=further,
        profiles=profiles,
        worth=worth,
        curve=fixed.curve,
        rungs=rungs_of(fixed, verdict, request.right_by, engines) if request.ladder else (),
        without_int8=fixed.without_int8,
        held=held_of(verdict),
        next_step=next_steps(verdict, case, request, fixed, profiles, out, devices, worth),
        cost=cost(fixed.evaluations, seconds, fixed.stage_seconds),
        provenance=provenance(case, request),
    )
    return in_words(run)


def held_of(verdict: Verdict) -> tuple[Held, ...]:
    """Return, for each target that has a file wrong, whether it has FP32 right."""
    return tuple(
        Held(target=run.runner, version=run.version, outcome="fragile" if run.fp32 else "fp32")
        for run in verdict.as_file
        if run.fp32 is not None
    )


def _at_the_end(fixed: Fixed, plan: frozenset[NodeName] | None) -> Fixed:
    """Add what the budget ended, now that all stages are over, and the curve of its plan."""
    budget = fixed.space.budget
    search = replace(
        fixed.search,
        cut=tuple(budget.cut),
        ended_by=tuple(budget.ended_by),
        spent=budget.spent / len(fixed.space.variant.case.calibration),
    )
    return replace(fixed, search=search, curve=fixed.curve.of_plan(plan))


def verify_run(
    case: Case,
    request: Request,
    verdict: Verdict,
    seconds: float,
    engine: GivenEngine | None = None,
    worth: Worth | None = None,
) -> Run:
    """Return the record of a `verify`.

    Args:
        case: The case.
        request: The options.
        verdict: On the candidate.
        seconds: Wall time of the whole run.
        engine: The candidate, if it is an engine.
        worth: Worth of the candidate, if known.
    """
    final, spent = final_verdict(verdict, case, request), cost(1, seconds, {})
    return unsearched_run("verify", case, request, final, spent, given_engine=engine, worth=worth)


def unsearched_run(
    kind: RunKind,
    case: Case,
    request: Request,
    verdict: Verdict,
    spent: Cost,
    next_step: tuple[Step, ...] = (),
    **found: Any,
) -> Run:
    """Return the record of a run that searched no plan and has none, with what else it `found`."""
    return Run(
        kind=kind,
        criterion=case.criterion,
        accumulate=request.settings.accumulate,
        io=request.settings.io,
        headroom=request.settings.headroom,
        baseline=None,
        guards=(),
        growth=(),
        plan=None,
        search=None,
        verdict=verdict,
        original_names=dict(case.network.original_names),
        warnings=warnings(case),
        next_step=next_step or after_untested(verdict),
        cost=spent,
        provenance=provenance(case, request),
        **found,
    )


def counting_joined(verdict: Verdict, joined: Sequence[str], criterion: Criterion) -> Verdict:
    """Return the verdict; its bound counts the samples that joined and that it does not judge."""
    bound, further = verdict.failure_bound, {*joined} - {*verdict.samples}
    if bound is None or not further:
        return verdict
    bound = failure_bound(bound.samples, bound.judged, len(further))
    return with_bound(verdict, bound, criterion.failing)


def final_verdict(verdict: Verdict, case: Case, request: Request) -> Verdict:
    """Return the verdict with hints; random inputs fail it unless allowed."""
    verdict = replace(verdict, hints=(*verdict.hints, *_weak_pass(verdict)))
    if case.real or request.settings.allow_random:
        return verdict
    verdict = with_failures(verdict, (Failure(kind="not-real", text=not_real(case.made_up)),))
    return replace(verdict, on_real_data=False)


def _weak_pass(verdict: Verdict) -> tuple[str, ...]:
    """Return a hint if a task metric passed although the outputs are far off."""
    worst = max((o.rel_max for o in verdict.outputs.values()), default=0.0)
    if verdict.metric is None or not verdict.passed or worst <= 0.1:
        return ()
    return (
        f"{listed(verdict.metric.metrics)} passed on {count(len(verdict.samples), 'sample')} "
        f"although an output is off by {number(worst)} of its largest value: judge on more "
        "samples before relying on it.",
    )


def warnings(case: Case, repairs: int = 0) -> tuple[str, ...]:
    """Return the warnings among the case's notes, which concern the file before `repairs`."""
    notes = (note for note in case.notes if note.severity == "warning")
    texts = tuple(clause(n, repairs=repairs) for n in notes)
    if renamed := len(case.network.original_names):
        texts += (
            f"{count(renamed, 'node')} had no name or shared one; original_names in run.json maps "
            "new names to old ones",
        )
    return texts


def cost(evaluations: int, seconds: float, stages: dict[str, float]) -> Cost:
    """Return the run's resource use; peak memory is this process's."""
    return Cost(
        evaluations=evaluations,
        seconds=seconds,
        stage_seconds=stages,
        peak_rss_bytes=memory.peak(),
    )


def provenance(case: Case, request: Request) -> Provenance:
    """Return what is needed to repeat the run."""
    return Provenance(
        versions=versions(),
        platform=f"{platform.system()} {platform.machine()}",
        device=request.settings.runtime.device,
        model=str(case.network.path or "in memory"),
        folder=_working_directory(),
        model_sha256=case.network.sha256,
        data=str(inputs) if isinstance(inputs := request.data.inputs, str | Path) else None,
        notes=case.notes,
        inputs_sha256=case.data_sha256,
        command=request.command,
        options=request.given,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _working_directory() -> str:
    """Return it; "" if it no longer exists, which must not lose a run."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of everything that influences a result."""
    return {
        "python": platform.python_version(),
        "onnxruntime": runtime_version(),
        **{package: str(module.__version__) for package, module in _IMPORTED.items()},
        **{package: version(package) for package in ("halfwise", "scipy")},
    }


def with_unjudged(
    verdict: Verdict,
    case: Case,
    request: Request,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
) -> Verdict:
    """Add what no sample tests to the verdict, which fails unless this is allowed.

    A verdict that fails only for this, or as the search saw all samples, or for too few, is "not
    judged".

    Args:
        verdict: On the candidate.
        case: The case.
        request: The options.
        candidate: The judged model; see `find_unjudged`.
        samples: The judged samples.
        references: FP32 outputs of each.
    """
    runtime = request.settings.runtime
    unjudged = find_unjudged(case, candidate, samples, references, runtime=runtime)
    if takes_any_sample(case.criterion, case.metric, references, samples.labels):
        verdict = replace(verdict, hints=(*verdict.hints, ANY_SAMPLE))
    failures = {failure.kind for failure in verdict.failures}
    unshown = bool(failures) and failures <= UNSHOWN
    if request.settings.allow_unjudged or not unjudged:
        return replace(verdict, unjudged=unjudged, judged=not unshown)
    judged, split = not (verdict.passed or unshown), len(case.heldout) > 0
    lacking = (Failure(kind="unjudged", text=not_judged(each, heldout=split)) for each in unjudged)
    verdict = with_failures(verdict, lacking)
    return replace(verdict, judged=judged, unjudged=unjudged)


def worth_of(space: Space, plan: Plan, engines: Engines | None = None) -> Worth | None:
    """Return the worth of a plan.

    None if shapes are unknown, including those in bodies, and if the model only moves data, which
    costs nothing.

    Args:
        space: The plans, after a search.
        plan: The plan, with its types.
        engines: Results of real engines; measured times take precedence.
    """
    variant, cost = space.variant, space.variant.cost(plan)
    prices = variant.prices
    if prices is None or cost is None:
        return None
    full = engines is not None and engines.full
    predicted = Worth(cost=prices.fp32 if full else cost, fp32=prices.fp32)
    return _timed(predicted, engines, variant.settings.fmt.name.upper())


def candidate_worth(case: Case, settings: Settings, candidate: Network) -> Worth | None:
    """Return a candidate's worth: that of the plan that its types are.

    None if none of its nodes is low, if it is quantised or another model, and as for `worth_of`.

    Args:
        case: The case.
        settings: Where to run.
        candidate: In the types of its file; its inputs may be low.
    """
    stored = upcast(replace(candidate, model=without_weights(candidate.model)))[1]
    low = next((t for t, name in LOW_TYPES.items() if name in stored.formats), None)
    if low is None or quantising(candidate):
        return None
    opset = opset_of(candidate.model)
    try:
        network = raise_opset(case.network, opset) if opset > case.network.opset else case.network
        settings = replace(settings, fmt=FORMATS[low], io="fp32")
        variant = Variant(replace(case, network=network, stored=stored), settings)
        start = starting_plan(network, variant.roles, candidate)
    except CaseError:
        return None
    tf32 = any(TF32_MARK in node.metadata_props for node in candidate.nodes())
    bf16 = low_nodes(candidate, (ir.DataType.BFLOAT16,)) & variant.computing
    bf16 = frozenset() if low == ir.DataType.BFLOAT16 else bf16
    plan = Plan(variant, start.kept | bf16, bf16, tf32)
    cost, prices = variant.cost(plan), variant.prices
    if cost is None or prices is None:
        return None
    return Worth(cost=cost, fp32=prices.fp32, low=FORMATS[low].low)


def _timed(worth: Worth, engines: Engines | None, low: str) -> Worth:
    """Add the times of the delivered engine and of FP32, relative to all low."""
    if engines is None:
        return worth
    times = {r.name: r.latency.median_ms for r in engines.results if r.latency is not None}
    if engines.row is None or not times.keys() >= {engines.row.name, low, FP32_ENGINE}:
        return worth
    delivered, fp32 = times[engines.row.name], times[FP32_ENGINE]
    return replace(worth, measured=delivered / times[low], measured_fp32=fp32 / times[low])


def rungs_of(
    fixed: Fixed, verdict: Verdict, by: RightBy | None, engines: Engines | None = None
) -> tuple[LadderRung, ...]:
    """Return the result of each rung, most exact first.

    FP32 and TF32 have no plan: all products are FP32, or all those of the main graph are TF32. TF32
    kernels are assumed to round toward zero, as the coarsest do (`emulation/tf32.py`).

    Args:
        fixed: Results of the run, and of each type if there are several.
        verdict: The run's verdict, on the plan or its engine.
        by: The check of FP32 that was made first; None if there was none.
        engines: Results of real engines; if there are any, their verdicts and times count.
    """
    low, by = fixed.rungs or (fixed,), by or _labelled(fixed, verdict)
    rungs = [*_without_plan(fixed, by), *(_low(one, fixed, verdict) for one in low)]
    if engines is not None:
        factor = fixed.space.bench.tolerance.factor
        rungs = [_in_engines(rung, engines, factor) for rung in rungs]
    rungs = [_counted(rung, verdict) for rung in rungs]
    best = _fastest(rungs, None if engines is None else engines.rung)
    return tuple(replace(r, chosen=r.rung == best) for r in rungs)


_UNTESTED = UNSHOWN | {"not-real", "unjudged"}
"""Failures of the data alone, which judge no rung."""


def _counted(rung: LadderRung, verdict: Verdict) -> LadderRung:
    """Return a rung as not judged if the run's data show nothing."""
    untested = _UNTESTED & {failure.kind for failure in verdict.failures}
    if rung.by is not None or not untested:
        return rung
    wrong = rung.passed is False and not {f.kind for f in rung.failures} <= _UNTESTED
    return rung if wrong else replace(rung, passed=None)


def _labelled(fixed: Fixed, verdict: Verdict) -> RightBy | None:
    """Return whether labels show FP32 to be right: a metric with labels that does not guess."""
    case = fixed.space.variant.case
    wrong = any(one.kind in ("guessing", "metric") for one in verdict.unjudged)
    judged = case.heldout.labels is not None and case.metric is not None
    return "labels" if judged and not wrong else None


def _rung(one: Fixed) -> EngineRung:
    return "int8" if one.plan.has_int8 else one.plan.low


def _without_plan(fixed: Fixed, by: RightBy | None) -> Iterator[LadderRung]:
    """Yield the FP32 rung and, if there are products, the rung with all of them in TF32."""
    variant, bench, heldout = fixed.space.variant, fixed.space.bench, fixed.heldout
    network, case, prices = fixed.original.variant.case.network, variant.case, variant.prices
    on = heldout.samples, heldout.references, case.criterion, case.metric
    yield LadderRung(
        rung="fp32",
        passed=None if by is None else True,
        by=by,
        scores=_scores(judge_outputs(heldout.references, *on).verdict),
        cost=None if prices is None else prices.fp32,
    )
    products = tf32_nodes(network)
    if not products:
        return
    price = None if prices is None else prices.tf32
    rung = LadderRung(rung="tf32", passed=None, candidates=len(products), cost=price)
    with suppress(CaseError):
        runtime = variant.settings.runtime
        session = Session(emulate_tf32(network), runtime=runtime)
        error = bench.excess_of([computed(session, sample) for sample in bench.samples])
        rung = replace(rung, error=error * bench.tolerance.factor)
        results = [computed(session, sample) for sample in heldout.samples]
        rung = _as_judged(rung, judge_outputs(results, *on).verdict)
    yield rung


def _scores(verdict: Verdict) -> tuple[TaskScore, ...]:
    return () if verdict.metric is None else verdict.metric.scores


def _as_judged(rung: LadderRung, verdict: Verdict) -> LadderRung:
    passed, scores = verdict.passed, _scores(verdict)
    return replace(rung, passed=passed, failures=verdict.failures, scores=scores)


def _low(one: Fixed, fixed: Fixed, verdict: Verdict) -> LadderRung:
    """Return the rung of a type that has a plan; `verdict` is that of the run, `fixed`."""
    space, plan = one.space, one.assigned
    judged = verdict if _rung(one) == _rung(fixed) else one.verdict
    variant, bench, choices = space.variant, space.bench, space.choices
    rung = LadderRung(
        rung=_rung(one),
        passed=None,
        kept=len(one.plan.keep),
        left_out=len(one.plan.left_out),
        candidates=len(choices) if one.plan.has_int8 else one.plan.candidates,
        error=bench.excess(plan) * bench.tolerance.factor,
        cost=variant.cost(plan),
    )
    untried = one.plan.left_out and not one.plan.int8
    return replace(_as_judged(rung, judged), passed=None if untried else judged.passed)


def _in_engines(rung: LadderRung, engines: Engines, factor: float) -> LadderRung:
    """Return a rung with the result of its fastest engine that passed, else of another; if any.

    `factor` is the share of the tolerance that the search may use; excesses are relative to it.
    """
    judged = [(r, r.verdict) for r in engines.results if r.rung == rung.rung and r.verdict]
    if not judged:
        return rung
    row, verdict = min(
        judged,
        key=lambda one: (not one[1].passed, one[0] is not engines.row, one[0].milliseconds),
    )
    return replace(
        _as_judged(rung, verdict),
        latency=row.latency,
        kept=rung.kept if rung.rung == "int8" else row.kept,
        passed=verdict.passed if rung.by is None else rung.passed,
        error=rung.error if row.excess is None else row.excess * factor,
    )


def _fastest(rungs: Sequence[LadderRung], delivered: EngineRung | None) -> EngineRung | None:
    """Return the delivered rung; without engines, the passing one of least predicted cost.

    FP32 needs no proof unless something showed it wrong. Where a plan with low nodes passes, its
    file is delivered: only where everything stays FP32 can its products be TF32.
    """
    if delivered is not None:
        return delivered
    right = [r for r in rungs if r.passed or (r.rung == "fp32" and r.passed is None)]
    low = [r for r in right if r.rung not in ("fp32", "tf32") and _is_low(r)]
    judged = any(r.passed is not None for r in rungs)
    priced = [r for r in low or right if r.cost is not None and judged]
    return min(priced, key=lambda r: r.cost or 0.0).rung if priced else None


def _is_low(rung: LadderRung) -> bool:
    """Return whether any node has the type of a rung that has a plan."""
    return (rung.left_out if rung.rung == "int8" else rung.kept) < rung.candidates
