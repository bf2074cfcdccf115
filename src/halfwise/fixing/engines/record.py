"""What a run with engines found, on each device: its record and its verdict.

An error of at most twice what emulation predicts, as two builds of one plan differ by, is one of
precision. A larger one is blamed on
a kernel, or the compiler, only if the inspector shows every kept node in FP32 and another engine
passes that differs only in some more FP32 nodes: the fault is there. If the builder refused every
plan that the emulation predicts to pass, that is the cause. Otherwise the cause is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from halfwise.fixing.engines.attempts import Spaces
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.plan import Assignment, EnginePlan, Outcome, is_steady
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.refusals import refusals
from halfwise.fixing.engines.table import Offer, is_faster, rows_of
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
from halfwise.reporting.remarks import under, with_failures
from halfwise.reporting.rungs import cause_line


@dataclass(frozen=True)
class Expected:
    """What emulation predicts of a plan's engine, relative to what the search may use.

    Attributes:
        stored: Its error if every value is rounded.
        fused: Its error with fusion; None if unknown.
    """

    stored: float
    fused: float | None = None

    @property
    def most(self) -> float:
        """The larger of both."""
        return max(self.stored, self.fused or 0.0)

    def explains(self, outcome: Outcome) -> bool:
        """Return whether an engine's error is at most what two builds of one plan may differ by."""
        return (outcome.excess or 0.0) <= ALIKE * self.most


def expected_of(
    plan: EnginePlan, spaces: Spaces, prediction: Prediction, own: Assignment
) -> Expected:
    """Return what emulation predicts of a plan.

    Args:
        plan: The plan.
        spaces: What engines are plans of.
        prediction: Predicts errors of engines of the model with its repairs.
        own: Compute nodes that the engine with nothing kept has in FP32 by itself.
    """
    stored = spaces.of(plan).excess(plan.keep)
    fused = plan.rung != "int8" and plan.repaired
    return Expected(stored, prediction.fused(plan.keep, own) if fused else None)


@dataclass(frozen=True)
class Seen:
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
    offers: Sequence[Offer] = ()
    delivered: Offer | None = None
    elsewhere: frozenset[EnginePlan] = field(default_factory=frozenset)

    @property
    def low(self) -> list[Offer]:
        """Offers of the low format and of INT8."""
        return [o for o in self.offers if not o.plan.is_full]

    @property
    def last(self) -> Offer | None:
        """The delivered engine, or the last low one that runs; None if none."""
        ran = [o for o in self.low if o.outcome.excess is not None]
        return self.delivered or (ran[-1] if ran else None)


def seen_on(
    name: str,
    tried: Mapping[EnginePlan, Sequence[Outcome]],
    offers: Sequence[Offer],
    delivered: Offer | None,
    ruled: Assignment,
) -> Seen:
    """Return what one device showed of plans that were tried on several.

    Args:
        name: The device's name.
        tried: All builds of each plan.
        offers: The final table; empty if the device was lost before.
        delivered: What of it is delivered.
        ruled: Nodes that every delivered plan keeps.
    """
    here: dict[EnginePlan, list[Outcome]] = {}
    for plan, group in tried.items():
        own = [replace(o, parts={name: o.parts[name]}) for o in group if name in o.parts]
        here |= {plan: own} if own else {}
    seen, elsewhere, chosen = list[Offer](), set[EnginePlan](), None
    for offer in offers:
        steady = is_steady(here.get(offer.plan, ())) and offer.plan.keep >= ruled
        one = replace(offer.on((name,)), allowed=offer.allowed or steady)
        seen.append(one)
        if one.passed and not offer.passed:
            elsewhere.add(offer.plan)
        chosen = one if offer is delivered and one.passed else chosen
    return Seen(name, here, seen, chosen, frozenset(elsewhere))


def rounds_of(
    seen: Seen, spaces: Spaces, expected: Mapping[EnginePlan, Expected]
) -> tuple[EngineRound, ...]:
    """Return every build of a plan with the emulation's predictions, in order."""
    found = [
        EngineRound(
            step=o.step if isinstance(o.step, str) else "",
            move=None if isinstance(o.step, str) else o.step,
            build=o.number,
            keep=in_order(plan, spaces),
            predicted=expected[plan].stored,
            predicted_fused=expected[plan].fused,
            measured=o.excess,
            passed=o.passed,
            median_ms=None if o.worst.latency is None else o.worst.latency.median_ms,
        )
        for plan, group in seen.tried.items()
        for o in group
    ]
    return tuple(sorted(found, key=lambda one: one.build))


def in_order(plan: EnginePlan, spaces: Spaces) -> tuple[NodeName, ...]:
    """Return a plan's FP32 nodes in graph order."""
    kept, network = spaces.kept(plan), spaces.of(plan).variant.case.network
    return tuple(n for n in map(node_name, network.nodes()) if n in kept)


def causes(
    seen: Seen,
    expected: Mapping[EnginePlan, Expected],
    refused: Sequence[Refusal],
    order: Sequence[NodeName],
    *,
    relative: bool,
) -> tuple[Cause, ...]:
    """Return what the engines in the low format show, most severe first.

    If one of them passed, only what was seen on the way needs an explanation.

    Args:
        seen: What the device showed.
        expected: What emulation predicts of each plan.
        refused: What its builder refused.
        order: All nodes in graph order.
        relative: Whether errors are shares of what is allowed. The fall of a metric is not, and
            does not show that a kernel is at fault.
    """
    passed = any(o.passed for o in seen.low)
    plans = [p for p in seen.tried if p.rung != "int8" and p.repaired and not p.tf32]
    every = [o for plan in plans for o in seen.tried[plan]]
    ran = [o for o in every if o.excess is not None]
    if not ran and not passed and every:
        told = [o for o in every if not o.worst.untold]
        built = any(o.worst.build.engine is not None for o in told)
        kind: CauseKind = "lost" if not told else "not-run" if built else "no-engine"
        return (Cause(kind=kind, builds=tuple(o.number for o in told or every)),)
    off = [o for o in ran if not o.passed]
    nearest = min(off, key=lambda o: o.excess or 0.0, default=None)

    awaited = [o for o in every if expected[o.plan].most <= 1]
    nodes = {r.build: r.nodes for r in refused}
    found = []
    if awaited and not passed and all(o.number in nodes for o in awaited):
        places = {nodes[o.number] for o in awaited}
        where = places.pop() if len(places) == 1 else ()
        found = [Cause(kind="refused", builds=tuple(o.number for o in awaited), nodes=where)]
    if ignored := tuple(dict.fromkeys(n for o in off for n in o.ignored)):
        shown = tuple(o.number for o in off if o.ignored)
        found.append(Cause(kind="ignored", builds=shown, nodes=ignored))
    if relative:
        found += _kernels(off, ran, expected, order)
    if nearest is not None and not found and not passed:
        shown_ = not awaited or any(o.excess is not None for o in awaited)
        kind = "precision" if shown_ and expected[nearest.plan].explains(nearest) else "unknown"
        found = [Cause(kind=kind, builds=(nearest.number,))]
    if nearest is not None and relative:
        known = {"excess": nearest.excess, "other": expected[nearest.plan].most}
        kinds = ("refused", "precision", "unknown")
        return tuple(c.model_copy(update=known) if c.kind in kinds else c for c in found)
    return tuple(found)


def _kernels(
    off: Sequence[Outcome],
    ran: Sequence[Outcome],
    expected: Mapping[EnginePlan, Expected],
    order: Sequence[NodeName],
) -> Iterator[Cause]:
    """Yield the smallest set of nodes that an engine needs in FP32 to pass, if one shows it.

    What low precision explains need not be a fault, and a constraint not honoured shows nothing.
    """
    right = [o for o in ran if o.passed or expected[o.plan].explains(o)]
    pairs = [
        (wrong, other)
        for wrong in off
        if not expected[wrong.plan].explains(wrong) and wrong.honoured
        for other in right
        if other.plan.keep > wrong.plan.keep
        and replace(other.plan, keep=wrong.plan.keep) == wrong.plan
    ]
    if pairs:
        wrong, other = min(pairs, key=lambda pair: len(pair[1].plan.keep - pair[0].plan.keep))
        more = other.plan.keep - wrong.plan.keep
        yield Cause(
            kind="kernel",
            builds=(wrong.number, other.number),
            nodes=tuple(n for n in order if n in more),
            excess=wrong.excess,
            other=expected[wrong.plan].most,
        )


def rungs_tried(
    seen: Seen,
    *,
    relative: bool = True,
    refused: bool = False,
) -> tuple[RungTried, ...]:
    """Return the result of every rung of a run, most exact first.

    Args:
        seen: What the device showed.
        relative: Whether errors are shares of what is allowed, and reported; not with a metric.
        refused: Whether every plan of the low rung predicted to pass was refused.
    """
    found = []
    for rung in dict.fromkeys(o.plan.rung for o in seen.offers):
        plans = [group for plan, group in seen.tried.items() if plan.rung == rung]
        plans = plans or [[o.outcome] for o in seen.offers if o.plan.rung == rung]
        builds = [o for plan in plans for o in plan]
        ran = [o for o in builds if o.excess is not None]
        shown = min(ran, key=lambda o: o.excess or 0.0, default=None)
        if seen.delivered is not None and seen.delivered.plan.rung == rung:
            shown = seen.delivered.outcome
        end = _end(rung, plans, seen)
        low = shown is not None and not shown.plan.is_full
        found.append(
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
    return tuple(found)


def _end(rung: EngineRung, plans: Sequence[Sequence[Outcome]], seen: Seen) -> RungEnd:
    offers = [o for o in seen.offers if o.plan.rung == rung]
    rows = [o.rows[seen.name] for o in offers]
    passed, delivered = [o for o in offers if o.passed], seen.delivered
    if delivered is not None and passed:
        effective = [o for o in passed if o.rows[seen.name].shows is None]
        if not effective or (delivered in passed and delivered not in effective):
            return "no-part"
        if delivered in effective:
            return "delivered"
        if all(o.plan in seen.elsewhere for o in effective):
            return "elsewhere"
        slower = all(is_faster(delivered.times, o.times) for o in effective)
        return "slower" if slower else "not-preferred"
    builds = [o for plan in plans for o in plan]
    known = [row for o, row in zip(offers, rows, strict=True) if o.is_known(seen.name)]
    ends: tuple[tuple[RungEnd, bool], ...] = (
        ("held-out", any(row.verdict is not None for row in known)),
        ("lost", any(row.lost for row in known)),
        ("not-run", bool(known)),
        ("unsteady", any(o.passed for plan in plans if not is_steady(plan) for o in plan)),
        ("tolerance", any(o.excess is not None for o in builds)),
        ("lost", bool(builds) and all(o.worst.untold for o in builds)),
        ("not-run", any(o.worst.build.engine is not None for o in builds)),
    )
    return next((end for end, came in ends if came), "unbuildable")


def verdict_of(seen: Seen, emulated: Verdict, causes_: Sequence[Cause], builds: int) -> Verdict:
    """Return the verdict on the delivered engine; else a failed one, on the closest engine.

    Args:
        seen: What the device showed.
        emulated: Verdict on the plan in the emulation.
        causes_: Why nothing in the low format passed.
        builds: Number of all builds.
    """
    name, last = seen.name, seen.last
    if seen.delivered is not None and (found := seen.delivered.verdict(name)) is not None:
        return found
    failures = []
    if not any(o.is_known(name) for o in seen.offers):
        failures.append(Failure(kind="no-engine", numbers={"elements": builds}))
    lost = [o.rows[name].failure for o in seen.offers if o.plan.rung == "fp32"]
    failures += [Failure(kind="fp32-lost", names={"why": why}) for why in lost if why]
    failures += [Failure(kind="cause", text=cause_line(cause)) for cause in causes_]
    verdict = None if last is None else last.verdict(name)
    if last is not None and verdict is None:
        failures.append(Failure(kind="not-run", names={"why": last.rows[name].failure}))
    return with_failures(verdict or emulated, failures, ahead=True)


def all_of(verdicts: Mapping[str, Verdict], gone: Mapping[str, str], *, several: bool) -> Verdict:
    """Return the verdict on all devices: passed if all pass and none is lost.

    Args:
        verdicts: Verdicts of the judged devices, by name; at least one.
        gone: Why the others were lost.
        several: Whether failures name their devices.
    """
    failed = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    shown = max((failed or verdicts).values(), key=_largest)
    if not several or not (failed or gone):
        return shown
    failures = [f for name, v in failed.items() for f in under("device", name, v.failures)]
    failures += [
        Failure(kind="device-lost", names={"device": name, "why": why})
        for name, why in gone.items()
    ]
    return with_failures(shown.model_copy(update={"failures": ()}), failures)


def _largest(verdict: Verdict) -> float:
    return max((output.rel_max for output in verdict.outputs.values()), default=0.0)


def engines_of(
    device: Device,
    rows: Sequence[EngineResult],
    shown: int | None = None,
) -> Engines:
    """Return the record of a device with its rows; `shown` is the build that lists its layers."""
    bench = device.bench

    def briefly(build: BuildOutcome, *, tell: bool = False) -> BuildOutcome:
        return build if tell else build.model_copy(update={"layers": ()})

    return Engines(
        worker=bench.worker.info,
        typing=bench.builds.typing,
        profiles=bench.engine_settings.profiles,
        results=tuple(row.model_copy(update={"build": briefly(row.build)}) for row in rows),
        rounds=(),
        builds=tuple(briefly(b, tell=b.number == shown) for b in bench.builds.outcomes),
        keep=(),
        prefer=bench.engine_settings.prefer,
        notes=tuple(dict.fromkeys(bench.notes)),
    )


def recorded(
    device: Device,
    seen: Seen,
    spaces: Spaces,
    expected: Mapping[EnginePlan, Expected],
) -> Engines:
    """Return the record of a device whose engines are all judged."""
    delivered, last = seen.delivered, seen.last
    variant, relative = spaces.low.variant, spaces.low.bench.tolerance.metric is None
    network = variant.case.network
    outcomes = device.bench.builds.outcomes
    refused = refusals(outcomes, network, variant.roles)
    order = [node_name(n) for n in network.nodes()]
    why = causes(seen, expected, refused, order, relative=relative)
    low = None if delivered is None or delivered.plan.is_full else delivered.plan
    spread = [] if low is None else [o.excess for o in seen.tried[low] if o.excess is not None]
    rows = list(rows_of(seen.offers, delivered, seen.name))
    number = None if last is None else last.outcome.number
    found = {
        "rounds": rounds_of(seen, spaces, expected),
        "keep": () if low is None else in_order(low, spaces),
        "delivered": None if delivered is None else delivered.rows[seen.name].build.engine,
        "rung": None if delivered is None else delivered.plan.rung,
        "rungs": rungs_tried(
            seen, relative=relative, refused=any(c.kind == "refused" for c in why)
        ),
        "causes": why,
        "refusals": refused,
        "spread": tuple(spread),
        "confirmed": sum(error <= 1 for error in spread),
    }
    return engines_of(device, rows, number).model_copy(update=found)
