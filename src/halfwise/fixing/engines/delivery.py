"""Runs the emulation's search during the FP32 build: one needs the CPU, the other the GPU.

Serialising a model temporarily removes its weights, so each side has its own graph.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from shutil import move
from typing import ParamSpec, TypeVar

from halfwise.case import Case, Samples
from halfwise.emulation.budget import Stop, Stopped, limited, stopped_by
from halfwise.errors import UsageError
from halfwise.fixing.engines.run import Proof
from halfwise.fixing.engines.workbench import save
from halfwise.fixing.fixed import Fixed, plan_of
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.next_steps import diagnose_step
from halfwise.fixing.outcome import Result, cost, final_verdict, fix_run, unsearched_run
from halfwise.fixing.rewrite import save_checked
from halfwise.fixing.space import LowSpace
from halfwise.graph.model import Network
from halfwise.metrics import criterion_hints
from halfwise.options.options import Request
from halfwise.page.finish import finish
from halfwise.progress import Watcher
from halfwise.records import (
    EngineFile,
    Engines,
    LadderRung,
    NodeName,
    Remark,
    Run,
    Step,
    WorkerInfo,
)
from halfwise.store import (
    BUILT_FILE,
    FP32_FILE,
    MODEL_FILE,
    engine_file,
    new_folder,
    refuse_irregular,
)
from halfwise.tensorrt.constrain import readable
from halfwise.tensorrt.failures import Journal
from halfwise.tensorrt.recipe import is_built_apart

_Found = TypeVar("_Found")
_Given = ParamSpec("_Given")


@contextmanager
def concurrently(
    search: Callable[[Watcher], _Found], watcher: Watcher
) -> Iterator[Callable[[], _Found]]:
    """Run `search` in a thread during the block; provide what waits for its result.

    Its progress is shown only while it is waited for, so that one thread at a time uses `watcher`.
    However the block ends, the search stops at its next report or evaluation, or during that
    evaluation, and is joined.

    Args:
        search: Receives the watcher to report to; its errors are raised when the result is
            requested.
        watcher: Receives progress.
    """
    told, stop, context = Relay(watcher), Stop(), copy_context()

    def stoppable() -> _Found:
        with stopped_by(stop), limited(expect=told.expect):
            return search(told)

    with ThreadPoolExecutor(1, "search") as pool:
        future: Future[_Found] = pool.submit(context.run, stoppable)

        def result() -> _Found:
            told.release()
            return future.result()

        try:
            yield result
        finally:
            told.stop()
            stop.ask()


def one_at_a_time(case: Case) -> Case:
    """Return the case with its samples and metric, which are user code, called one at a time."""
    lock = threading.RLock()
    metric = case.metric
    return replace(
        case,
        calibration=_locked_samples(case.calibration, lock),
        heldout=_locked_samples(case.heldout, lock),
        metric=None if metric is None else _locked(metric, lock),
    )


def with_own_network(case: Case) -> Case:
    """Return the case with a copy of its graph; weights are shared."""
    network = case.network
    return replace(case, network=replace(network, model=network.copy()))


def _locked_samples(samples: Samples, lock: AbstractContextManager[bool]) -> Samples:
    return replace(samples, load=_locked(samples.load, lock))


def _locked(
    function: Callable[_Given, _Found], lock: AbstractContextManager[bool]
) -> Callable[_Given, _Found]:
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with lock:
            return function(*args, **kwargs)

    return call


class Relay:
    """A watcher for several threads; holds messages back until it is released."""

    def __init__(self, watcher: Watcher) -> None:
        """Take the watcher of the main thread."""
        self._watcher = watcher
        self._lock = threading.Lock()
        self._held: list[Callable[[], None]] | None = []
        self._stopped = False

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage."""
        self._tell(lambda: self._watcher.stage(name, total))

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        """Report progress within it."""
        # Nobody misses steps of a stage that is over when it is shown.
        self._tell(lambda: self._watcher.step(done, total, of, most=most), hold=False)

    def left(self, seconds: float) -> None:
        """Report how long a stage may go on."""
        self._tell(lambda: self._watcher.left(seconds), hold=False)

    def expect(self, seconds: float, of: str) -> None:
        """Report how long a part of it will take."""
        self._tell(lambda: self._watcher.expect(seconds, of), hold=False)

    def note(self, line: str) -> None:
        """Report something worth reading."""
        self._tell(lambda: self._watcher.note(line))

    def release(self) -> None:
        """Pass on what was held back, and everything later at once."""
        with self._lock:
            held, self._held = self._held or [], None
            for tell in held:
                tell()

    def stop(self) -> None:
        """End the reporting thread."""
        self._stopped = True

    def _tell(self, tell: Callable[[], None], *, hold: bool = True) -> None:
        if self._stopped:
            raise Stopped
        with self._lock:
            if self._held is None:
                tell()
            elif hold:
                self._held.append(tell)


JOURNAL_FILE = "journal.jsonl"
TIMING_CACHE_FILE = "timing.cache"


def searching(
    case: Case, request: Request, start: Network | Run | None, watcher: Watcher
) -> AbstractContextManager[Callable[[], Fixed]]:
    """Search for a plan in the emulation, concurrently with the block unless that disturbs it.

    On the GPU it starts only when its result is requested.
    """

    def search(told: Watcher) -> Fixed:
        return run_fix(case, request.settings, told, start_from=start)

    if request.settings.runtime.device == "cpu":
        return concurrently(search, watcher)
    return nullcontext(lambda: search(watcher))


def folder_of(out: Path | None) -> AbstractContextManager[Path | None]:
    """Provide the run folder while it is made; None if there is none."""
    return nullcontext() if out is None else new_folder(out)


def delivered(fixed: Fixed, proof: Proof, seconds: dict[str, float]) -> Fixed:
    """Return the result with the plan, the model and the verdict from the engines."""
    chosen = proof.plan
    if fixed.rungs:
        own = fixed.rungs[-1] if chosen is not None and chosen.rung == "int8" else fixed.rungs[0]
        fixed = replace(own, rungs=fixed.rungs, stage_seconds=fixed.stage_seconds)
    bench = fixed.space.bench
    joined = {
        "joined": (*fixed.search.joined, *proof.joined),
        "calibration": bench.samples.ids,
        "seen": bench.samples.marks or (),
    }
    fixed = replace(
        fixed,
        verdict=proof.verdict,
        search=fixed.search.model_copy(update=joined),
        references=bench.references,
        stage_seconds=fixed.stage_seconds | seconds,
    )
    if chosen is None:
        return fixed
    if chosen.is_full:
        return fixed.telling(Remark(kind="other-engine"))
    if not chosen.repaired:
        return _unrepaired(fixed, chosen.keep, minimal=proof.minimal)
    if chosen.keep != fixed.result.kept:
        return _other_plan(fixed, chosen.keep, minimal=proof.minimal)
    plan = fixed.plan.model_copy(update={"minimal": proof.minimal})
    emulated = [Remark(kind="emulated")] if fixed.plan.minimal and not proof.minimal else []
    return replace(fixed, plan=plan).telling(*emulated)


def _unrepaired(fixed: Fixed, keep: frozenset[NodeName], *, minimal: bool) -> Fixed:
    """Return the result as a plan of the unrepaired model, whose engine is delivered."""
    space, curve = fixed.original, fixed.curve.unrepaired
    assert isinstance(space, LowSpace)
    assert curve is not None
    assigned = space.plan(keep)
    rewritten, placed = space.variant.write(assigned)
    found = replace(fixed.result, kept=keep, minimal=minimal, spare=frozenset())
    note = Remark(kind="unrepaired", numbers={"better": len(fixed.plan.repairs)})
    return replace(
        fixed,
        rewritten=rewritten,
        plan=plan_of(space, assigned, found, placed, rewritten.casts, (note, *fixed.plan.remarks)),
        guards=space.guards,
        observations=space.evidence.observations,
        result=found,
        space=space,
        assigned=assigned,
        curve=curve,
    )


def _other_plan(fixed: Fixed, keep: frozenset[NodeName], *, minimal: bool) -> Fixed:
    """Return the result with a plan other than the emulation's."""
    added, dropped = keep - fixed.result.kept, fixed.result.kept - keep
    space = fixed.space
    assigned = space.plan(keep)
    rewritten, placed = space.variant.write(assigned)
    found = replace(fixed.result, kept=keep, minimal=minimal)
    fixed = replace(fixed, rewritten=rewritten, assigned=assigned, guards=space.guards)
    assert isinstance(space, LowSpace)
    remarks = list(fixed.plan.remarks)
    if dropped:
        numbers = {"elements": len(dropped), "size": len(fixed.result.kept)}
        remarks.append(Remark(kind="spared", numbers=numbers))
    if added:
        remarks.append(Remark(kind="added", numbers={"elements": len(added)}))
    plan = plan_of(space, assigned, found, placed, rewritten.casts, remarks)
    by_engine = {"guard": None, "error_without": None, "kept_by": "engine"}
    kept = tuple(
        k.model_copy(update=by_engine)
        if k.node in added and k.kept_by == "search" and k.guard is None
        else k
        for k in plan.keep
    )
    plan = plan.model_copy(update={"keep": kept})
    return replace(fixed, plan=plan)


def refused(
    case: Case,
    request: Request,
    proof: Proof,
    out: Path | None,
    started: float,
    watcher: Watcher,
) -> Result:
    """Return the run that ends because the FP32 engine is wrong; arguments as for `recorded`."""
    engines, worker = list(proof.engines.values()), proof.wrong or ""
    run = unsearched_run(
        "fix",
        case,
        request,
        final_verdict(proof.verdict, case, request, ()),
        cost(0, time.monotonic() - started, {}),
        next_step=(diagnose_step(case, request, out, worker), Step(kind="other-builds")),
    )
    wrong = LadderRung(rung="fp32", passed=False, failures=proof.verdict.failures)
    found = {"engines": engines[0], "further": tuple(engines[1:])}
    run = run.model_copy(update=found | ({"rungs": (wrong,)} if request.ladder else {}))
    if out is not None:
        with new_folder(out) as partial:
            finish(partial, run, case, watcher)
    return Result(run, out)


@contextmanager
def journal_of(
    out: Path | None, worker: WorkerInfo, *, resume: bool, device: str = ""
) -> Iterator[Journal | None]:
    """Provide the journal next to the run folder; it is kept only to remember a crash.

    With several devices, each journal bears the device's name.

    Raises:
        UsageError: a journal of a run that ended early exists and no option says what to do with
            it, or it cannot be written.
    """
    if out is None:
        yield None
        return
    path = out.with_name(f"{out.name}.{f'{device}.' if device else ''}{JOURNAL_FILE}")
    refuse_irregular(path, "The journal")
    if path.exists() and not resume:
        raise UsageError(
            f"{path} is the journal of a run that ended early or is still running.",
            "Continue without the builds that crashed (--resume), or remove the file to retry all.",
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(path, where=f"TensorRT {worker.tensorrt}, {worker.gpu}")
    except OSError as error:
        raise UsageError(
            f"The journal {path} cannot be written: {error.strerror}.",
            "It is next to the run folder: choose another folder with -o.",
        ) from error
    finished = False
    try:
        yield journal
        finished = True
    finally:
        if finished or not journal.remembers:
            path.unlink(missing_ok=True)


def recorded(
    partial: Path | None,
    case: Case,
    fixed: Fixed,
    request: Request,
    engines: Sequence[Engines],
    out: Path | None,
    started: float,
    journals: Mapping[str, Journal | None],
    watcher: Watcher,
) -> Run:
    """Return the run of what was found and proven, with everything in `partial`, if any.

    Args:
        partial: The run folder while it is made; None for none.
        case: The case.
        fixed: What was found.
        request: The options, with a target.
        engines: Results of the engines, by device; they are still elsewhere on this machine.
        out: The run folder's later place.
        started: `time.monotonic()` at the start of the command.
        journals: Per device, by the name of its worker; "" for the only one.
        watcher: Receives progress.
    """
    assert request.target is not None
    hints = criterion_hints(case.criterion, fixed.references)
    seconds, (first, *others) = time.monotonic() - started, engines
    run = fix_run(case, request, fixed, seconds, hints, out, first, tuple(others))
    if partial is None:
        return run
    mixed, version = replace(case.network, model=fixed.rewritten.model), first.worker.tensorrt
    if first.typing == "strong":
        mixed = readable(mixed, version)
    save_checked(mixed.model, partial / MODEL_FILE, runtime=request.settings.runtime)
    # Weakly typed engines are built from it, and other workers' engines are compared with it.
    save(readable(case.network, version).model, partial / FP32_FILE)
    if is_built_apart(run):
        built = fixed.assigned.of.network_of(fixed.assigned)
        save(readable(built, version).model, partial / BUILT_FILE)
    devices = [_moved(partial, e, e.worker.name if run.further else "") for e in run.devices]
    cache = request.target.settings.timing_cache
    if cache is not None and cache.exists():
        (partial / TIMING_CACHE_FILE).write_bytes(cache.read_bytes())
        devices[0] = devices[0].model_copy(update={"timing_cache": TIMING_CACHE_FILE})
    for name, journal in journals.items():
        if journal is not None:
            file = f"journal.{name}.jsonl" if name else JOURNAL_FILE
            (partial / file).write_bytes(journal.path.read_bytes())
    run = run.model_copy(update={"engines": devices[0], "further": tuple(devices[1:])})
    finish(partial, run, case, watcher, mixed=mixed.model, observations=fixed.seen)
    return run


def _moved(partial: Path, engines: Engines, worker: str) -> Engines:
    """Return the record with its engine's path in the run folder, after moving it there."""
    if engines.delivered is None:
        return engines
    name = engine_file(worker)
    if not (partial / name).exists():
        move(engines.delivered.path, partial / name)
    here: EngineFile = engines.delivered.model_copy(update={"path": name})
    return engines.model_copy(update={"delivered": here})
