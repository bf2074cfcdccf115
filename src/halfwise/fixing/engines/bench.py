"""Judges plans by engines: each plan on every device, remembered, within one budget.

An engine that passes on the calibration samples is judged on held-out ones at once: shrinking and
confirming a plan first would lose those builds if it fails there.

Every engine in the final table is judged, timed and inspected the same way. The fastest that passes
is delivered. Times are noisy: engines take turns, and one counts as faster if the interval of their
ratio shows it (`time_ratio`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from statistics import median

from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.measure import race
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.plan import Plan
from halfwise.fixing.space import Space
from halfwise.judging.judge import Judged
from halfwise.progress import interruption
from halfwise.records import FULL_RUNGS, EngineResult, time_ratio
from halfwise.tensorrt.constrain import as_exact, same_outputs
from halfwise.tensorrt.failures import ENGINE_FAULTS


class Bench:
    """Builds and judges plans, and remembers what they gave.

    Attributes:
        devices: Build and measure plans, by name; lost devices are removed.
        space: The plans of the emulation, on the samples that measure engines too.
        heldout: The samples that judge; failing ones join the calibration.
        builds: Builds of a plan before it counts as confirmed.
        budget: Builds that may still be made of new plans.
        losses: Why devices were lost.
        tried: All builds of each plan.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        space: Space,
        heldout: HeldOut,
        *,
        builds: int,
        budget: int,
    ) -> None:
        """Take the devices, at least one, the plans, builds per plan, and the budget."""
        self.devices, self.space, self.heldout = dict(devices), space, heldout
        self.builds, self.budget = builds, budget
        self.losses: dict[str, str] = {}
        self.tried: dict[EnginePlan, list[Outcome]] = {}

    @property
    def is_over(self) -> bool:
        """Whether Ctrl-C came: nothing more is built."""
        return interruption().asked

    def evaluate(self, plan: EnginePlan, step: str, *, extra: bool = False) -> Outcome:
        """Build a plan once more on every device, and judge its engines.

        Args:
            plan: The plan.
            step: Why it is built.
            extra: Whether it uses nothing of the budget, as confirmations do.
        """
        earlier = self.tried.get(plan, [])
        self.budget -= not (extra or earlier)
        rows: dict[str, EngineResult] = {}
        for name, device in self.devices.items():
            before = [o.rows[name] for o in earlier if name in o.rows]
            for fresh in (bool(earlier), True):
                build = device.build(plan, step, fresh=fresh)
                measured = device.measured(plan, build, self.space.bench)
                rows[name] = _fetched(device, plan, measured, before)
                if not rows[name].lost:  # that concerns the connection, not yet the plan
                    break
        outcome = Outcome(plan, step, self._answering(rows))
        if any(part.build.status == "interrupted" for part in rows.values()):
            return outcome  # nothing is known about it
        self.tried[plan] = [*earlier, outcome]
        passed = sum(o.passed for group in self.tried.values() for o in group)
        if outcome.passed and passed == 1 and self.heldout.unseen:
            self.joins(plan)
        return self.tried[plan][-1]

    def joins(self, plan: EnginePlan) -> bool:
        """Judge a plan's fastest engine on held-out samples; return whether any joined the search.

        They are added to the calibration of every later plan, and known builds are measured anew.
        """
        if self.is_over:
            return False
        heldout, verdicts = self.heldout, list[Judged]()
        outcome, joined = fastest(self.tried[plan]), heldout.joined
        for name in outcome.rows.keys() & self.devices.keys():
            engine, measure = outcome.rows[name].build.engine, self.devices[name].measure
            judging = heldout.samples, heldout.references
            with suppress(*ENGINE_FAULTS):  # the table reports it
                assert engine is not None
                verdicts.append(measure.judge(engine, *judging, unseen=heldout.unseen))
        for judged in verdicts:
            heldout.join(judged, self.space, " in the engine")
        if heldout.joined == joined:
            return False
        self.tried = {p: [self._again(o) for o in group] for p, group in self.tried.items()}
        return True

    def _again(self, outcome: Outcome) -> Outcome:
        """Return a build with its error on the present calibration samples."""
        here = outcome.rows.keys() & self.devices.keys()
        emulated = self.space.bench
        rows = {n: self.devices[n].again(outcome.rows[n], emulated) for n in here}
        return replace(outcome, rows=self._answering(rows) or outcome.rows)

    def _answering(self, rows: Mapping[str, EngineResult]) -> dict[str, EngineResult]:
        """Return the builds of devices that still answer; others are lost, unless all are."""
        answering = {name: part for name, part in rows.items() if not part.shows_nothing}
        for name in rows.keys() - answering.keys() if answering else ():
            self.losses[name] = why = rows[name].failure
            self.devices.pop(name).watcher.note(f"lost; the run continues without it: {why}")
        return answering or dict(rows)


def _fetched(
    device: Device, plan: EnginePlan, built: EngineResult, earlier: list[EngineResult]
) -> EngineResult:
    """Fetch the engine of a build that may be delivered or is a row of the table.

    Only the fastest engine of a plan is delivered; the others stay with the worker.
    """
    wanted = [b for b in (built, *earlier) if b.excess is not None]
    wanted = [b for b in wanted if not plan.keep or (b.excess or 0.0) <= 1]
    is_fastest = all(built.milliseconds < b.milliseconds for b in wanted[1:])
    return device.fetch(plan, built) if built in wanted[:1] and is_fastest else built


def is_faster(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether an engine is faster than another by more than the noise of their times.

    Only rounds in which they took turns can show that.
    """
    ratio = time_ratio(one, other)
    return ratio is not None and ratio.high < 1


def choose(offers: Sequence[Outcome]) -> Outcome | None:
    """Return the offer to deliver: the fastest that passes; None if none does.

    Among those that none beats by more than noise, one that gives the outputs of an FP32 or TF32
    engine in that set comes after that; ties are broken by time, then by the order of `offers`. An
    engine that failed while others took turns is not chosen, nor an untimed one if others were
    timed.
    """
    passed = sorted((o for o in offers if o.deliverable), key=lambda o: o.milliseconds)
    if not passed:
        return None
    passed = [o for o in passed if o.milliseconds < inf] or passed
    passed = [o for o in passed if o.times] or passed
    # Medians of different rounds say less: the clock may slow down after an engine's last round.
    equal = [o for o in passed if not any(is_faster(p.times, o.times) for p in passed)] or passed
    # With nothing low in its outputs it gains nothing over an FP32 or TF32 engine as fast.
    full = [o for o in equal if o.plan.is_full]
    return next(o for o in equal if not any(_gains_nothing(o, other) for other in full))


def _gains_nothing(offer: Outcome, full: Outcome) -> bool:
    """Return whether the outputs of all of its engines are those of one rung, and of `full`.

    Or as exact as these.
    """
    rungs = {row.shows for row in offer.rows.values()}
    pairs = [(row.verdict, full.rows[name].verdict) for name, row in offer.rows.items()]
    is_one = len(rungs) == 1 and None not in rungs
    return is_one and all(v and f and (same_outputs(v, f) or as_exact(v, f)) for v, f in pairs)


def full_offers(bench: Bench) -> tuple[Outcome, ...]:
    """Return the FP32 engines of each device, at least one, as they were judged.

    If samples joined meanwhile, they are judged again; not after Ctrl-C, since no search chose them
    by those samples, and running an engine may take a restart of its worker.
    """
    offers, emulated, devices = list[Outcome](), bench.space.bench, bench.devices
    for device in () if bench.is_over else devices.values():
        if any(full.samples.ids != emulated.samples.ids for full in device.full.values()):
            device.judge_again(emulated.samples, bench.heldout.rest)
    for rung in FULL_RUNGS:
        full = {n: d.full[rung] for n, d in devices.items() if rung in d.full}
        if len(full) < len(devices):
            continue
        rows = dict[str, EngineResult]()
        for name, (row, samples, outputs) in full.items():
            before = emulated.references[: len(samples)]  # others joined behind them
            excess = emulated.tolerance.excess(outputs, samples, before) if outputs else None
            rows[name] = row.model_copy(update={"excess": excess})
        plan = EnginePlan(Plan(bench.space.variant), rung, tf32=rung == "tf32")
        purpose = next(iter(rows.values())).build.purpose
        # No search chose them: they have to be within the tolerance itself.
        limit = 1 / emulated.tolerance.factor
        offers.append(Outcome(plan, purpose, rows, limit))
    return tuple(offers)


def offer_of(
    bench: Bench, outcome: Outcome, offers: Sequence[Outcome], *, allowed: bool = True
) -> Outcome:
    """Return engines in the low format or with INT8, judged; `offers` are those before."""
    plan, rows = outcome.plan, dict[str, EngineResult]()
    for device, measured in outcome.rows.items():
        name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
        if plan.types.of is not bench.space.variant:
            name = f"{name}, without repairs"
        if name in {o.rows[device].name for o in offers}:
            name = f"{name}, build {measured.build.number}"
        row = measured.model_copy(update={"name": name, "proof": None})
        if row.build.engine is None or row.failure:
            rows[device] = row.model_copy(update={"lost": row.shows_nothing})
            continue
        heldout, here = bench.heldout, bench.devices[device]
        judging = heldout.samples, heldout.references, heldout.unseen
        prove = partial(here.proof, plan, row.build, whole=True)
        rows[device] = here.row_of(row, judging, prove)
    return replace(outcome, rows=rows, allowed=allowed)


def raced(bench: Bench, offers: Sequence[Outcome]) -> tuple[Outcome, ...]:
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


def rows_of(
    offers: Sequence[Outcome], delivered: Outcome | None, name: str
) -> Iterator[EngineResult]:
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
