"""Repeat a run's verdict on other workers: rebuild its plan there and judge it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from halfwise.case import Case, EngineSettings
from halfwise.declarations import Inputs, RepeatOptions
from halfwise.declarations.options import Limits, Workers
from halfwise.errors import CaseError, HalfwiseError, RecordMismatch, UsageError
from halfwise.fixing.engines.builds import Builds
from halfwise.fixing.engines.equivalent import BUILT_FILE
from halfwise.fixing.outcome import counting_joined, final_verdict, with_unjudged
from halfwise.fixing.repair.making import repaired
from halfwise.formats import LOW_FORMATS
from halfwise.graph.casts import low_type
from halfwise.graph.loading import load_network
from halfwise.graph.movement import carried
from halfwise.graph.roles import Role, roles_of
from halfwise.judging.reference import check
from halfwise.metrics import Outputs
from halfwise.options.engines import engine_settings, split
from halfwise.options.loading import load_case, tell
from halfwise.options.metric import function_again
from halfwise.options.options import Request, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    BuildOutcome,
    EngineFile,
    Engines,
    NodeName,
    Note,
    Plan,
    Repeated,
    Repetition,
    Run,
    WorkerInfo,
)
from halfwise.reporting.steps import note_text
from halfwise.store import FP32_FILE, MODEL_FILE, folder_of, read_run
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.constrain import constraints
from halfwise.tensorrt.link import file_sha256
from halfwise.tensorrt.recipe import is_built_apart, planned_repairs
from halfwise.tensorrt.workers import WorkerDefaults, WorkerSpec, resolve
from halfwise.tools.verify.engine import judged, measured
from halfwise.tools.verify.repairs import remade


@bounded
def verify_run(
    run: str | Path,
    inputs: Inputs,
    *,
    watcher: Watcher | None = None,
    **options: Unpack[RepeatOptions],
) -> Repetition:
    """Build a run's delivered plan on several workers, and judge each engine.

    On a worker with the run's version and GPU, the delivered engine itself is judged too. A missing
    or failing worker gets a row.

    Args:
        run: Run folder of a `fix` with a target.
        inputs: Samples, as for `fix`; all are judged; of the run's own inputs, those held out.
        watcher: Receives progress.
        options: See `RepeatOptions`; workers default to all in halfwise.toml. The criterion is the
            run's; a custom metric must be named again.

    Raises:
        HalfwiseError: the run, the inputs or an option cannot be used.
    """
    watcher = watcher or Silent()
    workers, given = split(options, Workers)
    limits, given = split(given, Limits)
    named = given.pop("metric", None)
    wait = engine_settings(limits, WorkerDefaults()).wait_timeout
    request = understand(inputs, given)
    folder = folder_of(run)
    record = _with_metric_named(read_run(folder), named)
    delivered = _delivered(_as_on(record), folder)
    watcher.stage("load")
    case = _load(folder / FP32_FILE, request, record)
    tell(watcher, case.notes)
    session = check(case.network, runtime=request.settings.runtime)
    references: list[Outputs] = [session.run(sample) for sample in case.calibration]
    repeater = _Repeater(_as_on(record), folder, delivered, case, request, references, watcher)
    rows: list[Repeated] = []
    for spec in _workers(**workers):
        try:
            with usable(spec, watcher, wait, exact=True) as worker:
                own = _as_on(record, worker.info)
                there = replace(repeater, run=own, delivered=_delivered(own, folder))
                rows += there.rows(spec, worker, limits)
        except HalfwiseError as error:
            rows.append(
                Repeated(name=spec.name, worker=None, what="rebuilt", failure=error.message)
            )
    mixed, runtime = folder / MODEL_FILE, request.settings.runtime
    return Repetition(
        run=str(folder),
        samples=len(case.calibration),
        rows=tuple(rows),
        notes=tuple(map(note_text, case.notes)),
        remade=remade(case, load_network(mixed), runtime=runtime) if mixed.is_file() else None,
    )


@dataclass(frozen=True)
class _Repeater:
    """The run to repeat, and its inputs."""

    run: Run
    folder: Path
    delivered: BuildOutcome
    case: Case
    request: Request
    references: list[Outputs]
    watcher: Watcher

    @property
    def engines(self) -> Engines:
        assert self.run.engines is not None
        return self.run.engines

    @property
    def _plan(self) -> Plan:
        assert self.run.plan is not None
        return self.run.plan

    def rows(
        self, spec: WorkerSpec, worker: Worker, limits: Mapping[str, Any]
    ) -> Iterator[Repeated]:
        """Yield the row of the rebuilt plan, and one of the delivered engine if it runs."""
        self.watcher.stage(f"build on {spec.name}")
        settings = self._settings(spec, limits)
        row = Repeated(name=spec.name, worker=worker.info, what="rebuilt")
        try:
            build = self._build(worker, settings)
            row = row.model_copy(update={"build": build, "failure": build.message})
            if build.engine is not None:
                row = self._judged(row, worker, build.engine, settings)
        except HalfwiseError as error:
            row = row.model_copy(update={"failure": error.message})
        yield row
        if _kind(self.engines.worker) != _kind(worker.info):
            return
        row = Repeated(name=spec.name, worker=worker.info, what="delivered")
        try:
            yield self._judged(row, worker, worker.upload(self._file()), settings)
        except HalfwiseError as error:
            yield row.model_copy(update={"failure": error.message})

    def _judged(
        self, row: Repeated, worker: Worker, engine: EngineFile, settings: EngineSettings
    ) -> Repeated:
        measure = measured(worker, engine, self.case, self.request.settings, settings)
        verdict, given = judged(measure, engine, self.references)
        if self.run.search and self.case.data_sha256 == self.run.provenance.inputs_sha256:
            verdict = counting_joined(verdict, self.run.search.joined)
        samples = self.case.calibration
        verdict = with_unjudged(verdict, self.case, self.request, None, samples, self.references)
        own = [r.latency for r in self.engines.results if r.build.engine == self.delivered.engine]
        usual = next((latency.median_ms for latency in own if latency is not None), None)
        return row.model_copy(
            update={
                "verdict": final_verdict(verdict, self.case, self.request, ()),
                "shapes": given.shapes,
                "latency": given.latency,
                "ratio": None if usual is None else given.latency.median_ms / usual,
            }
        )

    def _settings(self, spec: WorkerSpec, limits: Mapping[str, Any]) -> EngineSettings:
        """Return the run's settings, with the worker's plugins.

        Raises:
            UsageError: the run needs plugins, and the worker names none: plugins named by a run
                folder are untrusted and never loaded.
        """
        config, own = self.delivered.config, spec.defaults
        if config.plugins and not own.plugins:
            raise UsageError(
                f"The run's engine needs plugins ({', '.join(config.plugins)}), but worker "
                f"{spec.name} names none.",
                "Name them in halfwise.toml: plugins = [...]. Libraries named only in a run folder "
                "are not loaded.",
            )
        return replace(
            engine_settings(limits, own),
            workspace_bytes=own.workspace_bytes or config.workspace_bytes,
            optimization_level=config.optimization_level,
            tactic_sources=config.tactic_sources,
        )

    def _build(self, worker: Worker, settings: EngineSettings) -> BuildOutcome:
        config, offered = self.delivered.config, worker.info.typing
        typing = config.typing if config.typing in offered else offered[0]
        settings = replace(settings, profiles=config.profiles)
        builds = Builds(worker, settings, typing, None, self.watcher)
        if self.engines.full:
            return builds.build(self.folder / FP32_FILE, "the delivered plan", tf32=config.tf32)
        if typing == "strong":
            return builds.build(self.folder / MODEL_FILE, "the delivered plan", tf32=config.tf32)
        return builds.build(
            _built(self.run, self.folder),
            "the delivered plan",
            low=config.low or ("bf16" if self._plan.low == "bf16" else "fp16"),
            tf32=config.tf32,
            keep=config.keep if config.typing == "weak" else self._constraints(),
            rewritten=config.rewritten,
        )

    def _constraints(self) -> tuple[NodeName, ...]:
        network = repaired(self.case.network, planned_repairs(self.run))
        kept = frozenset(self.engines.keep)
        roles = roles_of(network, low_type(LOW_FORMATS[self._plan.low]))
        pinned = frozenset(name for name, role in roles.items() if role.role is Role.PINNED)
        return constraints(network, roles, kept | carried(network, roles, kept) | pinned)

    def _file(self) -> Path:
        """Return the delivered engine.

        Raises:
            RecordMismatch: it is missing, or is not the one judged.
        """
        assert self.engines.delivered is not None
        path = self.folder / Path(self.engines.delivered.path).name
        if not path.is_file() or file_sha256(path) != self.engines.delivered.sha256:
            raise RecordMismatch(
                f"{path} is missing or is not the engine that the run judged.",
                "Use the rebuilt engine, or make the run again.",
            )
        return path


def _with_metric_named(run: Run, named: str | None) -> Run:
    """Return the run with the metric that the user named.

    Raises:
        UsageError: the run's metric is a function that is not named, or another one is named.
    """
    own = run.criterion.metric
    if own is None or ":" not in own:
        if named not in (None, own):
            raise UsageError(
                f"--metric is {named}, but the run was judged {f'by {own}' if own else 'without'}.",
                "Leave it out: the run's own criterion applies.",
            )
        return run
    criterion = run.criterion.model_copy(update={"metric": function_again(own, named)})
    return run.model_copy(update={"criterion": criterion})


def _load(model: Path, request: Request, run: Run) -> Case:
    """Return the case, whose samples are all for judging.

    With the run's own inputs, these are the samples held out to the end.
    """
    split = load_case(model, request.data, run.criterion)
    joined, seen = (run.search.joined, run.search.seen) if run.search else ((), ())
    known = split.heldout.marked(seen)
    names = enumerate(split.heldout.ids)
    unseen = [i for i, name in names if name not in joined and i not in known]
    if unseen and split.data_sha256 == run.provenance.inputs_sha256:
        heldout = split.heldout.select(unseen)
        # A body that ran in the search counts as run.
        searched = split.calibration
        notes = (*split.notes, Note(kind="of-the-run"))
        return replace(split, calibration=heldout, heldout=searched, notes=notes)
    return load_case(model, request.data, run.criterion, split=False)


def _as_on(run: Run, worker: WorkerInfo | None = None) -> Run:
    """Return a run as if it had only the device of the same kind as `worker`.

    Without such a device, the first with an engine.
    """
    found = [e for e in run.devices if e.delivered is not None and not e.shares]
    if len(run.devices) < 2 or not found:
        return run
    same = [e for e in found if worker and _kind(e.worker) == _kind(worker)]
    return run.on((same or found)[0].worker.name)


def _built(run: Run, folder: Path) -> Path:
    """Return the file from which weak typing builds a run's plan."""
    return folder / (BUILT_FILE if is_built_apart(run) else FP32_FILE)


def _kind(worker: WorkerInfo) -> tuple[str | None, str | None]:
    return worker.tensorrt, worker.gpu


def _delivered(run: Run, folder: Path) -> BuildOutcome:
    """Return how the delivered engine was built.

    Raises:
        CaseError: the run delivered no engine.
        RecordMismatch: the run folder lacks the model.
    """
    if run.engines is None or run.engines.delivered is None or run.plan is None:
        raise CaseError(
            f"The run {folder} delivered no engine, so there is nothing to repeat.",
            "Give the run folder of a `halfwise fix --target tensorrt` that passed.",
        )
    found = [
        b
        for b in run.engines.builds
        if b.engine and b.engine.sha256 == run.engines.delivered.sha256
    ]
    needed = {_built(run, folder).name: "the repaired model", FP32_FILE: "the FP32 model"}
    gone = [f"{what}, {name}" for name, what in needed.items() if not (folder / name).is_file()]
    if not found or gone:
        lacks = gone[0] if found else "the build of its engine"
        raise RecordMismatch(f"The run {folder} lacks {lacks}.", "Make the run again.")
    return found[-1]


def _workers(trt_command: Sequence[str] = (), trt_worker: Sequence[str] = ()) -> list[WorkerSpec]:
    """Return all named workers, else all in the file; names are unique."""
    found = [spec for command in trt_command for spec in resolve(trt_command=command)]
    found += [spec for name in trt_worker for spec in resolve(trt_worker=name)]
    found = found or resolve()
    taken = [spec.name for spec in found]
    return [
        replace(spec, name=shlex.join(spec.command)) if taken.count(spec.name) > 1 else spec
        for spec in found
    ]
