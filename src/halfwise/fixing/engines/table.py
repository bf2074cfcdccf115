"""The final table of a run: every engine in it is judged, timed and inspected the same way.

The fastest engine that passes is delivered. Times are noisy: engines take turns, and one counts as
faster if the interval of their ratio shows it (`race`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import median

from halfwise.fixing.engines.bench import Bench
from halfwise.fixing.engines.measure import with_shapes
from halfwise.fixing.engines.plan import Built, EnginePlan, Outcome, mean
from halfwise.fixing.engines.race import race, time_ratio
from halfwise.fixing.plan.plan import Plan
from halfwise.records import FULL_RUNGS, EngineResult, Prefer, Verdict
from halfwise.tensorrt.constrain import as_exact, same_outputs


@dataclass(frozen=True)
class Offer:
    """Engines of one plan that may be delivered, with their rows of the final table.

    Attributes:
        outcome: How they were built, and their errors on the calibration samples.
        rows: Their verdicts and times, by device.
        limit: The largest error with which they may be delivered.
        allowed: Whether they may be at all: not if the user's rules forbid it, or they pass by
            chance.
    """

    outcome: Outcome
    rows: Mapping[str, EngineResult]
    limit: float = 1.0
    allowed: bool = True

    @property
    def plan(self) -> EnginePlan:
        """The plan."""
        return self.outcome.plan

    def on(self, names: Collection[str]) -> "Offer":
        """Return the offer on some of its devices, at least one."""
        rows = {n: row for n, row in self.rows.items() if n in names}
        return replace(self, outcome=self.outcome.on(names), rows=rows)

    def verdict(self, name: str) -> Verdict | None:
        """Return that of a device: on held-out samples, and at the shapes of every profile."""
        row = self.rows[name]
        return None if row.verdict is None else with_shapes(row.verdict, row.shapes)

    def may_pass(self, name: str) -> bool:
        """Return whether it is allowed, and within its limit on the samples of the search."""
        excess = self.outcome.parts[name].excess
        return self.allowed and excess is not None and excess <= self.limit

    def passes(self, name: str) -> bool:
        """Return whether it may be delivered on a device."""
        verdict, at = self.rows[name].verdict, (s.verdict for s in self.rows[name].shapes)
        return (
            self.may_pass(name)
            and verdict is not None
            and verdict.within
            and all(shaped is None or shaped.passed for shaped in at)
        )

    @property
    def passed(self) -> bool:
        """Whether it may be delivered on all of its devices."""
        return all(map(self.passes, self.rows))

    @property
    def times(self) -> tuple[float, ...]:
        """Median times by round, ms: geometric means over its devices; empty if not timed so."""
        latencies = [row.latency for row in self.rows.values()]
        medians = [() if latency is None else latency.medians for latency in latencies]
        return tuple(mean(times) for times in zip(*medians, strict=False))

    @property
    def milliseconds(self) -> float:
        """Geometric mean of its median times; inf if not timed on one device."""
        latencies = [row.latency for row in self.rows.values()]
        return mean([inf if latency is None else latency.median_ms for latency in latencies])

    @property
    def device_bytes(self) -> float:
        """Memory of its engine, the largest of its devices; inf if unknown."""
        latencies = [row.latency for row in self.rows.values()]
        return max(inf if latency is None else latency.device_bytes for latency in latencies)


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether an engine is faster than another by more than the noise of their times.

    Only rounds in which they took turns can show that.
    """
    ratio = time_ratio(one, other)
    return ratio is not None and ratio.high < 1


def choose(offers: Sequence[Offer], prefer: Prefer) -> Offer | None:
    """Return the offer to deliver: the fastest that passes; None if none does.

    Among those that none beats by more than noise, `prefer` decides, except among those that give
    the outputs of an FP32 or TF32 engine in that set; further ties are broken by time, then by the
    order of `offers`. An engine that failed while others took turns is not chosen, nor an untimed
    one if others were timed.
    """
    passed = sorted((o for o in offers if o.passed), key=lambda o: o.milliseconds)
    if not passed:
        return None
    passed = [o for o in passed if o.milliseconds < inf] or passed
    passed = [o for o in passed if o.times] or passed
    # Medians of different rounds say less: the clock may slow down after an engine's last round.
    equal = [o for o in passed if not any(is_faster(p.times, o.times) for p in passed)] or passed
    # With nothing low in its outputs it gains nothing over an FP32 or TF32 engine as fast.
    full = [o for o in equal if o.plan.is_full]
    equal = [o for o in equal if not any(_gains_nothing(o, other) for other in full)]
    if prefer == "memory":
        return min(equal, key=lambda o: o.device_bytes)
    if prefer == "exact":
        return min(equal, key=lambda o: o.outcome.excess or 0.0)
    return equal[0]


def _gains_nothing(offer: Offer, full: Offer) -> bool:
    """Return whether the outputs of all of its engines are those of one rung, and of `full`.

    Or as exact as these.
    """
    rungs = {row.shows for row in offer.rows.values()}
    pairs = [(row.verdict, full.rows[name].verdict) for name, row in offer.rows.items()]
    is_one = len(rungs) == 1 and None not in rungs
    return is_one and all(v and f and (same_outputs(v, f) or as_exact(v, f)) for v, f in pairs)


def full_offers(bench: Bench) -> tuple[Offer, ...]:
    """Return the FP32 engines of each device, at least one, as they were judged.

    If samples joined meanwhile, they are judged again; not after Ctrl-C, since no search chose them
    by those samples, and running an engine may take a restart of its worker.
    """
    offers, emulated, devices = list[Offer](), bench.space.bench, bench.devices
    for device in () if bench.is_over else devices.values():
        if any(full.samples.ids != emulated.samples.ids for full in device.full.values()):
            device.judge_again(emulated.samples, bench.heldout.rest)
    for rung in FULL_RUNGS:
        full = {n: d.full[rung] for n, d in devices.items() if rung in d.full}
        if len(full) < len(devices):
            continue
        parts, rows = dict[str, Built](), dict[str, EngineResult]()
        for name, (row, samples, outputs) in full.items():
            before = emulated.references[: len(samples)]  # others joined behind them
            excess = emulated.tolerance.excess(outputs, samples, before) if outputs else None
            parts[name] = Built(row.build, excess, row.latency, row.failure, row.lost)
            rows[name] = row.model_copy(update={"excess": excess})
        plan = EnginePlan(Plan(bench.space.variant), rung, tf32=rung == "tf32")
        purpose = next(iter(rows.values())).build.purpose
        # No search chose them: they have to be within the tolerance itself.
        limit = emulated.tolerance.full
        offers.append(Offer(Outcome(plan, purpose, parts), rows, limit))
    return tuple(offers)


def offer_of(
    bench: Bench, outcome: Outcome, offers: Sequence[Offer], *, allowed: bool = True
) -> Offer:
    """Return engines in the low format or with INT8, judged; `offers` are those before."""
    plan, rows = outcome.plan, dict[str, EngineResult]()
    for device, built in outcome.parts.items():
        name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
        if plan.types.of is not bench.space.variant:
            name = f"{name}, without repairs"
        if name in {o.rows[device].name for o in offers}:
            name = f"{name}, build {built.build.number}"
        row = EngineResult(
            name=name,
            build=built.build,
            kept=len(plan.types.kept),
            rung=plan.rung,
            excess=built.excess,
            latency=built.latency,
        )
        if built.build.engine is None or built.failure:
            why = {"failure": built.why, "lost": built.shows_nothing}
            rows[device] = row.model_copy(update=why)
            continue
        heldout, here = bench.heldout, bench.devices[device]
        judging = heldout.samples, heldout.references, heldout.unseen
        prove = partial(here.proof, plan, built.build, whole=True)
        rows[device] = here.row_of(row, judging, prove)
    return Offer(outcome, rows, 1.0, allowed)


def raced(bench: Bench, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers with the times of rounds in which engines that passed take turns.

    A single passing engine has nothing to be compared with. See `race`.
    """
    for name, device in bench.devices.items():
        rows = {i: o.rows[name] for i, o in enumerate(offers) if o.passes(name)}
        engines = {i: r.build.engine for i, r in rows.items() if r.latency and r.build.engine}
        if len(engines) < 2:
            continue
        times = race(engines, device.measure.lap)
        offers = [
            replace(o, rows={**o.rows, name: _timed(o.rows[name], times.get(i, ()))})
            for i, o in enumerate(offers)
        ]
    return tuple(offers)


def rows_of(offers: Sequence[Offer], delivered: Offer | None, name: str) -> Iterator[EngineResult]:
    """Yield a device's rows of the table, each with its speed relative to `delivered`."""
    one = None if delivered is None else delivered.rows[name].latency
    for offer in offers:
        row = offer.rows[name]
        if one is None or row.latency is None or offer is delivered:
            yield row
        else:
            yield row.model_copy(update={"ratio": time_ratio(one.medians, row.latency.medians)})


def _timed(row: EngineResult, medians: tuple[float, ...]) -> EngineResult:
    """Return a row with its time by the rounds; one without rounds stays as it was."""
    if row.latency is None or not medians:
        return row
    times = {"medians": medians, "median_ms": median(medians)}
    return row.model_copy(update={"latency": row.latency.model_copy(update=times)})
