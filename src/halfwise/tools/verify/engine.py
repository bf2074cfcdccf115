"""Judge the user's own engine against the FP32 model."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfwise.case import Case
from halfwise.declarations import Inputs, WorkerOptions
from halfwise.fixing.engines import Measure, with_shapes
from halfwise.fixing.outcome import verify_run, with_unjudged
from halfwise.judging.reference import check
from halfwise.metrics import Outputs, criterion_hints
from halfwise.options.engines import Target, engine_target, split
from halfwise.options.options import Request, understand
from halfwise.progress import Watcher
from halfwise.records import EngineFile, GivenEngine, Run, Verdict
from halfwise.tensorrt.fitting import check_names
from halfwise.tensorrt.profiles import check_covered
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.worker.described import profiles_of
from halfwise.tensorrt.working import usable


def understand_verify(inputs: Inputs, options: Mapping[str, Any]) -> tuple[Request, Target]:
    """Return the options of `verify`, and where an engine would run.

    Raises:
        UsageError: see `understand` and `engine_target`.
    """
    worker, others = split(options, WorkerOptions)
    return understand(inputs, others), engine_target(worker)


def verify_engine(
    path: Path,
    case: Case,
    request: Request,
    target: Target,
    watcher: Watcher,
    started: float,
) -> Run:
    """Return the record of a `verify` of an engine: all samples, and its profiles' shapes.

    Args:
        path: The engine file.
        case: The case; its calibration samples are judged, since none was searched on.
        request: The options.
        target: Where the engine runs.
        watcher: Is told about progress.
        started: `time.monotonic()` when the command began.

    Raises:
        RecordMismatch: TensorRT there cannot read the engine.
        CaseError: it has other inputs or outputs, or a sample is outside its profiles.
    """
    settings = request.settings
    with usable(target.workers[0], watcher, target.settings.wait_timeout) as worker:
        file = worker.upload(path)
        measure = measured(worker, file, case, request, target)
        watcher.stage("reference")
        session = check(case.network, runtime=settings.runtime)
        references: list[Outputs] = [session.run(sample) for sample in case.calibration]
        watcher.stage("judge")
        verdict, given = judged(measure, file, references)
        verdict = with_unjudged(verdict, case, request, None, case.calibration, references)
        here = file.model_copy(update={"side": "here", "path": str(path)})
    return verify_run(
        case,
        request,
        verdict,
        time.monotonic() - started,
        criterion_hints(case.criterion, references),
        given.model_copy(update={"engine": here}),
    )


def measured(
    worker: Worker, engine: EngineFile, case: Case, request: Request, target: Target
) -> Measure:
    """Return what measures an engine; its interface and profiles are those of the case.

    Raises:
        RecordMismatch: TensorRT there cannot read the engine.
        CaseError: it has other inputs or outputs, or a sample is outside its profiles.
    """
    described = worker.describe(engine, target.settings.run_timeout)
    graph = case.network.graph
    for kind, values, is_input in (
        ("inputs", graph.inputs, True),
        ("outputs", graph.outputs, False),
    ):
        found = [t.name for t in described.tensors if t.is_input == is_input]
        check_names(found, [v.name or "" for v in values], kind)
    profiles = profiles_of(described)
    check_covered(profiles, case.calibration)
    return Measure(worker, case, request.settings, replace(target.settings, profiles=profiles))


def judged(
    measure: Measure, engine: EngineFile, references: list[Outputs]
) -> tuple[Verdict, GivenEngine]:
    """Return the verdict on all samples, the profiles' shapes included, and what it rests on."""
    samples = measure.case.calibration
    verdict = measure.judge(engine, samples, references).verdict
    given = GivenEngine(
        worker=measure.worker.info,
        engine=engine,
        profiles=measure.engine_settings.profiles,
        shapes=measure.at_shapes(engine, samples),
        latency=measure.latency(engine),
    )
    return with_shapes(verdict, given.shapes), given
