"""Judges plans by engines: each plan on every device, remembered, within one budget.

An engine that passes on the calibration samples is judged on held-out ones at once: shrinking and
confirming a plan first would lose those builds if it fails there.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from halfwise.fixing.engines.device import Device, side_by_side
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.space import LowSpace
from halfwise.judging.judge import Judged
from halfwise.progress import interruption
from halfwise.records import EngineResult
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
        space: LowSpace,
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
        building = dict(self.devices)
        for fresh in (bool(earlier), True):
            builders = {n: d.builder(plan, step, fresh=fresh) for n, d in building.items()}
            builds = side_by_side(self.devices, builders)
            for name, device in building.items():
                built = device.measured(plan, builds[name], self.space.bench)
                before = [o.rows[name] for o in earlier if name in o.rows]
                rows[name] = _fetched(device, plan, built, before)
            # A loss concerns the connection, not yet the plan.
            building = {n: d for n, d in building.items() if rows[n].lost}
            if not building:
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
