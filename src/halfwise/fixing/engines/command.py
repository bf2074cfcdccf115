"""`fix` with engines of one device or of several: the emulation proposes plans, engines decide."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from halfwise.case import Case, EngineSettings
from halfwise.emulation.folding import settled
from halfwise.fixing.engines.delivery import (
    Relay,
    delivered,
    folder_of,
    journal_of,
    one_at_a_time,
    recorded,
    refused,
    searching,
    with_own_network,
)
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.engines.workbench import Workbench
from halfwise.fixing.following import with_growth
from halfwise.fixing.outcome import Result
from halfwise.graph.model import Network
from halfwise.options.options import Request
from halfwise.progress import Silent, Watcher
from halfwise.records import Note, Run
from halfwise.scratch import scratch
from halfwise.store import engine_file
from halfwise.tensorrt.client import usable
from halfwise.tensorrt.failures import Journal
from halfwise.tensorrt.workers import WorkerSpec


class Named(Silent):
    """Messages of one of several devices; steps are not shown, because builds run concurrently."""

    def __init__(self, shared: Relay, name: str) -> None:
        """Take the watcher of all devices, and the name that prefixes each line."""
        self._shared, self._name = shared, name

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage, with the device's name appended."""
        self._shared.stage(f"{name} on {self._name}", total)

    def note(self, line: str) -> None:
        """Report something with the name prefixed."""
        self._shared.note(f"{self._name}: {line}")


def fix_in_engines(
    case: Case,
    request: Request,
    watcher: Watcher,
    *,
    start: Network | Run | None,
    out: Path | None,
    started: float,
) -> Result:
    """Run `fix` with a target; moves the engines into the run folder.

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
    shared, given = Relay(watcher), case
    shared.release()
    case = one_at_a_time(case)
    with (
        searching(case, request, start, shared) as searched,
        _devices(case, request, shared, out, started) as (devices, journals),
    ):
        run = EngineRun(devices, shared)
        if (wrong := run.reference()) is None:
            run.with_tf32()
            fixed = searched()
            proof = run.prove(fixed)
            passed = {name: each.delivered for name, each in proof.engines.items()}
            shared.stage("store")
            with folder_of(out) as partial:
                if partial is not None:
                    paths = {name: partial / engine_file(name) for name in devices}
                    proof = run.brought(proof, paths)
                fixed = with_growth(delivered(fixed, proof, run.stages.seconds), partial)
                found = list(proof.engines.values())
                record = recorded(
                    partial, case, fixed, request, found, out, started, journals, shared
                )
            for name, device in devices.items():
                device.bench.builds.forget(passed[name])
            return Result(record, out, fixed.rewritten.model)
        for device in devices.values():
            device.bench.builds.forget(None)
        other = None if request.target.shapes != ((), (), ()) else _settled(given)
        if other is None:
            return refused(with_own_network(case), request, wrong, out, started, shared)
    watcher.note("the FP32 engine is wrong; trying it with fixed shapes, optimised")
    return fix_in_engines(other, request, watcher, start=start, out=out, started=started)


@contextmanager
def _devices(
    case: Case, request: Request, shared: Relay, out: Path | None, started: float
) -> Iterator[tuple[dict[str, Device], dict[str, Journal | None]]]:
    """Provide the devices with their journals, by name; a single one is named ""."""
    assert request.target is not None
    target = request.target
    named: list[tuple[str, WorkerSpec, EngineSettings]]
    named = [(spec.name, spec, how) for spec, how in target.each_profiled(case)]
    named = named or [("", target.worker, target.profiled(case))]
    devices: dict[str, Device] = {}
    journals: dict[str, Journal | None] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        for name, spec, how in named:
            watcher: Watcher = Named(shared, name) if name else shared
            worker = stack.enter_context(usable(spec, watcher, how.wait_timeout, exact=True))
            journal = journal_of(out, worker.info, resume=target.resume, device=name)
            journals[name] = stack.enter_context(journal)
            own, files = with_own_network(case), folder / (name or "engine")
            files.mkdir()
            bench = Workbench(own, request.settings, how, worker, files, watcher, journals[name])
            devices[name] = Device(bench, started)
        yield devices, journals


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
