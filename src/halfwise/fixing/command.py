"""`fix`: the smallest set of FP32 nodes, a mixed model, its verdict."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from halfwise.case import Case, Settings
from halfwise.declarations import Inputs, Options
from halfwise.emulation.bounded import forgiving, sized
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.following import with_growth
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.outcome import Result, fix_run
from halfwise.fixing.repair.making import with_readable
from halfwise.fixing.rewrite import save_checked
from halfwise.fixing.sizes import judge_sizes
from halfwise.graph.model import Network
from halfwise.graph.quantisation.pairs import quantising
from halfwise.judging.reference import check_types, frozen_named
from halfwise.linting.command import precision_remarks
from halfwise.metrics import verdict_hints
from halfwise.options.loading import load_asked, load_start, nodes_of, tell
from halfwise.options.options import INT8, Model, Request, bounded, understand
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import Note
from halfwise.store import MODEL_FILE, free_folder, new_folder


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
        out: Run folder to create; must not exist. None writes nothing.
        watcher: Receives progress.
        options: See `Options`.

    Raises:
        HalfwiseError: the model, the inputs or an option is unusable. A failed verdict is not an
            error: see `Result.run.verdict`.
    """
    return fix_asked(model, understand(inputs, options), out=out, watcher=watcher)


def fix_asked(
    model: Model,
    request: Request,
    *,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Run `fix` with parsed options.

    Raises:
        HalfwiseError: see `fix`.
    """
    started = time.monotonic()
    folder = free_folder(out)
    start = None if request.start_from is None else load_start(request.start_from)
    if isinstance(start, Network):
        check_types(start, runtime=request.settings.runtime)
        if quantising(start):
            settings, given = replace(request.settings, int8=True), {"to": INT8, **request.given}
            request = replace(request, settings=settings, given=given, ladder=True)
    watcher = watcher or Silent()
    case = _readable(_linted(load_asked(model, request, watcher), watcher), watcher)
    with frozen_named(case, request.settings):
        if request.target is not None:
            # Loaded here: 0.3 s and 9 MiB, which only runs with a target need.
            from halfwise.fixing.engines.command import (  # noqa: PLC0415
                fix_in_engines,
                fix_on_devices,
            )

            run = fix_on_devices if request.target.devices else fix_in_engines
            return run(case, request, watcher, start=start, out=folder, started=started)
        fixed = run_fix(case, request.settings, watcher, start_from=start, quick=True)
    return concluded(case, request, fixed, folder, started, watcher)


def concluded(
    case: Case,
    request: Request,
    fixed: Fixed,
    folder: Path | None,
    started: float,
    watcher: Watcher,
) -> Result:
    """Return the run of a result found without engines, and write it into `folder`, if any.

    Args:
        case: The case.
        request: The options.
        fixed: Result of the search.
        folder: Run folder to create.
        started: `time.monotonic()` at the start of the run.
        watcher: Receives progress.
    """
    watcher.stage("store")
    with sized("store", nodes_of(case.network)):
        return _stored(case, request, fixed, folder, started, watcher)


def _stored(
    case: Case,
    request: Request,
    fixed: Fixed,
    folder: Path | None,
    started: float,
    watcher: Watcher,
) -> Result:
    settings = request.settings
    fixed = with_growth(_at_sizes(fixed, case, settings), folder)
    mixed = fixed.rewritten.model
    hints = verdict_hints(case.criterion, fixed.references, case.input_shapes)
    run = fix_run(case, request, fixed, time.monotonic() - started, hints, folder)
    if folder is not None:
        with new_folder(folder) as partial:
            save_checked(mixed, partial / MODEL_FILE, runtime=settings.runtime)
            finish(partial, run, case, watcher, mixed=mixed, observations=fixed.seen)
    return Result(run, folder, mixed)


def _at_sizes(fixed: Fixed, case: Case, settings: Settings) -> Fixed:
    """Return the result judged at further sizes; the plan below if INT8 fails only there."""
    found = _sized(fixed, case, settings)
    has_int8 = bool(fixed.rungs) and fixed.plan == fixed.rungs[-1].plan
    if found.verdict.passed or not has_int8 or fixed.planner.settings.chosen is not None:
        return found
    below, low = _sized(fixed.rungs[0], case, settings), fixed.rungs[-1]
    if not below.verdict.passed:
        return found
    rungs = below, replace(low, verdict=found.verdict)
    took = fixed.stage_seconds
    return replace(below, rungs=rungs, stage_seconds=took, all_int8=fixed.all_int8)


def _sized(fixed: Fixed, case: Case, settings: Settings) -> Fixed:
    judged_on = fixed.heldout.samples, fixed.heldout.references
    verdict = judge_sizes(fixed.verdict, case, fixed.rewritten.model, *judged_on, settings)
    return replace(fixed, verdict=verdict)


def _linted(case: Case, watcher: Watcher) -> Case:
    """Add the linter's findings about the case's file to its notes."""
    remarks = precision_remarks(case.network)
    tell(watcher, remarks)
    return replace(case, notes=(*case.notes, *remarks))


def _readable(case: Case, watcher: Watcher) -> Case:
    """Drop an unreadable record of repairs from the case, with a warning."""
    network, why = with_readable(case.network)
    if not why:
        return case
    remark = Note(kind="repairs-unread", severity="warning", facts={"why": why})
    tell(watcher, (remark,))
    return replace(case, network=network, notes=(*case.notes, remark))
