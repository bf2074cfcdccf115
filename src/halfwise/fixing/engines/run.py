"""A run with engines, in order: FP32 engines, the search, the table, the record.

A plan is right if it is right on every device; one device is the usual case.

An error of at most twice what emulation predicts, as two builds of one plan differ by, is one of
precision. If the builder refused every plan that the emulation predicts to pass, or ignored
constraints, that is the cause. Otherwise the cause is unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import EnginePlan, Outcome, is_right, is_steady
from halfwise.fixing.engines.search import Bench, EngineSearch, choose
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import Stages
from halfwise.fixing.plan.plan import NONE, Plan
from halfwise.graph.model import node_name
from halfwise.progress import Watcher
from halfwise.records import (
    ALIKE,
    BuildOutcome,
    Cause,
    CauseKind,
    EngineResult,
    EngineRound,
    EngineRung,
    Engines,
    Failure,
    NodeName,
    RungEnd,
    RungTried,
    SparedKind,
    Verdict,
    replace,
)
from halfwise.reporting.plan import cause_line
from halfwise.reporting.remarks import under, with_failures
from halfwise.tensorrt.constrain import unmatched
from halfwise.tensorrt.failures import ENGINE_FAULTS

REFUSED = ("failed", "crashed", "timeout")
"""Build outcomes that concern the request, not the worker."""


class Found(Struct, frozen=True, dict=True):
    """What the engines of a run showed.

    Attributes:
        bench: What was built.
        offers: The final table.
        delivered: What of it is delivered; None if nothing.
    """

    bench: Bench
    offers: Sequence[Outcome]
    delivered: Outcome | None

    @cached_property
    def order(self) -> list[NodeName]:
        """All nodes of the model in graph order."""
        return [node_name(n) for n in self.bench.space.variant.case.network.all_nodes()]

    @cached_property
    def expected(self) -> dict[EnginePlan, float]:
        """The emulation's error of each plan that was built, relative to what is allowed."""
        return {plan: self.bench.space.bench.excess(plan.types) for plan in self.bench.tried}

    @property
    def is_relative(self) -> bool:
        """Whether errors are shares of what is allowed. The fall of a metric is not."""
        return self.bench.space.bench.tolerance.metric is None

    @property
    def shown(self) -> Outcome | None:
        """The delivered offer, or the low one that is nearest; None if none runs."""
        ran = [o for o in self.offers if not o.plan.is_full and o.excess is not None]
        return self.delivered or min(ran, key=lambda o: o.excess or 0.0, default=None)

    def kept(self, plan: EnginePlan) -> tuple[NodeName, ...]:
        """Return a plan's FP32 nodes in graph order."""
        return tuple(n for n in self.order if n in plan.types.kept)

    def rounds(self, name: str) -> tuple[EngineRound, ...]:
        """Return every build of a plan on a device with the emulation's predictions, in order."""
        rounds = [
            EngineRound(
                step=row.build.purpose,
                build=row.build.number,
                keep=self.kept(o.plan),
                predicted=self.expected[o.plan],
                measured=row.excess,
                passed=o.on(name).passed,
                median_ms=None if row.latency is None else row.latency.median_ms,
            )
            for group in self.bench.tried.values()
            for o in group
            for row in (o.rows[name],)
        ]
        return tuple(sorted(rounds, key=lambda one: one.build))

    def causes(self, name: str) -> tuple[Cause, ...]:
        """Return why no engine in the low format passed, as those of a device show it."""
        if any(o.deliverable for o in self.offers if not o.plan.is_full):
            return ()
        builds = [
            o.on(name)
            for plan, group in self.bench.tried.items()
            if plan.rung != "int8" and plan.types.of is self.bench.space.variant and not plan.tf32
            for o in group
        ]
        return causes(builds, self.expected, relative=self.is_relative)

    @property
    def rungs(self) -> tuple[RungTried, ...]:
        """How every rung of a run ended, most exact first, on the worst device."""
        rungs = dict.fromkeys(offer.plan.rung for offer in self.offers)
        return tuple(RungTried(rung=rung, end=self._end(rung)) for rung in rungs)

    def _end(self, rung: EngineRung) -> RungEnd:
        offers = [o for o in self.offers if o.plan.rung == rung]
        if self.delivered is not None and self.delivered.plan.rung == rung:
            return "delivered"
        plans = [group for plan, group in self.bench.tried.items() if plan.rung == rung]
        builds = [o for plan in plans for o in plan] or offers
        near = [row for o in offers if o.may_pass for row in o.rows.values()]
        ran = [(o, row.excess) for o in builds for row in o.rows.values() if row.excess is not None]
        ends: tuple[tuple[RungEnd, bool], ...] = (
            ("slower", any(o.deliverable for o in offers)),
            ("held-out", any(row.verdict is not None and not is_right(row) for row in near)),
            ("lost", any(row.lost for row in near)),
            ("not-run", bool(near)),
            ("unsteady", any(o.passed for plan in plans if not is_steady(plan) for o in plan)),
            ("lost", any(o.worst.shows_nothing for o in builds)),
            ("elsewhere", any(excess <= o.limit for o, excess in ran)),
            ("tolerance", any(o.excess is not None for o in builds)),
            ("not-run", any(o.worst.build.engine is not None for o in builds)),
        )
        return next((end for end, came in ends if came), "unbuildable")

    def verdict(
        self, name: str, emulated: Verdict, causes_: Sequence[Cause], builds: int
    ) -> Verdict:
        """Return the verdict on a device's engine; else a failed one, on the closest engine.

        Args:
            name: The device's name.
            emulated: Verdict on the plan in the emulation.
            causes_: Why nothing in the low format passed there.
            builds: Number of all builds there.
        """
        shown = self.shown
        verdict = None if shown is None else shown.verdict(name)
        if self.delivered is not None and verdict is not None:
            return verdict
        failures = []
        if not any(o.may_pass for o in self.offers):
            failures.append(Failure(kind="no-engine", numbers={"elements": builds}))
        lost = [o.rows[name].failure for o in self.offers if o.plan.rung == "fp32"]
        failures += [Failure(kind="fp32-lost", names={"why": why}) for why in lost if why]
        failures += [Failure(kind="cause", text=cause_line(cause)) for cause in causes_]
        if shown is not None and verdict is None:
            failures.append(Failure(kind="not-run", names={"why": shown.rows[name].failure}))
        return with_failures(verdict or emulated, failures, ahead=True)


def causes(
    every: Sequence[Outcome], expected: Mapping[EnginePlan, float], *, relative: bool
) -> tuple[Cause, ...]:
    """Return why none of a device's engines in the low format passed, most severe first.

    Args:
        every: Every build in the low format, with the run's repairs and without further TF32.
        expected: What emulation predicts of each plan.
        relative: Whether errors are shares of what is allowed. The fall of a metric is not.
    """
    off = [o for o in every if o.excess is not None and not o.passed]
    if not off:
        return ()
    # Of engines off alike (all give zeros, say) the one that was to be nearest tells the most.
    nearest = min(off, key=lambda o: (o.excess or 0.0, expected[o.plan]))
    error, predicted = nearest.excess or 0.0, expected[nearest.plan]
    excess, other = (error, predicted) if relative else (None, None)
    awaited, shown = [o for o in every if expected[o.plan] <= 1], list[Cause]()
    if awaited and all(o.worst.build.status in REFUSED for o in awaited):
        numbers = tuple(o.number for o in awaited)
        shown = [Cause(kind="refused", builds=numbers, excess=excess, other=other)]
    if ignored := tuple(dict.fromkeys(n for o in off for n in o.ignored)):
        builds = tuple(o.number for o in off if o.ignored)
        shown.append(Cause(kind="ignored", builds=builds, nodes=ignored))
    if shown:
        return tuple(shown)
    has_run = not awaited or any(o.excess is not None for o in awaited)
    is_alike = has_run and error <= ALIKE * predicted
    kind: CauseKind = "precision" if is_alike else "unknown"
    return (Cause(kind=kind, builds=(nearest.number,), excess=excess, other=other),)


def all_of(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict on all devices: passed if all pass; failures name named ones.

    Args:
        verdicts: Verdicts of the devices, by name; at least one.
    """
    failed = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    error = lambda v: max((o.rel_max for o in v.outputs.values()), default=0.0)  # noqa: E731
    shown = max((failed or verdicts).values(), key=error)
    if "" in verdicts or not failed:
        return shown
    failures = [f for name, v in failed.items() for f in under("device", name, v.failures)]
    return with_failures(replace(shown, failures=()), failures)


def engines_of(
    device: Device, rows: Sequence[EngineResult], shown: int | None = None, **results: Any
) -> Engines:
    """Return the record of a device with its rows; `shown` is the build that lists its layers."""

    def briefly(build: BuildOutcome) -> BuildOutcome:
        return replace(build, layers=())

    builds, settings = device.builds.outcomes, device.engine_settings
    return Engines(
        worker=device.worker.info,
        typing=device.builds.typing,
        profiles=settings.profiles,
        results=tuple(replace(row, build=briefly(row.build)) for row in rows),
        builds=tuple(b if b.number == shown else briefly(b) for b in builds),
        notes=tuple(dict.fromkeys(device.notes)),
        **{"rounds": (), "keep": (), **results},
    )


_Done = TypeVar("_Done")


class Proof(Struct, frozen=True):
    """Result of a run with engines.

    Attributes:
        engines: The record of each device, by its name.
        verdict: On the held-out samples: of the delivered engines, or the closest ones; of the FP32
            engine if that is wrong; of the emulation, failed, if no engine runs.
        plan: What is delivered; None if nothing passed.
        minimal: Whether no kept node can be dropped, by engines or by the emulation.
        wrong: The first device whose FP32 engine is wrong; None if none is.
    """

    engines: Mapping[str, Engines]
    verdict: Verdict
    plan: EnginePlan | None = None
    minimal: bool = False
    wrong: str | None = None


class EngineRun:
    """Builds, judges and compares the engines of one case on each device.

    Attributes:
        devices: The devices, by name, in the order of the command; a single one is named "".
        stages: The stages so far.
    """

    def __init__(self, devices: Mapping[str, Device], watcher: Watcher) -> None:
        """Take the devices, at least one."""
        self.devices, self._several = devices, len(devices) > 1
        self.stages = Stages(watcher)

    def reference(self) -> Proof | None:
        """Build and judge the FP32 engine of each device; return the result if one is wrong.

        Raises:
            HalfwiseError: as for `Device.reference`; with several devices the message names one.
        """
        with self.stages("FP32 engines"):
            rows = self._each(Device.reference)
        engines, verdicts, wrong = {}, {}, Failure(kind="fp32-wrong")
        for name, device in self.devices.items():
            row = rows[name]
            if row is not None and row.verdict is not None and not row.verdict.passed:
                verdicts[name] = with_failures(row.verdict, (wrong,), ahead=True)
            own = verdicts.get(name) if self._several else None
            engines[name] = engines_of(device, [] if row is None else [row], verdict=own)
        if not verdicts:
            return None
        return Proof(engines, all_of(verdicts), wrong=next(iter(verdicts)))

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
        """
        lowest, fixed = fixed, fixed.rungs[0] if fixed.rungs else fixed
        low, devices = fixed.space, list(self.devices.values())
        weak = [device for device in devices if not device.is_strong]
        settings = devices[0].engine_settings
        bench = Bench(
            self.devices,
            low,
            fixed.heldout,
            builds=max((device.engine_settings.builds for device in weak), default=1),
            # A device's needs are found by its own builds, one device after another.
            budget=settings.max_builds * len(devices),
        )
        with self.stages("engines"):
            search = EngineSearch(
                bench,
                fixed.assigned,
                low.variant.settings.fmt.low,
                needed=fixed.result.needed if fixed.result.minimal else NONE,
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
            offers = bench.table(search.ruled, search.plain)
            found = Found(bench, offers, choose(offers))
        return self._concluded(fixed, search, found)

    def _concluded(self, fixed: Fixed, search: EngineSearch, found: Found) -> Proof:
        """Return the result of a run whose engines are all judged."""
        delivered, shown = found.delivered, found.shown
        low = None if delivered is None or delivered.plan.is_full else delivered.plan
        is_best = delivered is not None and delivered.plan == search.best
        spared: list[SparedKind] = ["interrupted"] if found.bench.is_over else []
        causes = {name: found.causes(name) for name in self.devices}
        engines, verdicts = dict[str, Engines](), dict[str, Verdict]()
        for name, device in self.devices.items():
            if shown is not None:
                unconstrained = shown.rows[name].build.unconstrained
                device.notes.extend(unmatched(fixed.space.variant.case.network, unconstrained))
            no_tf32: list[SparedKind] = [] if "tf32" in device.full else ["no-tf32"]
            builds = len(device.builds.outcomes)
            verdicts[name] = found.verdict(name, fixed.verdict, causes[name], builds)
            built = [] if low is None else [o.rows[name].excess for o in found.bench.tried[low]]
            spread = [error for error in built if error is not None]
            engines[name] = engines_of(
                device,
                [offer.rows[name] for offer in found.offers],
                None if shown is None else shown.rows[name].build.number,
                rounds=found.rounds(name),
                keep=() if low is None else found.kept(low),
                delivered=None if delivered is None else delivered.rows[name].build.engine,
                rung=None if delivered is None else delivered.plan.rung,
                spread=tuple(spread),
                confirmed=sum(error <= 1 for error in spread),
                rungs=found.rungs,
                causes=causes[name],
                spared=(*spared, *no_tf32),
                verdict=verdicts[name] if self._several else None,
            )
        return Proof(
            engines,
            all_of(verdicts),
            None if delivered is None else delivered.plan,
            is_best and search.is_minimal,
        )

    def brought(self, proof: Proof, paths: Mapping[str, Path]) -> Proof:
        """Return the result with its engines here, each at its path.

        If one cannot be fetched, the verdict fails, because the user expects the file.
        """
        engines, verdict = dict(proof.engines), proof.verdict
        for name, record in proof.engines.items():
            if record.delivered is None:
                continue
            try:
                self.devices[name].fetched.deliver(record.delivered, paths[name])
                here = replace(record.delivered, side="here", path=paths[name].name)
                engines[name] = replace(record, delivered=here)
                continue
            except (*ENGINE_FAULTS, OSError) as failed:
                why = failed.message if isinstance(failed, HalfwiseError) else f"{failed}."
            lost = Failure(kind="unfetched", names={"path": record.delivered.path, "why": why})
            rungs = tuple(
                replace(tried, end="unfetched") if tried.end == "delivered" else tried
                for tried in record.rungs
            )
            judged = None if record.verdict is None else with_failures(record.verdict, (lost,))
            engines[name] = replace(record, delivered=None, rung=None, rungs=rungs, verdict=judged)
            verdict = with_failures(verdict, (lost,))
        return replace(proof, engines=engines, verdict=verdict)


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
