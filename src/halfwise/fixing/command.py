"""`fix`: the smallest set of FP32 nodes, a mixed model and its verdict; engines decide, if any."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from shutil import move
from typing import Unpack

from halfwise.case import Case
from halfwise.declarations import Inputs, Options
from halfwise.emulation.bounded import forgiving
from halfwise.errors import UsageError
from halfwise.fixing.engines import FP32_FILE, EngineRun, Proven
from halfwise.fixing.engines.concurrent_search import concurrently, one_at_a_time, with_own_network
from halfwise.fixing.engines.workbench import save
from halfwise.fixing.loop import Fixed
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.next_steps import diagnose_command
from halfwise.fixing.outcome import Result, cost, final_verdict, fix_run, unsearched_run
from halfwise.fixing.rewrite import save_checked
from halfwise.fixing.sizes import judge_sizes
from halfwise.graph.casts import Rewritten
from halfwise.graph.model import Network
from halfwise.judging.reference import check_types, frozen_named
from halfwise.linting.command import precision_remarks
from halfwise.metrics import verdict_hints
from halfwise.options.loading import load_asked, load_start, tell
from halfwise.options.options import Model, Request, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import EngineFile, NodeName, Plan, Remark, Run, WorkerInfo
from halfwise.scratch import scratch
from halfwise.store import (
    MODEL_FILE,
    free_folder,
    new_folder,
    refuse_irregular,
    write_observations,
    write_run,
)
from halfwise.tensorrt.worker.journal import Journal
from halfwise.tensorrt.working import usable


@bounded
@forgiving()
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
    folder = free_folder(out)
    start = None if request.start_from is None else load_start(request.start_from)
    if isinstance(start, Network):
        check_types(start, runtime=request.settings.runtime)
    watcher = watcher or Silent()
    case = _linted(load_asked(model, request, watcher), watcher)
    with frozen_named(case, request.settings):
        if request.target is not None:
            return fix_in_engines(case, request, watcher, start=start, out=folder, started=started)
        fixed = run_fix(case, request.settings, watcher, start_from=start, quick=True)
    return concluded(case, request, fixed, folder, started)


def concluded(
    case: Case, request: Request, fixed: Fixed, folder: Path | None, started: float
) -> Result:
    """Return the run of what was found without engines, and write it into `folder`, if any.

    Args:
        case: The case.
        request: The options.
        fixed: What was found.
        folder: Run folder to make.
        started: `time.monotonic()` when the run began.
    """
    mixed, settings = fixed.rewritten.model, request.settings
    judged_on = fixed.heldout.samples, fixed.heldout.references
    verdict = judge_sizes(fixed.verdict, case, mixed, *judged_on, settings)
    fixed = replace(fixed, verdict=verdict)
    hints = verdict_hints(case.criterion, fixed.references, case.input_shapes)
    run = fix_run(case, request, fixed, time.monotonic() - started, hints, folder)
    if folder is not None:
        with new_folder(folder) as partial:
            save_checked(mixed, partial / MODEL_FILE, runtime=settings.runtime)
            write_observations(partial, fixed.observations)
            write_run(partial, run)
    return Result(run, folder, mixed)


def _linted(case: Case, watcher: Watcher) -> Case:
    """Return the case with what the linter has against its file among the notes."""
    remarks = precision_remarks(case.network)
    tell(watcher, remarks)
    return replace(case, notes=(*case.notes, *remarks))


ENGINE_FILE = "model.engine"
JOURNAL_FILE = "journal.jsonl"
TIMING_CACHE_FILE = "timing.cache"


def fix_in_engines(
    case: Case,
    request: Request,
    watcher: Watcher,
    *,
    start: Network | Run | None,
    out: Path | None,
    started: float,
) -> Result:
    """Return what `fix` gives with a target; the engine is brought into the run folder.

    Args:
        case: The case.
        request: The options, with a target.
        watcher: Is told about progress.
        start: Where the search starts.
        out: Run folder to make.
        started: `time.monotonic()` when the run began.

    Raises:
        HalfwiseError: see `fix`.
    """
    assert request.target is not None
    settings = request.target.profiled(case)
    case = one_at_a_time(case)
    own = with_own_network(case)
    with (
        _searching(case, request, start, watcher) as searched,
        usable(request.target.workers[0], watcher, settings.wait_timeout, exact=True) as worker,
        _journal(out, worker.info, resume=request.target.resume) as journal,
        scratch() as folder,
    ):
        engines = EngineRun(own, request.settings, settings, worker, folder, watcher, journal)
        fp32 = engines.reference()
        if fp32.verdict is None or not fp32.verdict.passed:
            engines.builds.forget(None)
            return _refused(own, request, engines.refused(), out, started)
        fixed = searched()
        proven = engines.prove(fixed)
        passed = proven.engines.delivered
        watcher.stage("store")
        with _folder(out) as partial:
            if partial is not None:
                proven = engines.brought(proven, partial / ENGINE_FILE)
            fixed = _delivered(fixed, proven, engines.seconds)
            hints = verdict_hints(case.criterion, fixed.references, case.input_shapes)
            found = proven.engines
            run = fix_run(case, request, fixed, time.monotonic() - started, hints, out, found)
            if partial is not None:
                run = _store(partial, run, case, fixed, request, journal)
        engines.builds.forget(passed)
        return Result(run, out, fixed.rewritten.model)


def _searching(
    case: Case, request: Request, start: Network | Run | None, watcher: Watcher
) -> AbstractContextManager[Callable[[], Fixed]]:
    """Search for a plan in the emulation, beside what the block does where that does not disturb.

    On the GPU it waits until its result is asked for.
    """

    def search(told: Watcher) -> Fixed:
        return run_fix(case, request.settings, told, start_from=start)

    if request.settings.runtime.device == "cpu":
        return concurrently(search, watcher)
    return nullcontext(lambda: search(watcher))


def _folder(out: Path | None) -> AbstractContextManager[Path | None]:
    return nullcontext() if out is None else new_folder(out)


def _store(
    partial: Path,
    run: Run,
    case: Case,
    fixed: Fixed,
    request: Request,
    journal: Journal | None,
) -> Run:
    """Write everything into the folder; return the run with the engine's place in it."""
    assert run.engines is not None
    assert request.target is not None
    save_checked(fixed.rewritten.model, partial / MODEL_FILE, runtime=request.settings.runtime)
    # Weakly typed engines are built of it, and those of other workers are judged against it.
    save(case.network.model, partial / FP32_FILE)
    engines = run.engines
    if engines.delivered is not None:
        move(engines.delivered.path, partial / ENGINE_FILE)
        here: EngineFile = engines.delivered.model_copy(update={"path": ENGINE_FILE})
        engines = engines.model_copy(update={"delivered": here})
    cache = request.target.settings.timing_cache
    if cache is not None and cache.exists():
        (partial / TIMING_CACHE_FILE).write_bytes(cache.read_bytes())
        engines = engines.model_copy(update={"timing_cache": TIMING_CACHE_FILE})
    if journal is not None:
        (partial / JOURNAL_FILE).write_bytes(journal.path.read_bytes())
    run = run.model_copy(update={"engines": engines})
    write_observations(partial, fixed.observations)
    write_run(partial, run)
    return run


def _delivered(fixed: Fixed, proven: Proven, seconds: dict[str, float]) -> Fixed:
    """Return what was found with the plan, the model and the verdict that the engines led to."""
    search = fixed.search
    joined = {
        "joined": (*search.joined, *proven.joined),
        "calibration": fixed.planner.trials.samples.ids,
        "seen": fixed.planner.trials.samples.marks or (),
    }
    fixed = replace(
        fixed,
        verdict=proven.verdict,
        search=search.model_copy(update=joined),
        references=fixed.planner.trials.references,
        stage_seconds=fixed.stage_seconds | seconds,
    )
    keep = proven.keep
    if proven.engines.full:
        remarks = (Remark(kind="other-engine"), *fixed.plan.remarks)
        plan = fixed.plan.model_copy(update={"remarks": remarks})
        return replace(fixed, plan=plan)
    if keep is None:
        return fixed
    if keep == fixed.found.kept:
        plan = fixed.plan
        if plan.minimal and not proven.minimal:
            remarks = (*plan.remarks, Remark(kind="emulated"))
            plan = plan.model_copy(update={"remarks": remarks})
        return replace(fixed, plan=plan.model_copy(update={"minimal": proven.minimal}))
    rewritten, plan = _other_plan(fixed, proven, keep)
    return replace(fixed, rewritten=rewritten, plan=plan, guards=fixed.planner.guards)


def _other_plan(fixed: Fixed, proven: Proven, keep: frozenset[NodeName]) -> tuple[Rewritten, Plan]:
    """Return the mixed model and the record of a plan that is not the emulation's."""
    added, dropped = keep - fixed.found.kept, fixed.found.kept - keep
    rewritten, placed = fixed.planner.rewrite(keep)
    found = replace(fixed.found, kept=keep, minimal=proven.minimal)
    remarks = list(fixed.plan.remarks)
    if dropped:
        numbers = {"elements": len(dropped), "size": len(fixed.found.kept)}
        remarks.append(Remark(kind="spared", numbers=numbers))
    if added:
        remarks.append(Remark(kind="added", numbers={"elements": len(added)}))
    plan = fixed.planner.record(found, placed, rewritten.casts, remarks)
    kept = tuple(
        k.model_copy(update={"guard": None, "error_without": None, "kept_by": "engine"})
        if k.node in added and k.kept_by == "search" and k.guard is None
        else k
        for k in plan.keep
    )
    return rewritten, plan.model_copy(update={"keep": kept})


def _refused(
    case: Case, request: Request, proven: Proven, out: Path | None, started: float
) -> Result:
    """Return the run that ends because the FP32 engine is wrong."""
    run = unsearched_run(
        "fix",
        case,
        request,
        final_verdict(proven.verdict, case, request, ()),
        cost(0, time.monotonic() - started, {}),
        next_step=(
            "Find the first thing that is wrong, from the inputs up to the kernels: "
            f"{diagnose_command(case, request, out)}",
            "Try another optimization level (--optimization-level 0 to 5), other --tactic-sources, "
            "or another version of TensorRT.",
        ),
    ).model_copy(update={"engines": proven.engines})
    if out is not None:
        with new_folder(out) as partial:
            write_run(partial, run)
    return Result(run, out)


@contextmanager
def _journal(out: Path | None, worker: WorkerInfo, *, resume: bool) -> Iterator[Journal | None]:
    """Give the journal beside the run folder; it stays only where a crash is to be remembered.

    Raises:
        UsageError: there is one of a run that ended early, and nobody said what to do with it, or
            it cannot be written.
    """
    if out is None:
        yield None
        return
    path = out.with_name(f"{out.name}.{JOURNAL_FILE}")
    refuse_irregular(path, "The journal")
    if path.exists() and not resume:
        raise UsageError(
            f"{path} is the journal of a run that ended early, or that still goes on.",
            "Go on without the builds that crashed, --resume, or remove the file to try all again.",
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(path, where=f"TensorRT {worker.tensorrt}, {worker.gpu}")
    except OSError as error:
        raise UsageError(
            f"The journal {path} cannot be written: {error.strerror}.",
            "It lies beside the run folder: name another with -o.",
        ) from error
    finished = False
    try:
        yield journal
        finished = True
    finally:
        if finished or not journal.remembers:
            path.unlink(missing_ok=True)
