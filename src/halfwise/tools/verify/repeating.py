"""Repeat the verdict of a run on other workers: its plan is built anew there, and judged."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from halfwise.case import Case, EngineSettings
from halfwise.declarations import Inputs, RepeatOptions
from halfwise.declarations.engines import Limits, Workers
from halfwise.errors import CaseError, HalfwiseError, RecordMismatch, UsageError
from halfwise.fixing.engines import BUILT_FILE, FP32_FILE, Builds
from halfwise.fixing.outcome import counting_joined, final_verdict, with_unjudged
from halfwise.fixing.repair.making import repaired
from halfwise.formats import LOW_FORMATS
from halfwise.graph.casts import low_type
from halfwise.graph.model import load_network
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
from halfwise.reporting.notes import told
from halfwise.store import MODEL_FILE, read_run
from halfwise.tensorrt.constrain import constraints
from halfwise.tensorrt.recipes.recipe import is_built_apart, planned_repairs
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.worker.transfer import file_sha256
from halfwise.tensorrt.workers import WorkerDefaults, WorkerSpec, resolve
from halfwise.tensorrt.working import usable
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
    """Build the delivered plan of a run on several workers, and judge each engine.

    Where a worker has the version and the GPU of the run, the delivered engine itself is judged
    too. A worker that is missing or fails is a row.

    Args:
        run: Run folder of a `fix` with a target.
        inputs: Samples, as for `fix`; all are judged, or of the run's own inputs those held out.
        watcher: Is told about progress.
        options: See `RepeatOptions`: how samples are read, the session of the reference, the
            time-outs, and workers, all of those in halfwise.toml where none is named. The criterion
            is the run's; a metric of the user's own has to be named again.

    Raises:
        HalfwiseError: the run, the inputs or an option cannot be used.
    """
    watcher = watcher or Silent()
    workers, given = split(options, Workers)
    limits, given = split(given, Limits)
    named = given.pop("metric", None)
    wait = engine_settings(limits, WorkerDefaults()).wait_timeout
    request = understand(inputs, given)
    folder = Path(run).parent if Path(run).suffix == ".json" else Path(run)
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
        notes=tuple(map(told, case.notes)),
        remade=remade(case, load_network(mixed), runtime=runtime) if mixed.is_file() else None,
    )


@dataclass(frozen=True)
class _Repeater:
    """What is repeated, and on what."""

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
        """Yield the row of the rebuilt plan, and that of the delivered engine where it runs."""
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
        """Return the run's own settings; plugins are the worker's.

        Raises:
            UsageError: the run needs plugins, and the worker names none: what a run folder names
                is not loaded, for it may come from anybody.
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
            RecordMismatch: it is not there, or not what was judged.
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
    """Return the run with its metric as the user named it.

    Raises:
        UsageError: the run's metric is a function and nobody named it, or another one is named.
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
    """Return the case, all of whose samples are to judge on.

    Where the inputs are those of the run, these are the samples that it held out to the end.
    """
    split = load_case(model, request.data, run.criterion)
    joined, seen = (run.search.joined, run.search.seen) if run.search else ((), ())
    known = split.heldout.marked(seen)
    names = enumerate(split.heldout.ids)
    unseen = [i for i, name in names if name not in joined and i not in known]
    if unseen and split.data_sha256 == run.provenance.inputs_sha256:
        heldout = split.heldout.select(unseen)
        # A body that ran in the search is not one that never ran.
        searched = split.calibration
        notes = (*split.notes, Note(kind="of-the-run"))
        return replace(split, calibration=heldout, heldout=searched, notes=notes)
    return load_case(model, request.data, run.criterion, split=False)


def _as_on(run: Run, worker: WorkerInfo | None = None) -> Run:
    """Return a run as if its device of the same kind as `worker` had been the only one.

    Without such a device it is the first that has an engine.
    """
    found = [e for e in run.devices if e.delivered is not None and not e.shares]
    if len(run.devices) < 2 or not found:
        return run
    same = [e for e in found if worker and _kind(e.worker) == _kind(worker)]
    return run.on((same or found)[0].worker.name)


def _built(run: Run, folder: Path) -> Path:
    """Return the file that weak typing builds the plan of a run from."""
    return folder / (BUILT_FILE if is_built_apart(run) else FP32_FILE)


def _kind(worker: WorkerInfo) -> tuple[str | None, str | None]:
    return worker.tensorrt, worker.gpu


def _delivered(run: Run, folder: Path) -> BuildOutcome:
    """Return how the delivered engine was built.

    Raises:
        CaseError: the run delivered none.
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


def _workers(
    trt_python: Sequence[str] = (), trt_command: Sequence[str] = (), trt_worker: Sequence[str] = ()
) -> list[WorkerSpec]:
    """Return all workers that are named, else all of the file; each has a name of its own."""
    found = [spec for python in trt_python for spec in resolve(trt_python=python)]
    found += [spec for command in trt_command for spec in resolve(trt_command=command)]
    found += [spec for name in trt_worker for spec in resolve(trt_worker=name)]
    found = found or resolve()
    taken = [spec.name for spec in found]
    return [
        replace(spec, name=shlex.join(spec.command)) if taken.count(spec.name) > 1 else spec
        for spec in found
    ]
