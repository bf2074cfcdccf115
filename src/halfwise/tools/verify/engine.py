"""Judge a given engine, or one built from a candidate, against the FP32 model."""

import time
from dataclasses import replace
from pathlib import Path

from halfwise.case import Case, EngineSettings, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import UsageError
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.engines.workbench import Builds
from halfwise.fixing.outcome import verify_run, with_unjudged
from halfwise.formats import FP16
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, graphs_of, values_of
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LOW_TYPES, save
from halfwise.judging.judge import not_failing
from halfwise.judging.reference import check
from halfwise.metrics import Outputs, criterion_hints
from halfwise.options.engines import Target
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import EngineFile, GivenEngine, Run, Typing
from halfwise.scratch import scratch
from halfwise.tensorrt.answers import profiles_of
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.constrain import quantised_types, readable
from halfwise.tensorrt.failures import build_failed
from halfwise.tensorrt.ports import check_covered, check_names, profiles_from_data
from halfwise.tensorrt.versions import regime


def verify_engine(
    path: Path,
    case: Case,
    request: Request,
    target: Target,
    watcher: Watcher,
    started: float,
) -> Run:
    """Return the record of verifying an engine: all samples, and its profiles' shapes.

    Args:
        path: The engine file.
        case: The case; its calibration samples are judged, since there was no search.
        request: The options.
        target: The engine's target.
        watcher: Receives progress.
        started: `time.monotonic()` when the command began.

    Raises:
        RecordMismatch: TensorRT there cannot read the engine.
        CaseError: it has other inputs or outputs, or a sample is outside its profiles.
    """
    with usable(target.worker, watcher) as worker:
        file = worker.upload(path)
        measure = measured(worker, file, case, request.settings, target.settings)
        here = file.model_copy(update={"side": "here", "path": str(path)})
        return _verified(measure, file, request, watcher, started, engine=here)


def verify_built(
    candidate: Network,
    case: Case,
    request: Request,
    target: Target,
    watcher: Watcher,
    started: float,
) -> Run:
    """Return the record of verifying a model by an engine built from it.

    Weak typing allows FP16 besides the model's quantised types.

    Args:
        candidate: The model; strong typing uses its types.
        case: As for `verify_engine`; likewise the others.
        request: The options.
        target: Where and how the engine is built.
        watcher: Receives progress.
        started: `time.monotonic()` when the command began.

    Raises:
        CaseError: TensorRT refuses its quantisation, or a sample is outside the profiles.
        BuildFailed: there is no engine.
        UsageError: the model has low types, which weak typing ignores.
    """
    with (
        usable(target.worker, watcher, exact=True) as worker,
        scratch() as folder,
    ):
        candidate = readable(candidate, worker.info.tensorrt)
        samples = case.calibration
        profiles = target.profiled(case).profiles or profiles_from_data(candidate, samples)
        check_covered(profiles, samples)
        how = replace(target.settings, profiles=profiles)
        typing = regime(worker.info, how.typing, FP16)
        demand_types(candidate, typing)
        watcher.stage("build")
        save(candidate.model, folder / "model.onnx")
        builds = Builds(worker, how, typing, None, watcher)
        build = builds.build(folder / "model.onnx", "the candidate", low="fp16", tf32=how.tf32)
        if build.engine is None:
            raise build_failed(build, "no engine of this candidate")
        measure = measured(worker, build.engine, case, request.settings, how)
        types = quantised_types(candidate)
        # Of a file with low types, only its FP32 form tells which nodes compute.
        proof = measure.proof(build, candidate, roles_of(upcast(candidate)[0]), types)
        evidence = {"build": build.model_copy(update={"layers": ()}), "proof": proof}
        run = _verified(measure, build.engine, request, watcher, started, **evidence)
        builds.forget(None)
        return run


def demand_types(candidate: Network, typing: Typing) -> None:
    """Check that the builder respects the types in a candidate's file.

    Raises:
        UsageError: the file has low types, which weak typing ignores.
    """
    graphs = graphs_of(candidate.model)
    if typing == "weak" and any(v.dtype in LOW_TYPES for g in graphs for v in values_of(g)):
        raise UsageError(
            "Weak typing ignores the FP16 or BF16 types in the candidate's file.",
            "Judge its emulation, without --target; fix MODEL --target tensorrt finds constraints.",
        )


def _verified(
    measure: Measure,
    file: EngineFile,
    request: Request,
    watcher: Watcher,
    started: float,
    **evidence: object,
) -> Run:
    case, samples = measure.case, measure.case.calibration
    watcher.stage("reference")
    check(case.network, runtime=request.settings.runtime)
    session = Session(case.network.model, runtime=request.settings.runtime)
    references: list[Outputs] = [session.run(sample) for sample in samples]
    watcher.stage("judge")
    verdict = measure.judge(file, samples, references).verdict
    record = GivenEngine(
        worker=measure.worker.info,
        engine=file,
        profiles=measure.engine_settings.profiles,
        shapes=measure.at_shapes(file, not_failing(verdict, samples, case.criterion)),
        latency=measure.latency(file),
    )
    verdict = with_shapes(verdict, record.shapes)
    verdict = with_unjudged(verdict, case, request, None, samples, references)
    return verify_run(
        case,
        request,
        verdict,
        time.monotonic() - started,
        criterion_hints(case.criterion, references),
        record.model_copy(update=evidence),
    )


def measured(
    worker: Worker, engine: EngineFile, case: Case, settings: Settings, how: EngineSettings
) -> Measure:
    """Return the measure of an engine, after checking its interface and profiles.

    Raises:
        RecordMismatch: TensorRT there cannot read the engine.
        CaseError: it has other inputs or outputs, or a sample is outside its profiles.
    """
    described = worker.describe(engine, how.run_timeout)
    graph = case.network.graph
    for kind, values, is_input in (
        ("inputs", graph.inputs, True),
        ("outputs", graph.outputs, False),
    ):
        names = [t.name for t in described.tensors if t.is_input == is_input]
        check_names(names, [v.name or "" for v in values], kind)
    profiles = profiles_of(described)
    check_covered(profiles, case.calibration)
    return Measure(worker, case, settings, replace(how, profiles=profiles))
