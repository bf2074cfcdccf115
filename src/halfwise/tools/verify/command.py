"""`verify`: judge a candidate against the FP32 model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from halfwise.case import Case, Settings
from halfwise.declarations import BuildingOptions, Inputs, Options, WorkerOptions
from halfwise.errors import UsageError
from halfwise.fixing.command import judge_sizes
from halfwise.fixing.holding import told_as_file
from halfwise.fixing.next_steps import after_verify
from halfwise.fixing.outcome import Result, candidate_worth, verify_run, with_unjudged
from halfwise.fixing.stages import Stages
from halfwise.graph.model import Network
from halfwise.graph.quantised import quantised_nodes, quantising
from halfwise.inputs import fit_recorded, holds_outputs, load_recorded
from halfwise.judging.judge import judge, judge_outputs
from halfwise.judging.reference import check, check_types, frozen_named, inspected_reference
from halfwise.metrics import Outputs, criterion_hints
from halfwise.options.engines import Target, engine_target, split
from halfwise.options.loading import load_asked, load_model, nodes_of
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    Observations,
    QuantisationLoss,
    Remade,
    Run,
    TensorName,
    Verdict,
    Worth,
)
from halfwise.store import free_folder, new_folder, refuse_run
from halfwise.tensorrt.layers import demand_engine, is_engine
from halfwise.tools.verify.baseline import Earlier, beside, demand_comparable, earlier
from halfwise.tools.verify.candidate import (
    demand_same_inputs,
    demand_valid,
    keep_outputs,
    observed_worst,
    shared_outputs,
    told_types,
)
from halfwise.tools.verify.engine import verify_built, verify_engine
from halfwise.tools.verify.quantised import Question, allowance, quantisation_loss
from halfwise.tools.verify.repairs import remade, with_remade


@bounded
def verify(
    model: Model,
    candidate: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    runner: str | None = None,
    baseline: str | Path | None = None,
    may_worsen: Sequence[str] = (),
    **options: Unpack[Options],
) -> Result:
    """Judge a candidate against the FP32 model: a model, an engine, or recorded outputs.

    Takes and raises what `fix` does. Every sample is judged, since there was no search.

    Args:
        model: FP32 model: path or proto.
        candidate: Any typed model (mixed, plain FP16, quantised, another tool's), emulated, or with
            `target` built into an engine and run; the path of an engine, which is run; or the path
            of outputs that another program computed on the inputs, judged unchanged: Polygraphy's
            `.json`, a folder of these, or a `.npz` (see `load_recorded`). Models and records may
            hold inner tensors too, see `shared_outputs`.
        inputs: Samples, as for `fix`.
        out: Run folder to create; must not exist. None writes nothing.
        watcher: Receives progress.
        runner: Runner whose outputs to judge, if the file holds several.
        baseline: Run folder of an earlier verdict on the same samples; a worse one fails.
        may_worsen: Allowed worsening of its figures: see `earlier`.
        options: See `Options`.
    """
    started = time.monotonic()
    watcher = watcher or Silent()
    request, target = understand_verify(inputs, options)
    settings, folder = request.settings, free_folder(out)
    before = earlier(baseline, may_worsen)
    if isinstance(candidate, str | Path):
        refuse_run(Path(candidate))
    builds = options.get("target") is not None
    if builds or (isinstance(candidate, str | Path) and is_engine(Path(candidate))):
        _refuse_without_emulation(request, runner)
        case, run = _in_engine(model, candidate, request, target, watcher, started, before)
        return _written(case, beside(run, before), candidate, folder, watcher)
    _refuse_worker(options)
    given = case = _asked(model, request, watcher, before)
    case, judged = _judging(candidate, case, request, watcher, runner)
    stages = Stages(watcher, nodes_of(case.network))
    references, nonfinite = _reference(case, settings, stages)
    hints = criterion_hints(case.criterion, references, case.input_shapes)
    worth, found = _beside(candidate, given, case, request, watcher)
    with stages("judge"):
        verdict = with_remade(judged(references, nonfinite), found)
    lost = None if verdict.passed else _lost(candidate, case, references, request, watcher)
    seconds = time.monotonic() - started
    made = verify_run(case, request, verdict, seconds, hints, worth=worth)
    run = beside(_with_next(made, case, request, candidate, lost), before)
    seen = None if folder is None else observed_worst(case, run, settings, watcher)
    told = {"remade": found, "quantisation": lost}
    return _written(case, run, candidate, folder, watcher, observations=seen, **told)


def _reference(
    case: Case, settings: Settings, stages: Stages
) -> tuple[list[Outputs], frozenset[TensorName]]:
    """Return the outputs of FP32 on every sample, and its tensors that are not finite."""
    with stages("reference"):
        check(case.network, runtime=settings.runtime)
        with frozen_named(case, settings):
            return inspected_reference(case.network, case.calibration, runtime=settings.runtime)


def _with_next(
    run: Run, case: Case, request: Request, candidate: Model, lost: QuantisationLoss | None
) -> Run:
    """Return the run with what to do next, if it judged a model file and says nothing yet."""
    if not isinstance(candidate, str | Path) or holds_outputs(Path(candidate)):
        return run
    passed = run.verdict.passed
    model = load_model(candidate)
    quantised = lost is not None and bool(quantised_nodes(model))
    integers = bool(quantising(model))
    steps = after_verify(
        *(case, request, Path(candidate)), passed=passed, quantised=quantised, integers=integers
    )
    return run.model_copy(update={"next_step": run.next_step or steps})


def _asked(model: Model, request: Request, watcher: Watcher, before: Earlier | None) -> Case:
    """Return the case; its samples match the baseline's, if there is one."""
    case = load_asked(model, request, watcher, split=False)
    demand_comparable(case, before)
    return replace(case, calibration=case.calibration.with_progress(watcher.step))


def _in_engine(
    model: Model,
    candidate: Model,
    request: Request,
    target: Target,
    watcher: Watcher,
    started: float,
    before: Earlier | None,
) -> tuple[Case, Run]:
    """Return the case and the record of an engine, given or built from a given model."""
    path = Path(candidate) if isinstance(candidate, str | Path) else None
    engine = demand_engine(path) if path is not None and is_engine(path) else None
    case = _asked(model, request, watcher, before)
    with frozen_named(case, request.settings):
        if engine is not None:
            return case, verify_engine(engine, case, request, target, watcher, started)
        other, case = _built_of(candidate, case, watcher)
        return case, verify_built(other, case, request, target, watcher, started)


def _built_of(candidate: Model, case: Case, watcher: Watcher) -> tuple[Network, Case]:
    """Return the model to build an engine from, and the case on its outputs."""
    if isinstance(candidate, str | Path) and holds_outputs(Path(candidate)):
        raise UsageError(
            f"{candidate} holds recorded outputs, so no engine can be built from it.",
            "Give a model, or leave --target out.",
        )
    other = load_model(candidate, watcher)
    demand_same_inputs(case.network, other.model)
    case = shared_outputs(case, {str(v.name) for v in other.graph.outputs}, watcher)
    keep_outputs(other.graph, {str(v.name) for v in case.network.graph.outputs})
    return other, case


def _lost(
    candidate: Model,
    case: Case,
    references: Sequence[Outputs],
    request: Request,
    watcher: Watcher,
) -> QuantisationLoss | None:
    """Return the effect of a quantised model's pairs on its outputs; None for other models."""
    if isinstance(candidate, str | Path) and holds_outputs(Path(candidate)):
        return None
    question = Question(
        load_model(candidate),
        case.network,
        case.calibration,
        references,
        case.criterion,
        case.metric,
        request.settings.accumulate,
        request.settings.runtime,
        watcher=watcher,
        budget=allowance(request.settings, case.calibration),
    )
    return quantisation_loss(question)


def _beside(
    candidate: Model, given: Case, case: Case, request: Request, watcher: Watcher
) -> tuple[Worth | None, Remade | None]:
    """Return a model's worth and its remade repairs; None for recorded outputs.

    Args:
        candidate: The model, or recorded outputs.
        given: The original case.
        case: The case on the candidate's outputs.
        request: The options.
        watcher: Receives progress.
    """
    if isinstance(candidate, str | Path) and holds_outputs(Path(candidate)):
        return None, None
    mixed, settings = load_model(candidate, watcher), request.settings
    worth = candidate_worth(case, settings, mixed)
    return worth, remade(given, mixed, runtime=settings.runtime, watcher=watcher)


def _written(
    case: Case,
    run: Run,
    candidate: Model,
    folder: Path | None,
    watcher: Watcher,
    *,
    observations: Observations | None = None,
    **found: Remade | QuantisationLoss | None,
) -> Result:
    given = str(candidate) if isinstance(candidate, str | Path) else "in memory"
    provenance = run.provenance.model_copy(update={"candidate": given})
    run = run.model_copy(update={"provenance": provenance, **found})
    if folder is not None:
        watcher.stage("store")
        with new_folder(folder) as partial:
            finish(partial, run, case, watcher, observations=observations)
    return Result(run, folder)


def _refuse_worker(options: Mapping[str, Any]) -> None:
    if options.keys() & WorkerOptions.__annotations__.keys() - {"run_timeout"}:
        raise UsageError(
            "Worker options do not apply here: the candidate is not an engine.",
            "Give an engine file (.engine, .plan or .trt), leave the TensorRT options out, or "
            "build an engine from the candidate: --target tensorrt.",
        )


def _refuse_without_emulation(request: Request, runner: str | None) -> None:
    given = "--accumulate" if "accumulate" in request.given else "--runner" if runner else ""
    if given:
        raise UsageError(
            f"{given} does not apply to an engine: nothing is emulated.",
            "Leave it out.",
        )


def _judging(
    candidate: Model, case: Case, request: Request, watcher: Watcher, runner: str | None
) -> tuple[Case, Callable[[Sequence[Outputs], frozenset[TensorName]], Verdict]]:
    """Load the candidate; return the case on its outputs, and a function that judges it.

    Loaded first, since running the reference may take minutes.
    """
    if isinstance(candidate, str | Path) and holds_outputs(Path(candidate)):
        return _judging_recorded(Path(candidate), case, request, watcher, runner)
    settings, samples = request.settings, case.calibration
    if runner is not None:
        raise UsageError(
            f"--runner {runner} does not apply to a model: it selects recorded outputs.",
            "Give the outputs in place of the model, or leave --runner out.",
        )
    other, case = _built_of(candidate, case, watcher)
    check_types(other, runtime=settings.runtime)
    demand_valid(other, runtime=settings.runtime)
    case = told_types(case, other, watcher)

    def emulate(references: Sequence[Outputs], nonfinite: frozenset[TensorName]) -> Verdict:
        judged = judge(
            other.model,
            samples,
            references,
            case.criterion,
            case.metric,
            reference_nonfinite=nonfinite,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
        judged = told_as_file(judged, other.model, case, settings, samples, references)
        verdict = judge_sizes(judged.verdict, case, other.model, samples, references, settings)
        return with_unjudged(verdict, case, request, other.model, samples, references)

    return case, emulate


def _judging_recorded(
    path: Path, case: Case, request: Request, watcher: Watcher, runner: str | None
) -> tuple[Case, Callable[[Sequence[Outputs], frozenset[TensorName]], Verdict]]:
    """Do what `_judging` does, for recorded outputs."""
    settings, samples = request.settings, case.calibration
    if "accumulate" in request.given:
        raise UsageError(
            "--accumulate does not apply to recorded outputs: nothing is emulated.",
            "Leave it out, or give the model that computed them.",
        )
    own = {str(v.name) for v in case.network.graph.outputs}
    recorded = load_recorded(path, len(samples), runner, wanted=own)
    case = shared_outputs(case, recorded.names, watcher)

    def compare(references: Sequence[Outputs], _: frozenset[TensorName]) -> Verdict:
        results = fit_recorded(recorded, references, samples.ids)
        verdict = judge_outputs(
            results,
            samples,
            references,
            case.criterion,
            case.metric,
            level="recorded",
            runner=recorded.runner,
        ).verdict
        verdict = judge_sizes(verdict, case, None, samples, references, settings)
        return with_unjudged(verdict, case, request, None, samples, references)

    return case, compare


def understand_verify(inputs: Inputs, options: Mapping[str, Any]) -> tuple[Request, Target]:
    """Return the options of `verify`, and the target of an engine.

    Raises:
        UsageError: see `understand` and `engine_target`.
    """
    builds = options.get("target") is not None
    worker, others = split(options, BuildingOptions if builds else WorkerOptions)
    others.pop("target", None)
    return understand(inputs, others), engine_target(worker)
