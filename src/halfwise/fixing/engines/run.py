"""A run with engines, in order: FP32 engines, the search, the table, the record.

A plan is right if it is right on every device; one device is the usual case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from shutil import move
from typing import TypeVar

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.bench import Bench, choose, full_offers, offer_of, raced
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest, is_steady
from halfwise.fixing.engines.record import Found, all_of, engines_of, recorded
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import Stages
from halfwise.fixing.plan.plan import NONE, Plan
from halfwise.progress import Watcher
from halfwise.records import Engines, Failure, Spared, Verdict
from halfwise.reporting.remarks import with_failures
from halfwise.tensorrt.constrain import unmatched
from halfwise.tensorrt.failures import ENGINE_FAULTS

_Done = TypeVar("_Done")

FURTHER = 3
"""Plans judged on held-out data in addition to the search's choice: a faster engine may have been
built on the way, or the chosen one may fail there."""


@dataclass(frozen=True)
class Proof:
    """Result of a run with engines.

    Attributes:
        engines: The record of each device, by its name.
        verdict: On the held-out samples: of the delivered engines, or the closest ones; of the FP32
            engine if that is wrong; of the emulation, failed, if no engine runs.
        plan: What is delivered; None if nothing passed.
        minimal: Whether no kept node can be dropped, by engines or by the emulation.
        joined: Held-out samples that joined the calibration.
        wrong: The first device whose FP32 engine is wrong; None if none is.
    """

    engines: Mapping[str, Engines]
    verdict: Verdict
    plan: EnginePlan | None = None
    minimal: bool = False
    joined: tuple[str, ...] = ()
    wrong: str | None = None


class EngineRun:
    """Builds, judges and compares the engines of one case on each device.

    Attributes:
        devices: The devices, by name, in the order of the command; a single one is named "".
        stages: The stages so far.
    """

    def __init__(self, devices: Mapping[str, Device], watcher: Watcher) -> None:
        """Take the devices, at least one."""
        self.devices, self._watcher, self._several = devices, watcher, len(devices) > 1
        self.stages = Stages(watcher)

    def reference(self) -> Proof | None:
        """Build and judge the FP32 engine of each device; return the result if one is wrong.

        Raises:
            HalfwiseError: as for `Device.reference`; with several devices the message names one.
        """
        with self.stages("FP32 engine"):
            rows = self._each(Device.reference)
        engines, verdicts, wrong = {}, {}, Failure(kind="fp32-wrong")
        for name, device in self.devices.items():
            row = rows[name]
            engines[name] = engines_of(device, [] if row is None else [row])
            if row is not None and row.verdict is not None and not row.verdict.passed:
                verdicts[name] = with_failures(row.verdict, (wrong,), ahead=True)
        if not verdicts:
            return None
        verdict = all_of(verdicts, several=self._several)
        return Proof(self._with_verdicts(engines, verdicts), verdict, wrong=next(iter(verdicts)))

    def with_tf32(self) -> None:
        """Build the FP32 engine with TF32 on each device, and report it where it passes."""
        with self.stages("TF32 engine"):
            self._each(Device.with_tf32)

    def _each(self, do: Callable[[Device], _Done]) -> dict[str, _Done]:
        """Do something with each device; of several, an error names its own."""
        done = {}
        for name, device in self.devices.items():
            try:
                done[name] = do(device)
            except HalfwiseError as error:
                if not self._several:
                    raise
                raise error.on(name) from error
        return done

    def prove(self, fixed: Fixed) -> Proof:
        """Search from the plan of `fixed`, judge the result on held-out samples, compare.

        The FP32 engines are judged before, so they can be delivered whatever happens to the worker.

        Raises:
            EngineFailed: the worker was lost before its FP32 engine was judged.
        """
        if any("fp32" not in device.full for device in self.devices.values()):
            return self._interrupted(fixed)
        lowest, fixed = fixed, fixed.rungs[0] if fixed.rungs else fixed
        low, devices = fixed.space, list(self.devices.values())
        weak = [device for device in devices if not device.is_strong]
        settings = devices[0].engine_settings
        bench = Bench(
            self.devices,
            low,
            fixed.heldout.anew(self._watcher),
            builds=max((device.engine_settings.builds for device in weak), default=1),
            # A device's needs are found by its own builds, one device after another.
            budget=settings.max_builds * len(devices),
        )
        with self.stages("engines"):
            right = [o for o in full_offers(bench) if o.deliverable and o.milliseconds < inf]
            fastest_full = min(right, key=lambda o: o.milliseconds, default=None)
            search = EngineSearch(
                bench,
                fixed.assigned,
                low.variant.settings.fmt.low,
                needed=fixed.result.needed if fixed.result.minimal else NONE,
                full=None if self._several else fastest_full,
                unrepaired=cheapest_unrepaired(fixed),
                int8=_int8(lowest),
            )
            try:
                search.run()
            except OSError as error:  # what was built is judged all the same
                why = f"nothing more was built, as files cannot be written here: {error.strerror}"
                for device in devices:
                    device.notes.append(why)
            if bench.is_over:
                low.budget.tell("interrupt")
        with self.stages("verdict"):
            offers = _offers(bench, search)
            found = Found(bench, offers, choose(offers))
        return self._concluded(fixed, search, found)

    def _concluded(self, fixed: Fixed, search: EngineSearch, found: Found) -> Proof:
        """Return the result of a run whose engines are all judged."""
        delivered, last = found.delivered, found.last
        is_best = delivered is not None and delivered.plan == search.best
        needed = search.predicted if is_best else NONE
        causes = {name: found.causes(name) for name in self.devices}
        kinds = {cause.kind for each in causes.values() for cause in each}
        rungs = found.rungs(refused="refused" in kinds)
        engines, verdicts = dict[str, Engines](), dict[str, Verdict]()
        for name, device in self.devices.items():
            if last is not None:
                unconstrained = last.rows[name].build.unconstrained
                device.notes.extend(unmatched(found.network, unconstrained))
            no_tf32 = [] if "tf32" in device.full else [Spared(kind="no-tf32")]
            engines[name] = recorded(
                device,
                name,
                found,
                rungs=rungs,
                causes=causes[name],
                spared=(*search.spared, *no_tf32),
                needed_as_predicted=tuple(n for n in found.order if n in needed),
            )
            builds = len(device.builds.outcomes)
            verdicts[name] = found.verdict(name, fixed.verdict, causes[name], builds)
        return Proof(
            self._with_verdicts(engines, verdicts),
            all_of(verdicts, several=self._several),
            None if delivered is None else delivered.plan,
            is_best and search.is_minimal,
            tuple(found.bench.heldout.joined),
        )

    def _interrupted(self, fixed: Fixed) -> Proof:
        """Return the result if Ctrl-C came before there was any engine: the emulation's plan."""
        spared = (Spared(kind="interrupted"),)
        fixed.space.budget.tell("interrupt")
        engines = {
            name: engines_of(device, (), spared=spared) for name, device in self.devices.items()
        }
        failure = Failure(kind="no-engine", numbers={"elements": len(engines)})
        return Proof(engines, with_failures(fixed.verdict, (failure,), ahead=True))

    def brought(self, proof: Proof, paths: Mapping[str, Path]) -> Proof:
        """Return the result with its engines here, each at its path.

        If one cannot be fetched, the verdict fails, because the user expects the file.
        """
        engines, verdict = dict(proof.engines), proof.verdict
        for name, record in proof.engines.items():
            if record.delivered is None:
                continue
            try:
                here = self.devices[name].fetched.deliver(record.delivered, paths[name])
                if here.path != str(paths[name]):
                    move(here.path, paths[name])
                here = here.model_copy(update={"path": paths[name].name})
                engines[name] = record.model_copy(update={"delivered": here})
                continue
            except (*ENGINE_FAULTS, OSError) as failed:
                why = failed.message if isinstance(failed, HalfwiseError) else f"{failed}."
            lost = Failure(kind="unfetched", names={"path": record.delivered.path, "why": why})
            rungs = tuple(
                tried.model_copy(update={"end": "unfetched"}) if tried.end == "delivered" else tried
                for tried in record.rungs
            )
            judged = None if record.verdict is None else with_failures(record.verdict, (lost,))
            without = {"delivered": None, "rungs": rungs, "verdict": judged}
            engines[name] = record.model_copy(update=without)
            verdict = with_failures(verdict, (lost,))
        return replace(proof, engines=engines, verdict=verdict)

    def _with_verdicts(
        self, engines: Mapping[str, Engines], verdicts: Mapping[str, Verdict]
    ) -> dict[str, Engines]:
        """Return the records, of several devices each with its own verdict."""
        if not self._several:
            return dict(engines)
        return {
            name: record.model_copy(update={"verdict": verdicts.get(name)})
            for name, record in engines.items()
        }


def _offers(bench: Bench, search: EngineSearch) -> list[Outcome]:
    """Return the final table: the search's choice, and the fastest of others that may pass."""
    tried = bench.tried
    steady = [
        plan
        for plan, group in tried.items()
        if is_steady(group) and (plan.rung == "int8" or plan.keep >= search.ruled)
    ]
    built = [fastest(group) for plan, group in tried.items() if plan.rung != "int8"]
    swift = sorted((o for o in built if o.plan in steady), key=lambda o: o.milliseconds)
    # Of engines that fail alike (all overflow, say), what the one that keeps most computes in can
    # contradict what was requested.
    ran = [o for o in built if o.excess is not None]
    nearest = sorted(ran, key=lambda o: (o.excess or 0.0, -len(o.plan.keep)))
    low = swift[: 1 + FURTHER] or nearest[:1]
    int8 = [plan for plan in tried if plan.rung == "int8"]
    int8 = [plan for plan in int8 if plan in steady] or int8[-1:]
    offers = full_offers(bench)
    for plan in dict.fromkeys((search.plain, search.best, *(o.plan for o in low), *int8)):
        if plan is not None and plan in tried:
            allowed = plan in steady
            offers.append(offer_of(bench, fastest(tried[plan]), offers, allowed=allowed))
    return offers if bench.is_over else raced(bench, offers)


def cheapest_unrepaired(fixed: Fixed) -> Plan | None:
    """Return the cheapest plan without repairs that passed; None if there is none.

    Everything in FP32 does not count.
    """
    space = fixed.original
    passed = [kept for kept, one in space.tried().items() if one.passed and kept < space.choices]
    if space is fixed.space or not passed:
        return None
    return space.plan(min(passed, key=lambda kept: space.cost(kept) or 0.0))


def _int8(lowest: Fixed) -> Plan | None:
    """Return the plan with INT8; None if there is none that passed."""
    rung = lowest.rungs[-1] if lowest.rungs else None
    return rung.assigned if rung and rung.plan.int8 and rung.verdict.passed else None
