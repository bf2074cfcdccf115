"""The record and the run folder of a run with engines, on one device or several."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import move

from halfwise.case import Case
from halfwise.fixing.delivery import JOURNAL_FILE, TIMING_CACHE_FILE
from halfwise.fixing.engines.workbench import BUILT_FILE, equivalent, save
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.outcome import fix_run
from halfwise.fixing.rewrite import save_checked
from halfwise.metrics import verdict_hints
from halfwise.options.options import Request
from halfwise.page.finish import finish
from halfwise.progress import Watcher
from halfwise.records import EngineFile, Engines, Run
from halfwise.store import FP32_FILE, MODEL_FILE, engine_file
from halfwise.tensorrt.constrain import readable
from halfwise.tensorrt.journal import Journal
from halfwise.tensorrt.recipe import is_built_apart, rewritten_nodes


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
    """Return the run of what was found and proven, stored in `partial` if that is a folder.

    Args:
        partial: The run folder while it is made; None for none.
        case: The case.
        fixed: What was found.
        request: The options, with a target.
        engines: Results of the engines, by device.
        out: The run folder's later place.
        started: `time.monotonic()` at the start of the command.
        journals: As for `store`.
        watcher: Receives progress.
    """
    hints = verdict_hints(case.criterion, fixed.references, case.input_shapes)
    seconds, (first, *others) = time.monotonic() - started, engines
    run = fix_run(case, request, fixed, seconds, hints, out, first, tuple(others))
    return run if partial is None else store(partial, run, case, fixed, request, journals, watcher)


def store(
    partial: Path,
    run: Run,
    case: Case,
    fixed: Fixed,
    request: Request,
    journals: Mapping[str, Journal | None],
    watcher: Watcher,
) -> Run:
    """Write everything into the folder; return the run with its engines' paths.

    Args:
        partial: The folder.
        run: The run; its engines are still elsewhere on this machine.
        case: The case.
        fixed: What was found.
        request: The options, with a target.
        journals: Per device, by the name of its worker; "" for the only one.
        watcher: Receives progress.
    """
    assert request.target is not None
    engines, mixed = run.engines, replace(case.network, model=fixed.rewritten.model)
    version = engines.worker.tensorrt if engines else None
    if engines and engines.typing == "strong":
        mixed = readable(mixed, version)
    save_checked(mixed.model, partial / MODEL_FILE, runtime=request.settings.runtime)
    # Weakly typed engines are built from it, and other workers' engines are compared with it.
    save(readable(case.network, version).model, partial / FP32_FILE)
    if is_built_apart(run):
        planner = fixed.planner
        if isinstance(planner, Int8Planner):
            built = planner.network_of(frozenset(k.node for k in fixed.plan.left_out))
        else:
            built = equivalent(planner.case.network, rewritten_nodes(run)).network
        save(readable(built, version).model, partial / BUILT_FILE)
    devices = [_moved(partial, e, several=bool(run.further)) for e in run.devices]
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


def _moved(partial: Path, engines: Engines, *, several: bool) -> Engines:
    """Return the record with its engine's path in the run folder, after moving it there.

    Files that workers share are stored once.
    """
    if engines.delivered is None:
        return engines
    name = engine_file((engines.shares or engines.worker.name) if several else "")
    if Path(engines.delivered.path).exists() and not (partial / name).exists():
        move(engines.delivered.path, partial / name)
    here: EngineFile = engines.delivered.model_copy(update={"path": name})
    return engines.model_copy(update={"delivered": here})
