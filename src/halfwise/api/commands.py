"""One function per command."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from halfwise.api.candidates import demand_same_inputs, keep_outputs, shared_outputs
from halfwise.api.engine_options import WorkerOptions
from halfwise.api.engines import fix_in_engines
from halfwise.api.frozen import frozen_named
from halfwise.api.judging import understand_verify, verify_engine
from halfwise.api.limits import bounded
from halfwise.api.linting import precision_remarks
from halfwise.api.loading import load_case, load_model, load_start
from halfwise.api.options import Inputs, Model, Options, Request, understand
from halfwise.api.outcome import fix_run, verify_run, versions
from halfwise.api.result import Result
from halfwise.api.unjudged import with_unjudged
from halfwise.api.worker_facts import worker_facts
from halfwise.api.workers import resolve
from halfwise.backends.ort import devices
from halfwise.backends.tensorrt.plans import demand_engine, is_engine
from halfwise.case import Case
from halfwise.errors import UsageError
from halfwise.formats import BF16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.opset import BF16_OPSET
from halfwise.graph.roles import Roles, roles_of
from halfwise.metrics import Outputs, verdict_hints
from halfwise.pipeline import fix as run_fix
from halfwise.pipeline.decisions import told_as_file
from halfwise.pipeline.sizes import judge_sizes, verdict_at_sizes
from halfwise.pipeline.worth import candidate_worth
from halfwise.progress import Silent, Watcher
from halfwise.records import Observations, Run, TensorName, Verdict, Worth
from halfwise.stages.check import check, check_types
from halfwise.stages.inputs import fit_recorded, holds_outputs, load_recorded
from halfwise.stages.judge import judge, judge_outputs
from halfwise.stages.observe import observe as run_observe
from halfwise.stages.reference import inspected_reference
from halfwise.stages.rewrite import save_checked
from halfwise.store import (
    MODEL_FILE,
    new_folder,
    read_run,
    refuse_existing,
    write_observations,
    write_run,
)


@bounded
def fix(
    model: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Result:
    """Find the smallest set of FP32 nodes, write the mixed model, and judge it on held-out data.

    Args:
        model: FP32, FP16 or BF16 model: path or proto.
        inputs: Samples: file, folder, `file.py:function`, or arrays in memory.
        out: Run folder to make; must not exist. None writes nothing.
        watcher: Is told about progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option cannot be used. A failed verdict is no
            error: see `Result.run.verdict`.
    """
    started = time.monotonic()
    request = understand(inputs, options)
    folder = _free(out)
    start = None if request.start_from is None else load_start(request.start_from)
    if isinstance(start, Network):
        check_types(start, device=request.settings.device, libraries=request.settings.libraries)
    watcher = watcher or Silent()
    case = _linted(_load(model, request, watcher), watcher)
    with frozen_named(case, request.settings):
        if request.target is not None:
            return fix_in_engines(case, request, watcher, start=start, out=folder, started=started)
        fixed = run_fix(case, request.settings, watcher, start_from=start)
    fixed = replace(fixed, verdict=verdict_at_sizes(fixed, case, request.settings))
    hints = verdict_hints(case.criterion, fixed.references)
    run = fix_run(case, request, fixed, time.monotonic() - started, hints, folder)
    if folder is not None:
        with new_folder(folder) as partial:
            save_checked(
                fixed.rewritten.model,
                partial / MODEL_FILE,
                device=request.settings.device,
                libraries=request.settings.libraries,
            )
            write_observations(partial, fixed.observations)
            write_run(partial, run)
    return Result(run, folder, fixed.rewritten.model)


@bounded
def verify(
    model: Model,
    candidate: Model,
    inputs: Inputs,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    runner: str | None = None,
    **options: Unpack[Options],
) -> Result:
    """Judge a candidate against the FP32 model: another model, or outputs on record.

    Takes and raises what `fix` does. Every sample is judged, since none was searched on.

    Args:
        model: FP32 model: path or proto.
        candidate: Any typed model (mixed, plain FP16, a peer's), which is emulated; the path of an
            engine, which is run; or the path of outputs that something else computed on the inputs,
            which are judged as they are: Polygraphy's `.json`, a folder of them, or a `.npz` (see
            `load_recorded`). Models and records may hold inner tensors too, see `shared_outputs`.
        inputs: Samples, as for `fix`.
        out: Run folder to make; must not exist. None writes nothing.
        watcher: Is told about progress.
        runner: Whose outputs to judge, where they are of several runners.
        options: See `Options`.
    """
    started = time.monotonic()
    watcher = watcher or Silent()
    request, target = understand_verify(inputs, options)
    settings, folder = request.settings, _free(out)
    if isinstance(candidate, str | Path) and is_engine(Path(candidate)):
        _refuse_without_emulation(request, runner)
        engine = demand_engine(Path(candidate))
        case = _load(model, request, watcher, split=False)
        with frozen_named(case, settings):
            run = verify_engine(engine, case, request, target, watcher, started)
        return _written(run, folder)
    if options.keys() & WorkerOptions.__annotations__.keys() - {"run_timeout"}:
        raise UsageError(
            "What names a worker has no meaning here: the candidate is no engine.",
            "Give an engine file (.engine, .plan or .trt), or leave the TensorRT options out.",
        )
    case = _load(model, request, watcher, split=False)
    case, judged = _judging(candidate, case, request, watcher, runner)
    watcher.stage("reference")
    check(case.network, device=settings.device, libraries=settings.libraries)
    with frozen_named(case, settings):
        references, nonfinite = inspected_reference(
            case.network, case.calibration, device=settings.device, libraries=settings.libraries
        )
    watcher.stage("judge")
    hints = verdict_hints(case.criterion, references)
    seconds = time.monotonic() - started
    worth = _worth(candidate, case, request)
    run = verify_run(case, request, judged(references, nonfinite), seconds, hints, worth=worth)
    return _written(run, folder)


@bounded
def observe(
    model: Model,
    inputs: Inputs,
    *,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Observations:
    """Return what every float tensor of the FP32 model looks like on the samples."""
    watcher = watcher or Silent()
    request = understand(inputs, options)
    settings = request.settings
    case = _load(model, request, watcher, split=False)
    check(case.network, device=settings.device, libraries=settings.libraries)
    watcher.stage("observe")
    with frozen_named(case, settings):
        return run_observe(
            case.network,
            case.calibration,
            settings.fmt,
            roles=_roles(case.network, settings.fmt),
            device=settings.device,
            libraries=settings.libraries,
            progress=watcher.step,
        )[0]


def report(folder: str | Path) -> Run:
    """Return the run that a folder holds, to render it again."""
    return read_run(Path(folder))


def doctor(
    *,
    trt_python: str | Path | None = None,
    trt_command: str | None = None,
    trt_worker: str | None = None,
) -> dict[str, str]:
    """Return what is here that a run depends on: versions, devices, TensorRT workers.

    Args:
        trt_python: As in `Options`; the other two likewise.
        trt_command: Command of a worker.
        trt_worker: Name of a worker.

    Raises:
        UsageError: what names the workers cannot be meant that way. One that cannot be used is
            told, with the reason.
    """
    workers = resolve(trt_python=trt_python, trt_command=trt_command, trt_worker=trt_worker)
    found = {**versions(), "platform": platform.platform()}
    for device, available in devices().items():
        found[f"device {device}"] = "available" if available else "not available"
    return found | worker_facts(workers)


def _roles(network: Network, fmt: Format) -> Roles:
    """Return the roles at the opset to which `fix` would raise the model."""
    opset = max(network.opset, BF16_OPSET) if fmt == BF16 else None
    return roles_of(network, low_type(fmt), opset=opset)


def _worth(candidate: Model, case: Case, request: Request) -> Worth | None:
    """Return what a mixed model is worth; outputs on record have no nodes."""
    if isinstance(candidate, str | Path) and holds_outputs(Path(candidate)):
        return None
    return candidate_worth(case, request.settings, load_model(candidate))


def _free(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    refuse_existing(Path(out))
    return Path(out)


def _load(model: Model, request: Request, watcher: Watcher | None, *, split: bool = True) -> Case:
    watcher = watcher or Silent()
    watcher.stage("load")
    case = load_case(model, request.data, request.criterion, split=split)
    for note in case.notes:
        watcher.note(note)
    return case


def _linted(case: Case, watcher: Watcher) -> Case:
    """Return the case with what the linter has against its file among the notes."""
    remarks = precision_remarks(case.network)
    for remark in remarks:
        watcher.note(remark)
    return replace(case, notes=(*case.notes, *remarks))


def _written(run: Run, folder: Path | None) -> Result:
    if folder is not None:
        with new_folder(folder) as partial:
            write_run(partial, run)
    return Result(run, folder)


def _refuse_without_emulation(request: Request, runner: str | None) -> None:
    given = "--accumulate" if "accumulate" in request.given else "--runner" if runner else ""
    if given:
        raise UsageError(
            f"{given} has no meaning for an engine: it runs, and nothing is emulated.",
            "Leave it out.",
        )


def _judging(
    candidate: Model, case: Case, request: Request, watcher: Watcher, runner: str | None
) -> tuple[Case, Callable[[Sequence[Outputs], frozenset[TensorName]], Verdict]]:
    """Load the candidate; return the case on its outputs, and what judges it by the reference's.

    It is loaded first, since running the reference may take minutes.
    """
    if isinstance(candidate, str | Path) and holds_outputs(Path(candidate)):
        return _judging_recorded(Path(candidate), case, request, watcher, runner)
    settings, samples = request.settings, case.calibration
    if runner is not None:
        raise UsageError(
            f"--runner {runner} has no meaning for a model: it tells whose recorded outputs to "
            "judge.",
            "Give the outputs in place of the model, or leave --runner out.",
        )
    other = load_model(candidate)
    demand_same_inputs(case.network, other.model)
    case = shared_outputs(case, {str(v.name) for v in other.graph.outputs}, watcher)
    keep_outputs(other.graph, {str(v.name) for v in case.network.graph.outputs})
    check_types(other, device=settings.device, libraries=settings.libraries)

    def emulate(references: Sequence[Outputs], nonfinite: frozenset[TensorName]) -> Verdict:
        judged = judge(
            other.model,
            samples,
            references,
            case.criterion,
            case.metric,
            reference_nonfinite=nonfinite,
            accumulate=settings.accumulate,
            device=settings.device,
            libraries=settings.libraries,
        )
        judged = told_as_file(judged, other.model, case, settings, samples, references)
        verdict = judge_sizes(judged.verdict, case, other.model, samples, references, settings)
        return with_unjudged(verdict, case, request, other.model, samples, references)

    return case, emulate


def _judging_recorded(
    path: Path, case: Case, request: Request, watcher: Watcher, runner: str | None
) -> tuple[Case, Callable[[Sequence[Outputs], frozenset[TensorName]], Verdict]]:
    """Do what `_judging` does for outputs on record."""
    settings, samples = request.settings, case.calibration
    if "accumulate" in request.given:
        raise UsageError(
            "--accumulate has no meaning for recorded outputs: nothing is emulated.",
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
