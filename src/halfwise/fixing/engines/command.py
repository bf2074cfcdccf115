"""`fix` with engines of one device: the emulation proposes plans, engines decide."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from halfwise.case import Case
from halfwise.emulation.folding import settled
from halfwise.fixing.engines.delivery import (
    delivered,
    folder_of,
    journal_of,
    one_at_a_time,
    proving,
    recorded,
    refused,
    searching,
    unrepaired,
    with_own_network,
)
from halfwise.fixing.engines.early import proven_folder
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.following import with_growth
from halfwise.fixing.outcome import Result
from halfwise.graph.model import Network
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import Note, Run
from halfwise.scratch import scratch
from halfwise.store import engine_file
from halfwise.tensorrt.working import usable


def fix_in_engines(
    case: Case,
    request: Request,
    watcher: Watcher,
    *,
    start: Network | Run | None,
    out: Path | None,
    started: float,
) -> Result:
    """Run `fix` with a target; moves the engine into the run folder.

    Args:
        case: The case.
        request: The options, with a target.
        watcher: Receives progress.
        start: Plan to start the search from.
        out: Run folder to create.
        started: `time.monotonic()` at the start of the run.

    Raises:
        HalfwiseError: see `fix`.
    """
    assert request.target is not None
    settings = request.target.profiled(case)
    place = proven_folder(out, resume=request.target.resume)
    given, own = case, with_own_network(case := one_at_a_time(case))
    with (
        searching(case, request, start, watcher) as searched,
        usable(request.target.worker, watcher, settings.wait_timeout, exact=True) as worker,
        journal_of(out, worker.info, resume=request.target.resume) as journal,
        scratch() as folder,
    ):
        engines = EngineRun(
            *(own, request.settings, settings, worker, folder, watcher, journal),
            place=place,
            started=started,
        )
        fp32 = engines.reference()
        if fp32.verdict is not None and fp32.verdict.passed:
            engines.tf32()
            without = lambda: unrepaired(case, request, start, watcher)  # noqa: E731
            fixed, proven = proving(searched(), engines.prove, without)
            passed = proven.engines.delivered
            watcher.stage("store")
            with folder_of(out) as partial:
                if partial is not None:
                    proven = engines.brought(proven, partial / engine_file())
                fixed = with_growth(delivered(fixed, proven, engines.seconds), partial)
                found, kept = proven.engines, {"": journal}
                run = recorded(partial, case, fixed, request, (found,), out, started, kept, watcher)
            engines.builds.forget(passed)
            if place is not None and found.delivered is not None:
                rmtree(place, ignore_errors=True)
            return Result(run, out, fixed.rewritten.model)
        engines.builds.forget(None)
        other = None if settings.profiles else _settled(given)
        if other is None:
            return refused(own, request, engines.refused(), out, started, watcher)
    watcher.note("the FP32 engine is wrong; trying it with fixed shapes, optimised")
    return fix_in_engines(other, request, watcher, start=start, out=out, started=started)


def _settled(case: Case) -> Case | None:
    """Return the case of the model for the shapes of its samples alone; None if that is no other.

    A builder compiles it differently, and may be right. With profiles of the user, it is not what
    was asked for.
    """
    network = settled(case.network, case.calibration + case.heldout)
    if network is None:
        return None
    note = Note(kind="settled", severity="warning")
    return replace(case, network=network, notes=(*case.notes, note))
