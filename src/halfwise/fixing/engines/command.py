"""`fix` with engines of one device or of several: the emulation proposes plans, engines decide."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from halfwise.case import Case
from halfwise.emulation.runner import settled
from halfwise.errors import CaseError
from halfwise.fixing.curve import curve_of
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.run import EngineRun, Proof
from halfwise.fixing.filed import judged_as_file, may_mend
from halfwise.fixing.fixed import Fixed, plan_of, search_of
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.next_steps import diagnose_step
from halfwise.fixing.outcome import cost, final_verdict, fix_run, unsearched_run
from halfwise.fixing.plan.plan import Plan
from halfwise.fixing.result import Result
from halfwise.fixing.rewrite import save_checked
from halfwise.graph.aside import write_back
from halfwise.graph.model import Network
from halfwise.graph.weights import save
from halfwise.judging.judge import Judged
from halfwise.metrics.untested import needed
from halfwise.options.options import Request
from halfwise.page.finish import finish
from halfwise.progress import Silent, Watcher
from halfwise.records import Engines, LadderRung, NodeName, Note, Remark, Run, Step, replace
from halfwise.scratch import scratch
from halfwise.store import (
    BUILT_FILE,
    FP32_FILE,
    MODEL_FILE,
    engine_file,
    new_folder,
)
from halfwise.tensorrt.client import usable
from halfwise.tensorrt.constrain import readable
from halfwise.tensorrt.recipe import is_built_apart


def _demand_enough(case: Case) -> None:
    """Raise `CaseError` if no verdict on an engine could show the share that may fail."""
    share = case.criterion.failing
    if share is None:
        return
    count, least = len(case.heldout), needed(0, share)
    if count < least:
        raise CaseError(
            f"--failing {share:g} takes at least {least} held-out samples; there are {count}.",
            "Give more inputs, or a larger share, before engines are built.",
        )


class Named(Silent):
    """Messages of one of several devices; steps are not shown."""

    def __init__(self, watcher: Watcher, name: str) -> None:
        """Take the watcher of all devices, and the name that prefixes each line."""
        self._watcher, self._name = watcher, name

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage, with the device's name appended."""
        self._watcher.stage(f"{name} on {self._name}", total)

    def note(self, line: str) -> None:
        """Report something with the name prefixed."""
        self._watcher.note(f"{self._name}: {line}")


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
    _demand_enough(case)
    with _devices(case, request, watcher) as devices:
        run = EngineRun(devices, watcher)
        if (wrong := run.reference()) is None:
            fixed = run_fix(case, request.settings, watcher, start_from=start)
            proof = run.prove(fixed)
            passed = {name: each.delivered for name, each in proof.engines.items()}
            watcher.stage("store")
            with nullcontext() if out is None else new_folder(out) as folder:
                if folder is not None:
                    paths = {name: folder / engine_file(name) for name in devices}
                    proof = run.brought(proof, paths)
                fixed = on_targets(delivered(fixed, proof, run.stages.seconds))
                engines = list(proof.engines.values())
                record = recorded(folder, case, fixed, request, engines, out, started, watcher)
            for name, device in devices.items():
                device.builds.forget(passed[name])
            return Result(record, out, fixed.rewritten.model, fixed.seen)
        for device in devices.values():
            device.builds.forget(None)
        other = None if request.target.shapes != ((), (), ()) else _settled(case)
        if other is None:
            return refused(case, request, wrong, out, started, watcher)
    watcher.note("the FP32 engine is wrong; trying it with fixed shapes, optimised")
    return fix_in_engines(other, request, watcher, start=start, out=out, started=started)


@contextmanager
def _devices(case: Case, request: Request, shared: Watcher) -> Iterator[dict[str, Device]]:
    """Provide the devices, by name; a single one is named ""."""
    assert request.target is not None
    target, how = request.target, request.target.profiled(case)
    several = len(target.workers) > 1
    specs = {spec.name if several else "": spec for spec in target.workers}
    devices: dict[str, Device] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        for name, spec in specs.items():
            watcher: Watcher = Named(shared, name) if name else shared
            worker = stack.enter_context(usable(spec, watcher, exact=True))
            files = folder / (name or "engine")
            files.mkdir()
            devices[name] = Device(case, request.settings, how, worker, files, watcher)
        yield devices


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


def on_targets(fixed: Fixed) -> Fixed:
    """Return the result; its engine's verdict fails where the other targets fail the file."""
    variant, heldout = fixed.space.variant, fixed.heldout
    if not variant.settings.targets:
        return fixed
    samples = heldout.samples, heldout.references
    judged = judged_as_file(
        Judged(fixed.verdict, ()),
        *(fixed.rewritten.model, variant.case, variant.settings, *samples),
        may_mend=lambda runner: may_mend(fixed.space.bench, variant, runner, *samples),
    )
    return replace(fixed, verdict=replace(judged.verdict, sums=None))


def delivered(fixed: Fixed, proof: Proof, seconds: dict[str, float]) -> Fixed:
    """Return the result with the plan, the model and the verdict from the engines."""
    chosen = proof.plan
    if fixed.rungs:
        rung = fixed.rungs[-1] if chosen is not None and chosen.rung == "int8" else fixed.rungs[0]
        fixed = replace(rung, rungs=fixed.rungs, stage_seconds=fixed.stage_seconds)
    fixed = replace(
        fixed,
        verdict=proof.verdict,
        search=search_of(fixed.space, fixed.heldout, fixed.result),
        stage_seconds=fixed.stage_seconds | seconds,
    )
    if chosen is None:
        return fixed
    if chosen.is_full:
        return fixed.telling(Remark(kind="other-engine"))
    if chosen.types != fixed.assigned:
        return _replanned(fixed, chosen.types, minimal=proof.minimal)
    plan = replace(fixed.plan, minimal=proof.minimal)
    emulated = [Remark(kind="emulated")] if fixed.plan.minimal and not proof.minimal else []
    return replace(fixed, plan=plan).telling(*emulated)


def _replanned(fixed: Fixed, assigned: Plan, *, minimal: bool) -> Fixed:
    """Return the result with a plan other than the emulation's, maybe of the unrepaired model."""
    before, remarks, added = fixed.result.kept, list(fixed.plan.remarks), frozenset[NodeName]()
    space, curve, result = fixed.space, fixed.curve, fixed.result
    if assigned.of is not fixed.assigned.of:
        space, result = fixed.original, replace(result, kept=assigned.kept, spare=added)
        curve = curve_of(space, assigned, result)
        numbers = {"better": len(fixed.plan.repairs)}
        remarks.insert(0, Remark(kind="unrepaired", numbers=numbers))
    else:
        added, dropped = assigned.kept - before, before - assigned.kept
        numbers = {"elements": len(dropped), "size": len(before)}
        remarks += [Remark(kind="spared", numbers=numbers)] if dropped else []
        remarks += [Remark(kind="added", numbers={"elements": len(added)})] if added else []
    rewritten, placed = space.variant.write(assigned)
    result = replace(result, kept=assigned.kept, minimal=minimal)
    plan = plan_of(space, assigned, result, placed, rewritten.casts, remarks)
    kept = tuple(
        replace(k, guard=None, error_without=None, kept_by="engine")
        if k.node in added and k.kept_by == "search" and k.guard is None
        else k
        for k in plan.keep
    )
    return replace(
        fixed,
        rewritten=rewritten,
        plan=replace(plan, keep=kept),
        guards=space.guards,
        result=result,
        space=space,
        assigned=assigned,
        curve=curve,
    )


def refused(
    case: Case,
    request: Request,
    proof: Proof,
    out: Path | None,
    started: float,
    watcher: Watcher,
) -> Result:
    """Return the run that ends because the FP32 engine is wrong; arguments as for `recorded`."""
    (first, *further), worker = proof.engines.values(), proof.wrong or ""
    wrong = LadderRung(rung="fp32", passed=False, failures=proof.verdict.failures)
    run = unsearched_run(
        "fix",
        case,
        request,
        final_verdict(proof.verdict, case, request),
        cost(0, time.monotonic() - started, {}),
        next_step=(diagnose_step(case, request, out, worker), Step(kind="other-builds")),
        engines=first,
        further=tuple(further),
        rungs=(wrong,) if request.ladder else (),
    )
    if out is not None:
        with new_folder(out) as partial:
            finish(partial, run, case, watcher)
    return Result(run, out)


def recorded(
    partial: Path | None,
    case: Case,
    fixed: Fixed,
    request: Request,
    engines: Sequence[Engines],
    out: Path | None,
    started: float,
    watcher: Watcher,
) -> Run:
    """Return the run of what was found and proven, with everything in `partial`, if any.

    Args:
        partial: The run folder while it is made; None for none.
        case: The case.
        fixed: What was found.
        request: The options, with a target.
        engines: Results of the engines, by device.
        out: The run folder's later place.
        started: `time.monotonic()` at the start of the command.
        watcher: Receives progress.
    """
    assert request.target is not None
    seconds, (first, *further) = time.monotonic() - started, engines
    run = fix_run(case, request, fixed, seconds, out, first, tuple(further))
    if partial is None:
        return run
    mixed, version = replace(case.network, model=fixed.rewritten.model), first.worker.tensorrt
    if first.typing == "strong":
        mixed = readable(mixed, version)
    foreign = case.aside is not None and bool(case.aside.foreign)
    written = write_back(mixed.model, case.aside)
    runtime = request.settings.runtime
    save_checked(written, partial / MODEL_FILE, runtime=runtime, foreign=foreign)
    # Weakly typed engines are built from it, and other workers' engines are compared with it.
    save(readable(case.network, version).model, partial / FP32_FILE)
    if is_built_apart(run):
        built = fixed.assigned.of.network_of(fixed.assigned)
        save(readable(built, version).model, partial / BUILT_FILE)
    finish(partial, run, case, watcher, mixed=mixed.model, observations=fixed.seen)
    return run
