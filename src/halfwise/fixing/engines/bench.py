"""Judges plans by engines: each plan on every device, remembered, within one budget.

An engine that passes on the calibration samples is judged on held-out ones at once: shrinking and
confirming a plan first would lose those builds if it fails there.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from halfwise.fixing.engines.attempts import Attempts
from halfwise.fixing.engines.device import side_by_side
from halfwise.fixing.engines.plan import Built, EnginePlan, Outcome, Step, fastest
from halfwise.fixing.heldout import HeldOut
from halfwise.interruption import interruption
from halfwise.judging.judge import Judged
from halfwise.records import BuildOutcome
from halfwise.tensorrt.failures import ENGINE_FAULTS


class Bench:
    """Builds and judges plans, and remembers what they gave.

    Attributes:
        attempts: Builds and measures plans, by device; lost devices are removed.
        gone: Why devices were lost.
        heldout: The samples that judge; failing ones join the calibration.
        builds: Builds of a plan before it counts as confirmed.
        left: Builds left for new plans.
        tried: All builds of each plan.
    """

    def __init__(
        self,
        attempts: Mapping[str, Attempts],
        heldout: HeldOut,
        *,
        builds: int,
        most: int,
    ) -> None:
        """Take the devices, at least one, builds per plan, and the budget."""
        self.attempts, self.heldout = dict(attempts), heldout
        self.builds, self.left = builds, most
        self.gone: dict[str, str] = {}
        self.tried: dict[EnginePlan, list[Outcome]] = {}
        self._interruption = interruption()

    @property
    def is_over(self) -> bool:
        """Whether Ctrl-C came: nothing more is built."""
        return self._interruption.asked

    def evaluate(self, plan: EnginePlan, step: Step, *, free: bool = False) -> Outcome:
        """Build a plan once more on every device, and judge its engines.

        Args:
            plan: The plan.
            step: Why it is built.
            free: Whether it uses nothing of the budget, as confirmations do.
        """
        before = self.tried.get(plan, [])
        self.left -= not (free or before)
        parts: dict[str, Built] = {}
        building = dict(self.attempts)
        for fresh in (bool(before), True):
            made = self._build({n: a.builder(plan, step, fresh=fresh) for n, a in building.items()})
            parts |= {n: a.measured(plan, made[n]) for n, a in building.items()}
            # A loss concerns the connection, not yet the plan.
            building = {n: a for n, a in building.items() if parts[n].lost}
            if not building:
                break
        outcome = Outcome(plan, step, self._answering(parts))
        if any(part.build.status == "interrupted" for part in parts.values()):
            return outcome  # nothing is known about it
        self.tried[plan] = [*before, outcome]
        self._judge(outcome)
        return self.tried[plan][-1]

    def joins(self, plan: EnginePlan) -> bool:
        """Judge a plan's fastest engine on held-out samples; return whether any joined the search.

        They are added to the calibration of every later plan, and known builds are measured anew.
        """
        return not self.is_over and self._join(self._on_heldout(fastest(self.tried[plan])))

    def lose(self, name: str, why: str) -> None:
        """Continue without a device."""
        watcher = self.attempts.pop(name).device.bench.watcher
        self.gone[name] = why
        watcher.note(f"lost; the run continues without it: {why}")

    def _judge(self, outcome: Outcome) -> None:
        """Let held-out samples that the first passing engine fails join the search."""
        passed = sum(o.passed for group in self.tried.values() for o in group)
        if outcome.passed and passed == 1 and self.heldout.unseen and not self.is_over:
            self._join(self._on_heldout(outcome))

    def _on_heldout(self, outcome: Outcome) -> dict[str, Judged]:
        """Return the verdicts on its engines on held-out samples, by device, where they run."""
        found: dict[str, Judged] = {}
        samples, references = self.heldout.samples, self.heldout.references
        for name in outcome.parts.keys() & self.attempts.keys():
            engine = outcome.parts[name].build.engine
            measure = self.attempts[name].device.bench.measure
            try:
                assert engine is not None
                unseen = self.heldout.unseen
                found[name] = measure.judge(engine, samples, references, unseen=unseen)
            except ENGINE_FAULTS:
                continue  # the table reports it
        return found

    def _join(self, judged: Mapping[str, Judged]) -> bool:
        before, space = self.heldout.joined, next(iter(self.attempts.values())).spaces.low
        for each in judged.values():
            self.heldout.join(each, space, " in the engine")
        has_joined = self.heldout.joined != before
        if has_joined:
            self.tried = {
                plan: [self._again(outcome) for outcome in group]
                for plan, group in self.tried.items()
            }
        return has_joined

    def _again(self, outcome: Outcome) -> Outcome:
        """Return a build with its error on the present calibration samples."""
        here = {n: part for n, part in outcome.parts.items() if n in self.attempts}
        parts = {n: self.attempts[n].again(part) for n, part in here.items()}
        return replace(outcome, parts=self._answering(parts) or outcome.parts)

    def _build(self, builders: Mapping[str, Callable[[], BuildOutcome]]) -> dict[str, BuildOutcome]:
        return side_by_side({n: a.device for n, a in self.attempts.items()}, builders)

    def _answering(self, parts: Mapping[str, Built]) -> dict[str, Built]:
        """Return the builds of devices that still answer; others are lost, unless all are."""
        left = {name: part for name, part in parts.items() if not part.untold}
        for name in parts.keys() - left.keys() if left else ():
            self.lose(name, parts[name].failure or parts[name].build.message)
        return left or dict(parts)
