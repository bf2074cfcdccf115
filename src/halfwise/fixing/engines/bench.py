"""Judges plans by engines: each plan on every device, remembered, within one budget.

An engine that passes on the calibration samples is judged on held-out ones at once: shrinking and
confirming a plan first would lose those builds if it fails there.

Every engine in the final table is judged, timed and inspected the same way. The fastest that passes
is delivered. Times are noisy, so engines take turns.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from statistics import median

from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.measure import NEAR, race
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.plan import Plan
from halfwise.fixing.space import Space
from halfwise.judging.judge import Judged
from halfwise.progress import interruption
from halfwise.records import FULL_RUNGS, EngineResult
from halfwise.tensorrt.failures import ENGINE_FAULTS


class Bench:
    """Builds and judges plans, and remembers what they gave.

    Attributes:
        devices: Build and measure plans, by name.
        space: The plans of the emulation, on the samples that measure engines too.
        heldout: The samples that judge; failing ones join the calibration.
        builds: Builds of a plan before it counts as confirmed.
        budget: Builds that may still be made of new plans.
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
        self.devices, self.space, self.heldout = devices, space, heldout
        self.builds, self.budget = builds, budget
        self.tried: dict[EnginePlan, list[Outcome]] = {}

    @property
    def is_over(self) -> bool:
        """Whether Ctrl-C came: nothing more is built."""
        return interruption().asked

    @property
    def is_lost(self) -> bool:
        """Whether a worker was lost, twice with one plan: nothing more is built either."""
        return any(group[-1].worst.shows_nothing for group in self.tried.values())

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
            before = [o.rows[name] for o in earlier]
            for fresh in (bool(earlier), True):
                build = device.build(plan, step, fresh=fresh)
                measured = device.measured(plan, build, self.space.bench)
                rows[name] = _fetched(device, plan, measured, before)
                if not rows[name].lost:  # that concerns the connection, not yet the plan
                    break
        outcome = Outcome(plan, step, rows)
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
        heldout, verdicts, joined = self.heldout, list[Judged](), self.heldout.joined
        judging = heldout.samples, heldout.references
        for name, row in fastest(self.tried[plan]).rows.items():
            measure = self.devices[name].measure
            with suppress(*ENGINE_FAULTS):  # the table reports it
                assert row.build.engine is not None
                verdicts.append(measure.judge(row.build.engine, *judging, unseen=heldout.unseen))
        for judged in verdicts:
            heldout.join(judged, self.space, " in the engine")
        if heldout.joined == joined:
            return False
        self.tried = {p: [self._again(o) for o in group] for p, group in self.tried.items()}
        return True

    def _again(self, outcome: Outcome) -> Outcome:
        """Return a build with its error on the present calibration samples."""
        emulated = self.space.bench
        rows = {n: self.devices[n].again(row, emulated) for n, row in outcome.rows.items()}
        return replace(outcome, rows=rows)


def _fetched(
    device: Device, plan: EnginePlan, built: EngineResult, earlier: list[EngineResult]
) -> EngineResult:
    """Fetch the engine of a build that may be delivered or is a row of the table.

    Only the fastest engine of a plan is delivered; the others stay with the worker.
    """
    wanted = [b for b in (built, *earlier) if b.excess is not None]
    wanted = [b for b in wanted if not plan.keep or (b.excess or 0.0) <= 1]
    is_fastest = all(built.milliseconds < b.milliseconds for b in wanted[1:])
    return device.fetch(built) if built in wanted[:1] and is_fastest else built


def choose(offers: Sequence[Outcome]) -> Outcome | None:
    """Return the offer to deliver: of those that pass, the smallest that may be the fastest.

    None if none passes. An engine that failed while others took turns comes after these, an untimed
    one last; ties are broken by the order of `offers`.
    """
    passed = [offer for offer in offers if offer.deliverable]
    timed = [offer for offer in passed if offer.took_turns]
    least = min((offer.milliseconds for offer in timed), default=inf)
    near = [offer for offer in timed if offer.milliseconds < NEAR * least]
    if near:
        return min(near, key=lambda offer: (offer.bytes, offer.milliseconds))
    return min(passed, key=lambda offer: offer.milliseconds, default=None)


def full_offers(bench: Bench) -> list[Outcome]:
    """Return the FP32 engines of each device, at least one, as they were judged."""
    offers, emulated, devices = list[Outcome](), bench.space.bench, bench.devices
    for rung in FULL_RUNGS:
        if any(rung not in device.full for device in devices.values()):
            continue
        rows = dict[str, EngineResult]()
        for name, device in devices.items():
            row, outputs = device.full[rung]
            before = emulated.references[: len(outputs)]  # others joined behind them
            judging = device.case.calibration, before
            excess = emulated.tolerance.excess(outputs, *judging) if outputs else None
            rows[name] = row.model_copy(update={"excess": excess})
        plan = EnginePlan(Plan(bench.space.variant), rung, tf32=rung == "tf32")
        purpose = next(iter(rows.values())).build.purpose
        # No search chose them: they have to be within the tolerance itself.
        offers.append(Outcome(plan, purpose, rows, 1 / emulated.tolerance.factor))
    return offers


def offer_of(
    bench: Bench, outcome: Outcome, offers: Sequence[Outcome], *, allowed: bool = True
) -> Outcome:
    """Return engines in the low format or with INT8, judged; `offers` are those before."""
    plan, rows, heldout = outcome.plan, dict[str, EngineResult](), bench.heldout
    for device, measured in outcome.rows.items():
        name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
        if plan.types.of is not bench.space.variant:
            name = f"{name}, without repairs"
        if name in {o.rows[device].name for o in offers}:
            name = f"{name}, build {measured.build.number}"
        row = measured.model_copy(update={"name": name, "proof": None})
        if row.build.engine is None or row.failure:
            rows[device] = row.model_copy(update={"lost": row.shows_nothing})
        else:
            judging = heldout.samples, heldout.references, heldout.unseen
            rows[device] = bench.devices[device].row_of(plan, row, judging)
    return replace(outcome, rows=rows, allowed=allowed)


def raced(bench: Bench, offers: list[Outcome]) -> list[Outcome]:
    """Return the offers with the times of rounds in which engines that passed take turns.

    A single passing engine has nothing to be compared with. See `race`.
    """
    for name, device in bench.devices.items():
        rows = {i: o.rows[name] for i, o in enumerate(offers) if o.deliverable}
        engines = {i: r.build.engine for i, r in rows.items() if r.latency and r.build.engine}
        if len(engines) < 2:
            continue
        times = race(engines, device.measure.lap)
        offers = [
            replace(o, rows={**o.rows, name: _timed(o.rows[name], times.get(i, ()))})
            for i, o in enumerate(offers)
        ]
    return offers


def _timed(row: EngineResult, medians: tuple[float, ...]) -> EngineResult:
    """Return a row with its time by the rounds; one without rounds stays as it was."""
    if row.latency is None or not medians:
        return row
    times = {"medians": medians, "median_ms": median(medians)}
    return row.model_copy(update={"latency": row.latency.model_copy(update=times)})
