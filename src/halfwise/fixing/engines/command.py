"""`fix` with engines of one device or of several: the emulation proposes plans, engines decide."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

from halfwise.case import Case
from halfwise.emulation.folding import settled
from halfwise.fixing.engines.conclude import proven_folder
from halfwise.fixing.engines.delivery import (
    Relay,
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
from halfwise.fixing.engines.devices import DevicesRun
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.following import with_growth
from halfwise.fixing.outcome import Result
from halfwise.graph.model import Network
from halfwise.options.options import Request
from halfwise.progress import Silent, Watcher
from halfwise.records import (
    EngineFile,
    Note,
    Run,
)
from halfwise.scratch import scratch
from halfwise.store import engine_file
from halfwise.tensorrt.client import usable


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
                fixed = with_growth(delivered(fixed, proven, engines.stages.seconds), partial)
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


class Named(Silent):
    """Messages of one device; steps are not shown, because builds run concurrently."""

    def __init__(self, shared: Relay, name: str) -> None:
        """Take the watcher of all devices, and the name that prefixes each line."""
        self._shared, self._name = shared, name

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage, with the device's name appended."""
        self._shared.stage(f"{name} on {self._name}", total)

    def note(self, line: str) -> None:
        """Report something with the name prefixed."""
        self._shared.note(f"{self._name}: {line}")


def fix_on_devices(
    case: Case,
    request: Request,
    watcher: Watcher,
    *,
    start: Network | Run | None,
    out: Path | None,
    started: float,
) -> Result:
    """Run `fix` with several workers; see `fix_in_engines`."""
    assert request.target is not None
    shared = Relay(watcher)
    shared.release()
    devices = request.target.each_profiled(case)
    place = proven_folder(out, resume=request.target.resume)
    case = one_at_a_time(case)
    with searching(case, request, start, shared) as searched, ExitStack() as stack:
        folder = stack.enter_context(scratch())
        workers = {
            spec.name: stack.enter_context(
                usable(spec, Named(shared, spec.name), how.wait_timeout, exact=True)
            )
            for spec, how in devices
        }
        journals, runs = {}, {}
        for name, how in ((spec.name, how) for spec, how in devices):
            keeping = journal_of(out, workers[name].info, resume=request.target.resume, device=name)
            journals[name] = stack.enter_context(keeping)
            (folder / name).mkdir()
            runs[name] = EngineRun(
                *(with_own_network(case), request.settings, how, workers[name], folder / name),
                *(Named(shared, name), journals[name]),
                place=place and place / name,
                started=started,
            )
        together = DevicesRun(runs, shared)
        if (wrong := together.reference()) is not None:
            _forget(runs, {})
            first, *others = wrong.engines.values()
            one, name = replace(wrong.one, engines=first), next(iter(wrong.proven))
            return refused(
                with_own_network(case), request, one, out, started, watcher, tuple(others), name
            )
        together.tf32()
        without = partial(unrepaired, case, request, start, shared)
        fixed, found = proving(searched(), together.prove, without)
        passed = {name: each.engines.delivered for name, each in found.proven.items()}
        shared.stage("store")
        with folder_of(out) as made_folder:
            if made_folder is not None:
                found = together.brought(found, {n: made_folder / engine_file(n) for n in runs})
            found = found.in_order(workers)
            fixed = with_growth(delivered(fixed, found.one, together.stages.seconds), made_folder)
            each = tuple(found.engines.values())
            run = recorded(made_folder, case, fixed, request, each, out, started, journals, shared)
        _forget(runs, passed)
        if place is not None and all(each.delivered is not None for each in run.devices):
            rmtree(place, ignore_errors=True)
        return Result(run, out, fixed.rewritten.model)


def _forget(runs: Mapping[str, EngineRun], passed: Mapping[str, EngineFile | None]) -> None:
    """Remove engines on the workers, except those that `passed`."""
    for name, run in runs.items():
        run.builds.forget(passed.get(name))
