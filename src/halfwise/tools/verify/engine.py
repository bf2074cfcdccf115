"""Judge a given engine, or one built from a candidate, against the FP32 model."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from halfwise.case import Case, EngineSettings, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import UsageError
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.filed import judged_as_file
from halfwise.fixing.outcome import verify_run, with_unjudged
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, graphs_of, values_of
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LOW_TYPES
from halfwise.judging.judge import not_failing
from halfwise.judging.reference import check
from halfwise.metrics import Outputs
from halfwise.options.engines import Target
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import EngineFile, GivenEngine, Held, Run, Typing, Verdict
from halfwise.scratch import scratch
from halfwise.targets.runners import running
from halfwise.tensorrt.answers import profiles_of
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.constrain import quantised_types, readable
from halfwise.tensorrt.failures import build_failed
from halfwise.tensorrt.ports import check_covered, check_names
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.verify.gate import Gate


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
    settings = request.settings
    with usable(target.worker, watcher) as worker:
        file = worker.upload(path)
        measure = measured(worker, file, case, settings, target.settings)
        here = file.model_copy(update={"side": "here", "path": str(path)})
        references = _references(case, settings, watcher)
        verdict = measure.judge(file, case.calibration, references).verdict
        record = _given(measure, file, verdict).model_copy(update={"engine": here})
        return _run(case, request, verdict, references, started, record)


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
    settings, samples = request.settings, case.calibration
    with (
        usable(target.worker, watcher, exact=True) as worker,
        scratch() as folder,
        EngineMaker(
            case, settings, target.profiled(case), worker, folder, watcher
        ).lasting() as maker,
        running(settings.targets),
    ):
        candidate = readable(candidate, worker.info.tensorrt)
        demand_types(candidate, maker.builds.typing)
        watcher.stage("build")
        build = maker.engine("fp16", file=candidate).build()
        if build.engine is None:
            raise build_failed(build, "no engine of this candidate")
        measure = measured(worker, build.engine, case, settings, maker.engine_settings)
        types = quantised_types(candidate)
        # Of a file with low types, only its FP32 form tells which nodes compute.
        proof = measure.proof(build, candidate, roles_of(upcast(candidate)[0]), types)
        references = _references(case, settings, watcher)
        judged = measure.judge(build.engine, samples, references)
        evidence = {"build": build.model_copy(update={"layers": ()}), "proof": proof}
        record = _given(measure, build.engine, judged.verdict).model_copy(update=evidence)
        gate = Gate(case, candidate, references, settings, watcher)
        held: tuple[Held, ...] = (gate.engine(maker, judged.verdict, record.shapes),)
        if settings.targets:
            filed = candidate.model, case, settings, samples, references
            judged = judged_as_file(judged, *filed, always=True)
            held += gate.files(judged)
        run = _run(case, request, judged.verdict, references, started, record)
        return run.model_copy(update={"held": held})


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


def _references(case: Case, settings: Settings, watcher: Watcher) -> list[Outputs]:
    """Return the FP32 outputs of each sample; what follows judges by them."""
    watcher.stage("reference")
    check(case.network, runtime=settings.runtime)
    session = Session(case.network.model, runtime=settings.runtime)
    references: list[Outputs] = [session.run(sample) for sample in case.calibration]
    watcher.stage("judge")
    return references


def _given(measure: Measure, file: EngineFile, verdict: Verdict) -> GivenEngine:
    """Return the record of an engine, with its shapes on the samples that do not fail."""
    case = measure.case
    return GivenEngine(
        worker=measure.worker.info,
        engine=file,
        profiles=measure.engine_settings.profiles,
        shapes=measure.at_shapes(file, not_failing(verdict, case.calibration, case.criterion)),
        latency=measure.latency(file),
    )


def _run(
    case: Case,
    request: Request,
    verdict: Verdict,
    references: Sequence[Outputs],
    started: float,
    record: GivenEngine,
) -> Run:
    verdict = with_shapes(verdict, record.shapes)
    verdict = with_unjudged(verdict, case, request, None, case.calibration, references)
    return verify_run(case, request, verdict, time.monotonic() - started, record)


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
