"""What a run with engines found, on each device: its record and its verdict.

An error of at most twice what emulation predicts, as two builds of one plan differ by, is one of
precision. A larger one is blamed on a kernel, or the compiler, only if the inspector shows every
kept node in FP32 and another engine passes that differs only in some more FP32 nodes: the fault is
there. If the builder refused every plan that the emulation predicts to pass, that is the cause.
Otherwise the cause is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from halfwise.fixing.engines.bench import Bench
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import EnginePlan, Outcome, is_right, is_steady
from halfwise.graph.model import Network, node_name
from halfwise.records import (
    ALIKE,
    FULL_RUNGS,
    BuildOutcome,
    Cause,
    CauseKind,
    EngineResult,
    EngineRound,
    EngineRung,
    Engines,
    Failure,
    NodeName,
    Refusal,
    RungEnd,
    RungTried,
    Verdict,
)
from halfwise.reporting.plan import cause_line
from halfwise.reporting.remarks import under, with_failures
from halfwise.tensorrt.failures import how_refused

REFUSED = ("failed", "crashed", "timeout")
"""Build outcomes that concern the request, not the worker."""


@dataclass(frozen=True)
class Found:
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

    def refusals(self, device: Device) -> list[Refusal]:
        """Return what a device's builder refused, in order."""
        builds = [build for build in device.builds.outcomes if build.status in REFUSED]
        return [how_refused(build) for build in builds]

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

    def rungs(self, *, refused: bool = False) -> tuple[RungTried, ...]:
        """Return the result of every rung of a run, most exact first, on the worst device.

        `refused`: whether every plan of the low rung that is predicted to pass was refused.
        """
        rungs = []
        for rung in dict.fromkeys(o.plan.rung for o in self.offers):
            end = self._end(rung)
            if refused and end == "tolerance" and rung not in FULL_RUNGS:
                end = "refused"
            rungs.append(RungTried(rung=rung, end=end))
        return tuple(rungs)

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
        errors = {"excess": nearest.excess, "other": expected[nearest.plan]}
        kinds = ("refused", "precision", "unknown")
        return tuple(c.model_copy(update=errors) if c.kind in kinds else c for c in shown)
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


def all_of(verdicts: Mapping[str, Verdict], *, several: bool) -> Verdict:
    """Return the verdict on all devices: passed if all pass.

    Args:
        verdicts: Verdicts of the devices, by name; at least one.
        several: Whether failures name their devices.
    """
    failed = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    error = lambda v: max((o.rel_max for o in v.outputs.values()), default=0.0)  # noqa: E731
    shown = max((failed or verdicts).values(), key=error)
    if not several or not failed:
        return shown
    failures = [f for name, v in failed.items() for f in under("device", name, v.failures)]
    return with_failures(shown.model_copy(update={"failures": ()}), failures)


def engines_of(
    device: Device, rows: Sequence[EngineResult], shown: int | None = None, **results: Any
) -> Engines:
    """Return the record of a device with its rows; `shown` is the build that lists its layers."""

    def briefly(build: BuildOutcome) -> BuildOutcome:
        return build.model_copy(update={"layers": ()})

    builds, settings = device.builds.outcomes, device.engine_settings
    return Engines(
        worker=device.worker.info,
        typing=device.builds.typing,
        profiles=settings.profiles,
        results=tuple(row.model_copy(update={"build": briefly(row.build)}) for row in rows),
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
        proven=() if device.proven is None else (device.proven,),
        refusals=tuple(found.refusals(device)),
        spread=tuple(spread),
        confirmed=sum(error <= 1 for error in spread),
        **results,
    )
