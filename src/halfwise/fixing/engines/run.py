"""A run with engines, in order: FP32 engines, the search, the table, the record.

A plan is right if it is right on every device; one device is the usual case.

An error of at most twice what emulation predicts, as two builds of one plan differ by, is one of
precision. A larger one is blamed on a kernel, or the compiler, only if the inspector shows every
kept node in FP32 and another engine passes that differs only in some more FP32 nodes: the fault is
there. If the builder refused every plan that the emulation predicts to pass, that is the cause.
Otherwise the cause is unknown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest, is_right, is_steady
from halfwise.fixing.engines.search import Bench, EngineSearch, choose, full_offers, offer_of, raced
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import Stages
from halfwise.fixing.plan.plan import NONE, Plan
from halfwise.graph.model import Network, node_name
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
    Spared,
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

    @property
    def network(self) -> Network:
        """The model that plans are of."""
        return self.bench.space.variant.case.network

    @cached_property
    def order(self) -> list[NodeName]:
        """All its nodes in graph order."""
        return [node_name(n) for n in self.network.all_nodes()]

    @cached_property
    def expected(self) -> dict[EnginePlan, float]:
        """The emulation's error of each plan that was built, relative to what is allowed."""
        return {plan: self.bench.space.bench.excess(plan.types) for plan in self.bench.tried}

    @property
    def is_relative(self) -> bool:
        """Whether errors are shares of what is allowed. The fall of a metric is not."""
        return self.bench.space.bench.tolerance.metric is None

    @property
    def low(self) -> list[Outcome]:
        """Offers of the low format and of INT8."""
        return [o for o in self.offers if not o.plan.is_full]

    @property
    def last(self) -> Outcome | None:
        """The delivered offer, or the last low one that runs; None if none."""
        ran = [o for o in self.low if o.excess is not None]
        return self.delivered or (ran[-1] if ran else None)

    def kept(self, plan: EnginePlan) -> tuple[NodeName, ...]:
        """Return a plan's FP32 nodes in graph order."""
        return tuple(n for n in self.order if n in plan.types.kept)

    def rounds(self, name: str) -> tuple[EngineRound, ...]:
        """Return every build of a plan on a device with the emulation's predictions, in order."""
        built = [o.on(name) for group in self.bench.tried.values() for o in group]
        rounds = [
            EngineRound(
                step=o.step,
                build=o.number,
                keep=self.kept(o.plan),
                predicted=self.expected[o.plan],
                measured=o.excess,
                passed=o.passed,
                median_ms=None if o.worst.latency is None else o.worst.latency.median_ms,
            )
            for o in built
        ]
        return tuple(sorted(rounds, key=lambda one: one.build))

    def causes(self, name: str) -> tuple[Cause, ...]:
        """Return what a device's engines in the low format show, most severe first."""
        variant = self.bench.space.variant
        builds = [
            o.on(name)
            for plan, group in self.bench.tried.items()
            if plan.rung != "int8" and plan.types.of is variant and not plan.tf32
            for o in group
        ]
        passed = any(o.deliverable for o in self.low)
        return causes(builds, self.expected, self.order, passed=passed, relative=self.is_relative)

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
        last = self.last
        verdict = None if last is None else last.verdict(name)
        if self.delivered is not None and verdict is not None:
            return verdict
        failures = []
        if not any(o.may_pass for o in self.offers):
            failures.append(Failure(kind="no-engine", numbers={"elements": builds}))
        lost = [o.rows[name].failure for o in self.offers if o.plan.rung == "fp32"]
        failures += [Failure(kind="fp32-lost", names={"why": why}) for why in lost if why]
        failures += [Failure(kind="cause", text=cause_line(cause)) for cause in causes_]
        if last is not None and verdict is None:
            failures.append(Failure(kind="not-run", names={"why": last.rows[name].failure}))
        return with_failures(verdict or emulated, failures, ahead=True)


def _explains(expected: float, outcome: Outcome) -> bool:
    """Return whether an engine's error is at most what two builds of one plan may differ by."""
    return (outcome.excess or 0.0) <= ALIKE * expected


def causes(
    every: Sequence[Outcome],
    expected: Mapping[EnginePlan, float],
    order: Sequence[NodeName],
    *,
    passed: bool,
    relative: bool,
) -> tuple[Cause, ...]:
    """Return what a device's engines in the low format show, most severe first.

    Args:
        every: Every build in the low format, with the run's repairs and without further TF32.
        expected: What emulation predicts of each plan.
        order: All nodes in graph order.
        passed: Whether something low passed: then only what was seen on the way needs an
            explanation.
        relative: Whether errors are shares of what is allowed. The fall of a metric is not, and
            does not show that a kernel is at fault.
    """
    ran = [o for o in every if o.excess is not None]
    if not ran:
        return ()
    off = [o for o in ran if not o.passed]
    # Of engines off alike (all give zeros, say) the one that was to be nearest tells the most.
    nearest = min(off, key=lambda o: (o.excess or 0.0, expected[o.plan]), default=None)

    awaited = [o for o in every if expected[o.plan] <= 1]
    shown = list[Cause]()
    if awaited and not passed and all(o.worst.build.status in REFUSED for o in awaited):
        shown = [Cause(kind="refused", builds=tuple(o.number for o in awaited))]
    if ignored := tuple(dict.fromkeys(n for o in off for n in o.ignored)):
        builds = tuple(o.number for o in off if o.ignored)
        shown.append(Cause(kind="ignored", builds=builds, nodes=ignored))
    if relative:
        shown += _kernels(off, ran, expected, order)
    if nearest is not None and not shown and not passed:
        has_run = not awaited or any(o.excess is not None for o in awaited)
        kind: CauseKind = (
            "precision" if has_run and _explains(expected[nearest.plan], nearest) else "unknown"
        )
        shown = [Cause(kind=kind, builds=(nearest.number,))]
    if nearest is not None and relative:
        excess, other = nearest.excess, expected[nearest.plan]
        kinds = ("refused", "precision", "unknown")
        return tuple(
            replace(c, excess=excess, other=other) if c.kind in kinds else c for c in shown
        )
    return tuple(shown)


def _kernels(
    off: Sequence[Outcome],
    ran: Sequence[Outcome],
    expected: Mapping[EnginePlan, float],
    order: Sequence[NodeName],
) -> Iterator[Cause]:
    """Yield the smallest set of nodes that an engine needs in FP32 to pass, if one shows it.

    What low precision explains need not be a fault, and a constraint not honoured shows nothing.
    """
    right = [o for o in ran if o.passed or _explains(expected[o.plan], o)]
    pairs = [
        (wrong, other)
        for wrong in off
        if not _explains(expected[wrong.plan], wrong) and wrong.honoured
        for other in right
        if other.plan.keep > wrong.plan.keep and other.plan.keeping(wrong.plan.keep) == wrong.plan
    ]
    if pairs:
        wrong, other = min(pairs, key=lambda pair: len(pair[1].plan.keep - pair[0].plan.keep))
        more = other.plan.keep - wrong.plan.keep
        yield Cause(
            kind="kernel",
            builds=(wrong.number, other.number),
            nodes=tuple(n for n in order if n in more),
            excess=wrong.excess,
            other=expected[wrong.plan],
        )


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


def recorded(device: Device, name: str, found: Found, **results: Any) -> Engines:
    """Return the record of a device whose engines are all judged, with more results."""
    delivered, last = found.delivered, found.last
    low = None if delivered is None or delivered.plan.is_full else delivered.plan
    builds = [] if low is None else [o.rows[name].excess for o in found.bench.tried[low]]
    spread = [error for error in builds if error is not None]
    return engines_of(
        device,
        [offer.rows[name] for offer in found.offers],
        None if last is None else last.rows[name].build.number,
        rounds=found.rounds(name),
        keep=() if low is None else found.kept(low),
        delivered=None if delivered is None else delivered.rows[name].build.engine,
        rung=None if delivered is None else delivered.plan.rung,
        spread=tuple(spread),
        confirmed=sum(error <= 1 for error in spread),
        **results,
    )


_Done = TypeVar("_Done")

FURTHER = 3
"""Plans judged on held-out data in addition to the search's choice: a faster engine may have been
built on the way, or the chosen one may fail there."""


class Proof(Struct, frozen=True):
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
            if row is not None and row.verdict is not None and not row.verdict.passed:
                verdicts[name] = with_failures(row.verdict, (wrong,), ahead=True)
            own = verdicts.get(name) if self._several else None
            engines[name] = engines_of(device, [] if row is None else [row], verdict=own)
        if not verdicts:
            return None
        return Proof(engines, all_of(verdicts), wrong=next(iter(verdicts)))

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
        engines, verdicts = dict[str, Engines](), dict[str, Verdict]()
        for name, device in self.devices.items():
            if last is not None:
                unconstrained = last.rows[name].build.unconstrained
                device.notes.extend(unmatched(found.network, unconstrained))
            no_tf32 = [] if "tf32" in device.full else [Spared(kind="no-tf32")]
            builds = len(device.builds.outcomes)
            verdicts[name] = found.verdict(name, fixed.verdict, causes[name], builds)
            engines[name] = recorded(
                device,
                name,
                found,
                rungs=found.rungs,
                causes=causes[name],
                spared=(*search.spared, *no_tf32),
                needed_as_predicted=tuple(n for n in found.order if n in needed),
                verdict=verdicts[name] if self._several else None,
            )
        return Proof(
            engines,
            all_of(verdicts),
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
