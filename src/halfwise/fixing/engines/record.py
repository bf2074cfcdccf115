"""What a run with engines found, on each device: its record and its verdict.

An error of at most twice what emulation predicts, as two builds of one plan differ by, is one of
precision. A larger one is blamed on a kernel, or the compiler, only if the inspector shows every
kept node in FP32 and another engine passes that differs only in some more FP32 nodes: the fault is
there. If the builder refused every plan that the emulation predicts to pass, that is the cause.
Otherwise the cause is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halfwise.fixing.engines.bench import Bench, is_faster, rows_of
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import EnginePlan, Outcome, is_steady
from halfwise.fixing.engines.search import refusals
from halfwise.fixing.plan.plan import Nodes
from halfwise.graph.model import node_name
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
    Refusal,
    RungEnd,
    RungTried,
    Verdict,
)
from halfwise.reporting.plan import cause_line
from halfwise.reporting.remarks import under, with_failures


def expected_of(bench: Bench) -> dict[EnginePlan, float]:
    """Return the emulation's error of each plan that was built, relative to what is allowed."""
    return {plan: bench.space.bench.excess(plan.types) for plan in bench.tried}


def _explains(expected: float, outcome: Outcome) -> bool:
    """Return whether an engine's error is at most what two builds of one plan may differ by."""
    return (outcome.excess or 0.0) <= ALIKE * expected


@dataclass(frozen=True)
class DeviceResults:
    """What one device showed.

    Attributes:
        name: The device's name.
        tried: All builds of each plan there.
        offers: The final table there; empty if the device was lost before.
        delivered: What of it is delivered; None if nothing.
        elsewhere: Plans that passed there, but fail on another device.
    """

    name: str
    tried: Mapping[EnginePlan, Sequence[Outcome]]
    offers: Sequence[Outcome] = ()
    delivered: Outcome | None = None
    elsewhere: frozenset[EnginePlan] = frozenset()

    @property
    def low(self) -> list[Outcome]:
        """Outcomes of the low format and of INT8."""
        return [o for o in self.offers if not o.plan.is_full]

    @property
    def last(self) -> Outcome | None:
        """The delivered engine, or the last low one that runs; None if none."""
        ran = [o for o in self.low if o.excess is not None]
        return self.delivered or (ran[-1] if ran else None)


def results_on(
    name: str,
    tried: Mapping[EnginePlan, Sequence[Outcome]],
    offers: Sequence[Outcome],
    delivered: Outcome | None,
    ruled: Nodes,
) -> DeviceResults:
    """Return what one device showed of plans that were tried on several.

    Args:
        name: The device's name.
        tried: All builds of each plan.
        offers: The final table; empty if the device was lost before.
        delivered: What of it is delivered.
        ruled: Nodes that every delivered plan keeps.
    """
    groups = {p: [o.on((name,)) for o in group if name in o.rows] for p, group in tried.items()}
    here = {plan: group for plan, group in groups.items() if group}
    shown, elsewhere, chosen = list[Outcome](), set[EnginePlan](), None
    for offer in offers:
        steady = is_steady(here.get(offer.plan, ())) and offer.plan.keep >= ruled
        one = replace(offer.on((name,)), allowed=offer.allowed or steady)
        shown.append(one)
        if one.deliverable and not offer.deliverable:
            elsewhere.add(offer.plan)
        chosen = one if offer is delivered and one.deliverable else chosen
    return DeviceResults(name, here, shown, chosen, frozenset(elsewhere))


def rounds_of(here: DeviceResults, expected: Mapping[EnginePlan, float]) -> tuple[EngineRound, ...]:
    """Return every build of a plan with the emulation's predictions, in order."""
    rounds = [
        EngineRound(
            step=o.step,
            build=o.number,
            keep=in_order(plan),
            predicted=expected[plan],
            measured=o.excess,
            passed=o.passed,
            median_ms=None if o.worst.latency is None else o.worst.latency.median_ms,
        )
        for plan, group in here.tried.items()
        for o in group
    ]
    return tuple(sorted(rounds, key=lambda one: one.build))


def in_order(plan: EnginePlan) -> tuple[NodeName, ...]:
    """Return a plan's FP32 nodes in graph order."""
    types = plan.types
    return tuple(n for n in map(node_name, types.of.case.network.all_nodes()) if n in types.kept)


def causes(
    every: Sequence[Outcome],
    expected: Mapping[EnginePlan, float],
    refused: Sequence[Refusal],
    order: Sequence[NodeName],
    *,
    passed: bool,
    relative: bool,
) -> tuple[Cause, ...]:
    """Return what a device's engines in the low format show, most severe first.

    Args:
        every: Every build in the low format, with the run's repairs and without further TF32.
        expected: What emulation predicts of each plan.
        refused: What the builder refused.
        order: All nodes in graph order.
        passed: Whether something low passed: then only what was seen on the way needs an
            explanation.
        relative: Whether errors are shares of what is allowed. The fall of a metric is not, and
            does not show that a kernel is at fault.
    """
    ran = [o for o in every if o.excess is not None]
    if not ran and not passed and every:
        answered = [o for o in every if not o.worst.shows_nothing]
        built = any(o.worst.build.engine is not None for o in answered)
        kind: CauseKind = "lost" if not answered else "not-run" if built else "no-engine"
        return (Cause(kind=kind, builds=tuple(o.number for o in answered or every)),)
    off = [o for o in ran if not o.passed]
    nearest = min(off, key=lambda o: o.excess or 0.0, default=None)

    awaited = [o for o in every if expected[o.plan] <= 1]
    nodes = {r.build: r.nodes for r in refused}
    shown = list[Cause]()
    if awaited and not passed and all(o.number in nodes for o in awaited):
        places = {nodes[o.number] for o in awaited}
        where = places.pop() if len(places) == 1 else ()
        shown = [Cause(kind="refused", builds=tuple(o.number for o in awaited), nodes=where)]
    if ignored := tuple(dict.fromkeys(n for o in off for n in o.ignored)):
        builds = tuple(o.number for o in off if o.ignored)
        shown.append(Cause(kind="ignored", builds=builds, nodes=ignored))
    if relative:
        shown += _kernels(off, ran, expected, order)
    if nearest is not None and not shown and not passed:
        has_run = not awaited or any(o.excess is not None for o in awaited)
        kind = "precision" if has_run and _explains(expected[nearest.plan], nearest) else "unknown"
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


def rungs_tried(
    here: DeviceResults,
    *,
    relative: bool = True,
    refused: bool = False,
) -> tuple[RungTried, ...]:
    """Return the result of every rung of a run, most exact first.

    Args:
        here: What the device showed.
        relative: Whether errors are shares of what is allowed, and reported; not with a metric.
        refused: Whether every plan of the low rung predicted to pass was refused.
    """
    rungs = []
    for rung in dict.fromkeys(o.plan.rung for o in here.offers):
        plans = [group for plan, group in here.tried.items() if plan.rung == rung]
        plans = plans or [[o] for o in here.offers if o.plan.rung == rung]
        builds = [o for plan in plans for o in plan]
        ran = [o for o in builds if o.excess is not None]
        shown = min(ran, key=lambda o: o.excess or 0.0, default=None)
        if here.delivered is not None and here.delivered.plan.rung == rung:
            shown = here.delivered
        end = _end(rung, plans, here)
        low = shown is not None and not shown.plan.is_full
        rungs.append(
            RungTried(
                rung=rung,
                end="refused" if refused and end == "tolerance" and low else end,
                plans=len(plans),
                builds=len(builds),
                built=sum(o.worst.build.engine is not None for o in builds),
                ran=len(ran),
                excess=shown.excess if shown is not None and relative else None,
                kept=0 if shown is None else len(shown.plan.keep),
            )
        )
    return tuple(rungs)


def _end(rung: EngineRung, plans: Sequence[Sequence[Outcome]], here: DeviceResults) -> RungEnd:
    offers = [o for o in here.offers if o.plan.rung == rung]
    rows = [o.rows[here.name] for o in offers]
    passed, delivered = [o for o in offers if o.deliverable], here.delivered
    if delivered is not None and passed:
        effective = [o for o in passed if o.rows[here.name].shows is None]
        if not effective or (delivered in passed and delivered not in effective):
            return "no-part"
        if delivered in effective:
            return "delivered"
        if all(o.plan in here.elsewhere for o in effective):
            return "elsewhere"
        slower = all(is_faster(delivered.times, o.times) for o in effective)
        return "slower" if slower else "not-preferred"
    builds = [o for plan in plans for o in plan]
    near = [row for o, row in zip(offers, rows, strict=True) if o.may_pass(here.name)]
    ends: tuple[tuple[RungEnd, bool], ...] = (
        ("held-out", any(row.verdict is not None for row in near)),
        ("lost", any(row.lost for row in near)),
        ("not-run", bool(near)),
        ("unsteady", any(o.passed for plan in plans if not is_steady(plan) for o in plan)),
        ("tolerance", any(o.excess is not None for o in builds)),
        ("lost", bool(builds) and all(o.worst.shows_nothing for o in builds)),
        ("not-run", any(o.worst.build.engine is not None for o in builds)),
    )
    return next((end for end, came in ends if came), "unbuildable")


def verdict_of(
    here: DeviceResults, emulated: Verdict, causes_: Sequence[Cause], builds: int
) -> Verdict:
    """Return the verdict on the delivered engine; else a failed one, on the closest engine.

    Args:
        here: What the device showed.
        emulated: Verdict on the plan in the emulation.
        causes_: Why nothing in the low format passed.
        builds: Number of all builds.
    """
    name, last = here.name, here.last
    if here.delivered is not None and (verdict := here.delivered.verdict(name)) is not None:
        return verdict
    failures = []
    if not any(o.may_pass(name) for o in here.offers):
        failures.append(Failure(kind="no-engine", numbers={"elements": builds}))
    lost = [o.rows[name].failure for o in here.offers if o.plan.rung == "fp32"]
    failures += [Failure(kind="fp32-lost", names={"why": why}) for why in lost if why]
    failures += [Failure(kind="cause", text=cause_line(cause)) for cause in causes_]
    verdict = None if last is None else last.verdict(name)
    if last is not None and verdict is None:
        failures.append(Failure(kind="not-run", names={"why": last.rows[name].failure}))
    return with_failures(verdict or emulated, failures, ahead=True)


def all_of(verdicts: Mapping[str, Verdict], losses: Mapping[str, str], *, several: bool) -> Verdict:
    """Return the verdict on all devices: passed if all pass and none is lost.

    Args:
        verdicts: Verdicts of the judged devices, by name; at least one.
        losses: Why the others were lost.
        several: Whether failures name their devices.
    """
    failed = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    error = lambda v: max((o.rel_max for o in v.outputs.values()), default=0.0)  # noqa: E731
    shown = max((failed or verdicts).values(), key=error)
    if not several or not (failed or losses):
        return shown
    failures = [f for name, v in failed.items() for f in under("device", name, v.failures)]
    failures += [
        Failure(kind="device-lost", names={"device": name, "why": why})
        for name, why in losses.items()
    ]
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


def recorded(
    device: Device,
    here: DeviceResults,
    bench: Bench,
    expected: Mapping[EnginePlan, float],
    **results: Any,
) -> Engines:
    """Return the record of a device whose engines are all judged, with more results."""
    delivered, last, tried = here.delivered, here.last, here.tried
    variant, relative = bench.space.variant, bench.space.bench.tolerance.metric is None
    refused = refusals(device.builds.outcomes, variant.case.network)
    comparable = [p for p in tried if p.rung != "int8" and p.types.of is variant and not p.tf32]
    why = causes(
        [o for plan in comparable for o in tried[plan]],
        expected,
        refused,
        [node_name(n) for n in variant.case.network.all_nodes()],
        passed=any(o.deliverable for o in here.low),
        relative=relative,
    )
    low = None if delivered is None or delivered.plan.is_full else delivered.plan
    spread = [] if low is None else [o.excess for o in tried[low] if o.excess is not None]
    is_refused = any(cause.kind == "refused" for cause in why)
    return engines_of(
        device,
        list(rows_of(here.offers, delivered, here.name)),
        None if last is None else last.number,
        rounds=rounds_of(here, expected),
        keep=() if low is None else in_order(low),
        delivered=None if delivered is None else delivered.rows[here.name].build.engine,
        rung=None if delivered is None else delivered.plan.rung,
        rungs=rungs_tried(here, relative=relative, refused=is_refused),
        causes=why,
        refusals=refused,
        spread=tuple(spread),
        confirmed=sum(error <= 1 for error in spread),
        **results,
    )
