"""`verify`: judge a candidate, or an engine of it or a given one, against the FP32 model."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from msgspec import Struct

from halfwise.case import Case, Settings
from halfwise.declarations import BuildingOptions, Inputs, Options, WorkerOptions, spelt
from halfwise.emulation.runner import running
from halfwise.errors import UsageError
from halfwise.fixing.command import judge_sizes
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.filed import judged_as_file
from halfwise.fixing.loop import Stages
from halfwise.fixing.next_steps import after_verify, unbuildable
from halfwise.fixing.outcome import candidate_worth, verify_run, with_unjudged
from halfwise.fixing.result import Result
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, graphs_of, values_of
from halfwise.graph.qoperators import as_pairs
from halfwise.graph.quantised import quantised_nodes, quantising
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LOW_TYPES
from halfwise.inputs import fit_recorded, holds_outputs, load_recorded
from halfwise.judging.judge import Judged, judge, judge_outputs, not_failing, worst_first
from halfwise.judging.reference import check, check_types, frozen_named, inspected_reference
from halfwise.linting import precision_remarks
from halfwise.metrics import Outputs
from halfwise.options.engines import TENSORRT, Target, engine_target, run_here, split
from halfwise.options.loading import load_asked, load_model
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    EngineFile,
    GivenEngine,
    Held,
    Run,
    TensorName,
    Typing,
    Verdict,
    replace,
)
from halfwise.reporting.remarks import with_failures
from halfwise.reporting.verdict import failing_runners
from halfwise.store import free_folder, new_folder, refuse_run, users_model
from halfwise.tensorrt.answers import profiles_of
from halfwise.tensorrt.client import usable
from halfwise.tensorrt.constrain import quantised_types, readable
from halfwise.tensorrt.failures import build_failed
from halfwise.tensorrt.layers import demand_engine, is_engine
from halfwise.tensorrt.ports import check_covered, check_names
from halfwise.tools.blame import blame
from halfwise.tools.compare.engine_maker import engine_maker
from halfwise.tools.verify.candidate import (
    demand_valid,
    interface,
    on_shared_outputs,
    other_aside,
    remade,
    shared_outputs,
    with_mended,
    with_type_notes,
    without_aside,
)
from halfwise.tools.verify.gate import (
    GATE,
    Again,
    Earlier,
    Gate,
    again_of,
    beside,
    demand_comparable,
    earlier,
)


@bounded
def verify(
    model: Model,
    candidate: Model | None = None,
    inputs: Inputs | None = None,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    baseline: str | Path | None = None,
    may_worsen: str | None = None,
    **options: Unpack[Options],
) -> Result:
    """Judge a candidate against the FP32 model: a model, an engine, or recorded outputs.

    Takes and raises what `fix` does. Every sample is judged, since there was no search.

    Args:
        model: FP32 model: path or proto. Without a candidate, the folder of a run: its file is
            judged again, on what it was judged on, and against it as the baseline.
        candidate: Any typed model (mixed, plain FP16, quantised, another tool's), emulated, or with
            `target` built into an engine and run; the path of an engine, which is run; or the path
            of outputs that another program computed on the inputs, judged unchanged: a `.npz` (see
            `load_recorded`). Models and records may hold inner tensors too, see `shared_outputs`.
        inputs: Samples, as for `fix`; None for those of a run.
        out: Run folder to create; must not exist. None writes nothing.
        watcher: Receives progress.
        baseline: Run folder of an earlier verdict on the same samples; a worse one fails.
        may_worsen: Allowed worsening of its figures: see `earlier`.
        options: See `Options`.
    """
    started, watcher, folder = time.monotonic(), watcher or Silent(), free_folder(out)
    asked = run_here(options)
    again = None
    if candidate is None:
        again = again_of(model, inputs)
        model, candidate = users_model(again.run), again.candidate
        inputs, asked = again.options(asked)
        baseline = again.folder if baseline is None and again.inputs is None else baseline
    if inputs is None:
        raise UsageError("--inputs is missing; expected inputs.", "Give them: --inputs DATA.")
    before = earlier(baseline, may_worsen, again)
    request, target = understand_verify(inputs, asked)
    if again is not None and again.split:
        request = replace(request, command=GATE)
    path = Path(candidate) if isinstance(candidate, str | Path) else None
    if path is not None:
        refuse_run(path)
    kind = _kind(path, asked)
    question = _Question(model, candidate, path, request, target, again, before, watcher, started)
    judges = {"engine": _of_engine, "recorded": _of_record, "built": _of_built, "model": _of_model}
    with running(request.settings.targets):
        case, run = judges[kind](question)
    run = beside(run, before)
    provenance = replace(run.provenance, candidate="in memory" if path is None else str(candidate))
    run = replace(run, provenance=provenance)
    if folder is not None:
        watcher.stage("store")
        with new_folder(folder) as partial:
            finish(partial, run, case, watcher)
    return Result(run, folder)


class _Question(Struct, frozen=True):
    """What is judged, and how.

    Attributes:
        model: The FP32 model.
        candidate: What is judged against it.
        path: The candidate's file; None in memory.
        request: The options.
        target: Where an engine runs.
        again: The run that is verified again; None if model and candidate are named.
        before: The baseline, if there is one.
        watcher: Receives progress.
        started: `time.monotonic()` when the command began.
    """

    model: Model
    candidate: Model
    path: Path | None
    request: Request
    target: Target
    again: Again | None
    before: Earlier | None
    watcher: Watcher
    started: float

    def case(self) -> Case:
        """Return the case; its samples match the baseline's, if there is one."""
        if self.again is None:
            case = load_asked(self.model, self.request, self.watcher, split=False)
        else:
            case = self.again.case(self.request, self.watcher)
        demand_comparable(case, self.before)
        return replace(case, calibration=case.calibration.with_progress(self.watcher.step))

    def run(
        self,
        case: Case,
        verdict: Verdict,
        references: Sequence[Outputs],
        engine: GivenEngine | None = None,
    ) -> Run:
        """Return the record of a verdict on outputs that no model of the candidate gave here."""
        request = self.request
        verdict = with_unjudged(verdict, case, request, None, case.calibration, references)
        return verify_run(case, request, verdict, time.monotonic() - self.started, engine)


def _of_model(question: _Question) -> tuple[Case, Run]:
    """Return the case and the record of a model's emulation and file."""
    request, watcher, settings = question.request, question.watcher, question.request.settings
    original = case = question.case()
    # Loaded first, since running the reference may take minutes.
    loaded = load_model(question.candidate, watcher)
    mixed, case = without_aside(loaded, case, settings.runtime)
    other, case = on_shared_outputs(mixed, case, watcher)
    check_types(other, runtime=settings.runtime)
    demand_valid(other, runtime=settings.runtime)
    case = with_type_notes(case, other, watcher)
    references, nonfinite = _reference(case, settings, watcher)
    worth = candidate_worth(case, settings, mixed)
    redone = remade(original, mixed, runtime=settings.runtime, watcher=watcher)
    unlike, hints = interface(original.whole, loaded)
    broken = (*(redone.failures if redone else ()), *other_aside(original, loaded), *unlike)
    hints = [] if original.stored.formats else hints
    samples, held = case.calibration, tuple[Held, ...]()
    with Stages(watcher)("judge"):
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
    if not other.mistyped:  # the file itself runs nowhere
        filed = other.model, case, settings, samples, references
        judged = judged_as_file(judged, *filed, always=bool(settings.targets))
        held = Gate(case, other, references, settings, watcher).files(judged)
    verdict = judge_sizes(judged.verdict, case, other.model, samples, references, settings)
    verdict = with_unjudged(verdict, case, request, other.model, samples, references)
    verdict = with_mended(verdict, other)
    verdict = with_failures(verdict, broken) if broken else verdict
    verdict = replace(verdict, hints=(*verdict.hints, *hints))
    run = verify_run(case, request, verdict, time.monotonic() - question.started, worth=worth)
    found = None
    wrong = not verdict.passed and verdict.judged and not failing_runners(verdict)
    if wrong and quantising(mixed):
        watcher.stage("blame")
        worst = worst_first(verdict.excesses)
        found = blame(mixed, case, references, settings, watcher, worst)
    run = replace(run, remade=redone, held=held, blame=found)
    if question.path is not None and not run.next_step:
        passed = verdict.passed
        steps = after_verify(
            case,
            request,
            question.path,
            passed=passed,
            held=held,
            instead=unbuildable(mixed, precision_remarks(loaded)) if passed else None,
            quantised=bool(quantised_nodes(as_pairs(mixed))),
            integers=bool(quantising(mixed)),
            loads=not mixed.mistyped,
        )
        run = replace(run, next_step=steps)
    return case, run


def _of_record(question: _Question) -> tuple[Case, Run]:
    """Return the case and the record of outputs that a file holds."""
    assert question.path is not None
    request, watcher, case = question.request, question.watcher, question.case()
    names = {str(v.name) for v in case.network.graph.outputs}
    recorded = load_recorded(question.path, len(case.calibration), wanted=names)
    case = shared_outputs(case, recorded.names, watcher)
    references, _ = _reference(case, request.settings, watcher)
    watcher.stage("judge")
    samples = case.calibration
    verdict = judge_outputs(
        fit_recorded(recorded, references, samples.ids),
        samples,
        references,
        case.criterion,
        case.metric,
        level="recorded",
        runner=recorded.name,
    ).verdict
    verdict = judge_sizes(verdict, case, None, samples, references, request.settings)
    return case, question.run(case, verdict, references)


def _reference(
    case: Case, settings: Settings, watcher: Watcher
) -> tuple[list[Outputs], frozenset[TensorName]]:
    """Return the FP32 outputs of each sample, and the tensors that are not finite."""
    with Stages(watcher)("reference"):
        check(case.network, runtime=settings.runtime)
        return inspected_reference(case.network, case.calibration, runtime=settings.runtime)


_WORKER = sorted(WorkerOptions.__annotations__.keys() - {"run_timeout"})
_Kind = Literal["engine", "recorded", "built", "model"]
_KINDS: dict[_Kind, tuple[str, tuple[str, ...]]] = {
    "engine": ("an engine", ("accumulate", "target")),
    "recorded": ("recorded outputs", ("accumulate", "target", *_WORKER)),
    "built": ("a model built into an engine", ("accumulate",)),
    "model": ("a model that is not built into an engine", tuple(_WORKER)),
}
"""Words for each kind of candidate, and the options that do not apply to it: only models are
emulated."""


def _kind(path: Path | None, given: Mapping[str, Any]) -> _Kind:
    """Return the kind of a candidate.

    Raises:
        UsageError: an option does not apply to it.
    """
    builds = TENSORRT in (given.get("target") or ())
    kind: _Kind = "built" if builds else "model"
    if path is not None and is_engine(path):
        kind, others = "engine", _files_for(given)
        given = {n: v for n, v in given.items() if n != "target" or others}
    elif path is not None and holds_outputs(path):
        kind = "recorded"
    called, inapplicable = _KINDS[kind]
    for name in inapplicable:
        if name in given:
            raise UsageError(f"{spelt(name)} does not apply to {called}.", "Leave it out.")
    return kind


def _files_for(options: Mapping[str, Any]) -> list[str]:
    """Return the targets that take a file; that of engines is another."""
    targets = options.get("target") or ()
    targets = [targets] if isinstance(targets, str) else targets
    return [name for name in targets if name != TENSORRT]


def understand_verify(inputs: Inputs, options: Mapping[str, Any]) -> tuple[Request, Target]:
    """Return the options of `verify`, and the target of an engine.

    Raises:
        UsageError: see `understand` and `engine_target`.
    """
    builds = TENSORRT in (options.get("target") or ())
    worker, others = split(options, BuildingOptions if builds else WorkerOptions)
    others["target"] = _files_for(options)
    return understand(inputs, others).by_use, engine_target(worker)


def _of_engine(question: _Question) -> tuple[Case, Run]:
    """Return the case and the record of a given engine: all samples, and its profiles' shapes.

    Raises:
        RecordMismatch: TensorRT there cannot read the engine.
        CaseError: it has other inputs or outputs, or a sample is outside its profiles.
    """
    assert question.path is not None
    path, target, settings = (
        demand_engine(question.path),
        question.target,
        question.request.settings,
    )
    case = question.case()
    with usable(target.worker, question.watcher) as worker:
        file = worker.upload(path)
        described = worker.describe(file, target.settings.run_timeout)
        graph = case.network.graph
        for kind, values, is_input in (
            ("inputs", graph.inputs, True),
            ("outputs", graph.outputs, False),
        ):
            names = [t.name for t in described.tensors if t.is_input == is_input]
            check_names(names, [v.name or "" for v in values], kind)
        profiles = profiles_of(described)
        check_covered(profiles, case.calibration)
        measure = Measure(worker, case, settings, replace(target.settings, profiles=profiles))
        references, judged, record = _judged(measure, file, question.watcher)
        here = replace(file, side="here", path=str(path))
        verdict = with_shapes(judged.verdict, record.shapes)
        record = replace(record, engine=here)
        return case, question.run(case, verdict, references, record)


def _of_built(question: _Question) -> tuple[Case, Run]:
    """Return the case and the record of a model, judged by an engine built from it.

    Strong typing uses its types; weak typing allows FP16 besides its quantised types.

    Raises:
        CaseError: TensorRT refuses its quantisation, or a sample is outside the profiles.
        BuildFailed: there is no engine.
        UsageError: the model has low types, which weak typing ignores.
    """
    settings, watcher = question.request.settings, question.watcher
    case, loaded = question.case(), load_model(question.candidate, watcher)
    loaded, case = on_shared_outputs(loaded, case, watcher)
    with engine_maker(case, settings, question.target, watcher, exact=True) as maker:
        assert maker is not None
        candidate = readable(loaded, maker.worker.info.tensorrt)
        demand_types(candidate, maker.builds.typing)
        watcher.stage("build")
        build = maker.build("file", file=candidate)
        if build.engine is None:
            raise build_failed(build, "no engine of this candidate")
        # Of a file with low types, only its FP32 form tells which nodes compute.
        roles, types = roles_of(upcast(candidate)[0]), quantised_types(candidate)
        proof = maker.measure.proof(build, candidate, roles, types)
        references, judged, record = _judged(maker.measure, build.engine, watcher)
        record = replace(record, build=replace(build, layers=()), proof=proof)
        gate = Gate(case, candidate, references, settings, watcher)
        held: tuple[Held, ...] = (gate.engine(maker, judged.verdict, record.shapes),)
        if settings.targets:
            filed = candidate.model, case, settings, case.calibration, references
            judged = judged_as_file(judged, *filed, always=True)
            held += gate.files(judged)
        verdict = with_shapes(judged.verdict, record.shapes)
        run = question.run(case, verdict, references, record)
        return case, replace(run, held=held, verdict=with_mended(run.verdict, loaded))


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


def _judged(
    measure: Measure, file: EngineFile, watcher: Watcher
) -> tuple[list[Outputs], Judged, GivenEngine]:
    """Return FP32's outputs, the verdict on an engine, and its record.

    At the shapes of its profiles it is judged on the samples that do not fail.
    """
    case, samples = measure.case, measure.case.calibration
    watcher.stage("reference")
    with frozen_named(case.network):
        check(case.network, runtime=measure.settings.runtime)
        references = measure.references(samples)
    watcher.stage("judge")
    judged = measure.judge(file, samples, references)
    record = GivenEngine(
        worker=measure.worker.info,
        engine=file,
        profiles=measure.engine_settings.profiles,
        shapes=measure.at_shapes(file, not_failing(judged.verdict, samples, case.criterion)),
        latency=measure.latency(file),
    )
    return references, judged, record
