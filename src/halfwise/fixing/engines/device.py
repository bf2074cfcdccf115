"""One of several kinds of device, and all of them as one for the search.

Builds of a device can be started in a thread and awaited later. A plan is as good as on its worst
device.
"""

import os
import signal
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, inf, log
from pathlib import Path
from statistics import fmean

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.attempts import (
    USUAL,
    WITH_TF32,
    Assignment,
    Attempts,
    Candidate,
    Chosen,
    Plan,
    Step,
    Terms,
)
from halfwise.fixing.engines.builds import Builds
from halfwise.fixing.engines.conclude import Ended, Proven, rounds
from halfwise.fixing.engines.measure import Measure, with_shapes
from halfwise.fixing.engines.moves import Proposal
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import Proposals
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.table import Offer, Table
from halfwise.fixing.engines.workbench import FP32, TF32, has_tf32
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.scoring import HeldOut
from halfwise.records import BuildConfig, BuildOutcome, Engines
from halfwise.reporting.rungs import move_line
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import ENGINE_FAULTS, config_key

_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""


class _Begun(Exception):
    """A build has started, and nobody waits for it yet."""


@dataclass
class DeviceBuilds(Builds):
    """Builds engines on one worker, in its own thread if started by `begin`.

    Attributes:
        last: The last build that was started; None before the first.
    """

    last: "Future[BuildOutcome] | None" = None
    _waiting: dict[tuple[str, bool], "Future[BuildOutcome]"] = field(default_factory=dict)
    _starting: bool = False

    def __post_init__(self) -> None:
        """Create the thread."""
        self._pool = ThreadPoolExecutor(1, "halfwise-build")

    def begin(self, build: Callable[[], object]) -> None:
        """Start what `build` builds, without waiting for it; do nothing while another is built.

        Args:
            build: Requests one build from this object.
        """
        if self.last is None or self.last.done():
            self._starting = True
            try:
                with suppress(_Begun, OSError):  # reported when it is waited for
                    build()
            finally:
                self._starting = False

    def settle(self) -> None:
        """End builds that were started but never requested."""
        for begun in self._waiting.values():
            self._stop()
            with suppress(HalfwiseError):
                self._kept(begun.result())
        self._waiting.clear()

    def end(self) -> None:
        """End the build that runs, and the thread."""
        self._stop()
        self._pool.shutdown()

    def _stop(self) -> None:
        while self.last is not None and not self.last.done():
            # To the thread it looks like a lost connection: it shares only the number.
            if (number := self.worker.process_id) is not None:
                with suppress(ProcessLookupError):
                    os.killpg(number, signal.SIGTERM)
            wait([self.last], _LOOK_AGAIN)

    def _next(self) -> int:
        return len(self.outcomes) + len(self._waiting) + 1

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        key = config_key(config), fresh
        if self._starting:
            if key not in self._waiting:
                build = self._begun(self.worker, model, config, purpose, fresh=fresh)
                # Ctrl-C ends builds in every thread.
                self.last = self._pool.submit(copy_context().run, build)
                self._waiting[key] = self.last
            raise _Begun
        if key not in self._waiting:
            return super()._once(model, config, purpose, fresh=fresh)
        outcome = self._waiting.pop(key).result()
        return self._kept(outcome.model_copy(update={"purpose": purpose}))

    def _kept(self, outcome: BuildOutcome) -> BuildOutcome:
        kept = super()._kept(outcome)
        self.outcomes.sort(key=lambda each: each.number)
        return kept


@dataclass(frozen=True)
class JointCandidate(Candidate):
    """A plan on every device; as a candidate it is that of its worst device.

    Attributes:
        parts: Its build on each device, by device name.
    """

    parts: Mapping[str, Candidate] = field(default_factory=dict)

    @property
    def milliseconds(self) -> float:
        """Geometric mean over the devices: comparing plans then depends on no device's speed."""
        return mean([part.milliseconds for part in self.parts.values()])

    def changes_nothing(self, plain: Candidate) -> bool:
        """Return whether it changes nothing on its worst device."""
        assert isinstance(plain, JointCandidate)
        name = worst(self.parts)
        return name in plain.parts and self.parts[name].changes_nothing(plain.parts[name])


def joint(parts: Mapping[str, Candidate]) -> JointCandidate:
    """Return the joint candidate of a plan tried on each device, at least one."""
    whose = parts[worst(parts)]
    return JointCandidate(
        keep=whose.keep,
        step=whose.step,
        build=whose.build,
        excess=whose.excess,
        failure=whose.failure,
        untimed=whose.untimed,
        terms=whose.terms,
        lost=whose.lost,
        proof=whose.proof,
        band=whose.band,
        parts=dict(parts),
    )


def worst(parts: Mapping[str, Candidate]) -> str:
    """Return a candidate's worst device: one without a running engine first, then by error."""

    def badness(name: str) -> float:
        excess = parts[name].excess
        return inf if excess is None else min(excess, 1e300)

    return max(parts, key=badness)


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean of times; inf if one is, 0 if one is, inf without any."""
    if not values or inf in values:
        return inf
    if min(values) <= 0:
        return 0.0
    return exp(fmean(map(log, values)))


class DeviceAttempts(Attempts):
    """Builds and measures plans on one device; builds can be started and awaited later."""

    def begin(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> None:
        """Start the build that `attempt` will request, with its reason and terms."""
        builds = self.bench.builds
        assert isinstance(builds, DeviceBuilds)
        words = step if isinstance(step, str) else move_line(step)
        builds.begin(partial(self._build, keep, terms, words, fresh=(keep, terms) in self._built))


@dataclass
class JointAttempts:
    """Tries plans on all devices concurrently.

    Attributes:
        devices: Attempts per device, by name; a lost device is removed.
        bands: Error bands explained by low precision, per device.
        gone: Why devices were removed.
    """

    devices: dict[str, DeviceAttempts]
    bands: Mapping[str, Prediction]
    gone: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, Plan], Candidate] = field(default_factory=dict)

    def attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> JointCandidate:
        """Build the plan on every device and measure the engines; see `Attempts.attempt`.

        Builds in strong typing do not differ: one per plan is enough there.
        """
        plan = keep, terms
        for name, device in self.devices.items():
            if (name, plan) not in self._known:
                device.begin(keep, step, terms)
        parts = {}
        for name, device in list(self.devices.items()):
            known = self._known.get((name, plan))
            attempt = self.bands[name].before(device.attempt)
            parts[name] = known or attempt(keep, step, terms)
            if device.bench.builds.typing == "strong" and parts[name].excess is not None:
                self._known[name, plan] = parts[name]
        return self.left(parts)

    def again(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its error on the present calibration samples."""
        parts = parts_of(candidate)
        self._known.clear()
        found = {n: d.again(parts[n]) for n, d in self.devices.items() if n in parts}
        return self.left({n: self.bands[n].banded(part) for n, part in found.items()})

    def left(self, parts: Mapping[str, Candidate]) -> JointCandidate:
        """Return the candidate of the remaining devices; lost ones are removed."""
        left = {name: part for name, part in parts.items() if not part.untold}
        for name in parts.keys() - left.keys() if left else ():
            self.lose(name, parts[name].failure or parts[name].build.message)
        return joint(left or parts)

    def lose(self, name: str, why: str) -> None:
        """Continue without a device."""
        watcher = self.devices.pop(name).bench.watcher
        self.gone[name] = why
        watcher.note(f"lost; the run continues without it: {why}")


class JointProposals(Proposals):
    """Proposes plans from the results of a plan's worst device."""

    def __init__(self, devices: Mapping[str, Proposals], gone: Container[str]) -> None:
        """Take the proposals of each device, at least one, and the lost devices."""
        self.devices, self._gone = devices, gone

    def _worst(self, failed: Candidate) -> tuple[Proposals, Candidate]:
        parts = {n: part for n, part in parts_of(failed).items() if n not in self._gone}
        parts = parts or dict(parts_of(failed))
        name = worst(parts)
        return self.devices[name], parts[name]

    def culprits(
        self, failed: Candidate, *, idle: bool = False
    ) -> Iterator[tuple[str, Assignment]]:
        """Yield sets of nodes to add: see `Proposals.culprits`."""
        proposals, part = self._worst(failed)
        return proposals.culprits(part, idle=idle)

    def unbuildable(self, failed: Candidate) -> Iterator[Proposal]:
        """Yield what to try in place of a plan: see `Proposals.unbuildable`."""
        proposals, part = self._worst(failed)
        return proposals.unbuildable(part)

    def refused(self, plan: Plan) -> bool:
        """Return whether a device would refuse a plan like an earlier one."""
        return any(d.refused(plan) for n, d in self.devices.items() if n not in self._gone)

    def hear(self, candidate: Candidate) -> None:
        """Remember refusals, per device."""
        for name, part in parts_of(candidate).items():
            self.devices[name].hear(part)

    def is_elsewhere(self, refused: Candidate) -> bool:
        """Return whether its worst device refused it in a region without earlier refusals."""
        proposals, part = self._worst(refused)
        return proposals.is_elsewhere(part)

    def gains_from_tf32(self, keep: Assignment) -> bool:
        """Return whether a device may gain: see `Proposals.gains_from_tf32`."""
        return any(each.gains_from_tf32(keep) for each in self.devices.values())

    def wider(self, keep: Assignment) -> Iterable[tuple[str, Assignment]]:
        """Return wider islands: see `Proposals.wider`."""
        return next(iter(self.devices.values())).wider(keep)


class JointPrediction(Prediction):
    """Predicts the worst over all devices."""

    def __init__(
        self,
        devices: Mapping[str, Prediction],
        plain: Callable[[], Mapping[str, Candidate]],
    ) -> None:
        """Take the predictions, at least one, and what returns the engines with nothing kept."""
        self.devices, self._plain_parts = devices, plain

    def learn(self, plain: BuildOutcome) -> None:  # noqa: ARG002 - each has its own
        """Read from the engines with nothing kept what they compute in FP32 by themselves."""
        for name, part in self._plain_parts().items():
            if name in self.devices and part.excess is not None:
                self.devices[name].learn(part.build)

    def enough(self, keep: Assignment) -> bool | None:
        """Return whether a plan passes on all; None once the budget is spent."""
        found = [each.enough(keep) for each in self.devices.values()]
        return None if None in found else all(found)

    def beyond(self, keep: Assignment) -> bool:
        """Return whether a plan is beyond the limit on any."""
        return any(each.beyond(keep) for each in self.devices.values())

    def error(self, keep: Assignment) -> float:
        """Return the largest predicted error."""
        return max(each.error(keep) for each in self.devices.values())

    def excess(self, keep: Assignment) -> float:
        """Return the largest error predicted by the emulation with fusion."""
        return max(each.excess(keep) for each in self.devices.values())


def parts_of(candidate: Candidate) -> Mapping[str, Candidate]:
    """Return the builds of a candidate from the search over several devices."""
    assert isinstance(candidate, JointCandidate)
    return candidate.parts


def search_on(name: str, own: EngineSearch, search: EngineSearch) -> EngineSearch:
    """Return the named device's search `own` with what it saw of `search`."""
    tried = {}
    for plan, group in search.tried.items():
        parts = [parts_of(c)[name] for c in group if name in parts_of(c)]
        # If one build of a plan is enough, it counts once.
        if builds := {part.build.number: part for part in parts}:
            tried[plan] = list(builds.values())
    return replace(own, tried=tried, notes=search.notes, spared=search.spared)


def chosen_on(name: str, chosen: Chosen, search: EngineSearch) -> Chosen:
    """Return the choice as seen by the named device; `search` is its view."""

    def part(candidate: Candidate | None) -> Candidate | None:
        return None if candidate is None else parts_of(candidate)[name]

    best = part(chosen.best)
    excesses = () if best is None else search.excesses(best)
    return replace(chosen, best=best, plain=part(chosen.plain), excesses=excesses)


def only_on(names: Collection[str], search: EngineSearch, chosen: Chosen) -> Chosen:
    """Restrict a search to the named devices; return the choice on these."""

    def left(candidate: Candidate) -> Candidate:
        return joint({n: part for n, part in parts_of(candidate).items() if n in names})

    search.tried |= {plan: [left(c) for c in group] for plan, group in search.tried.items()}
    best, plain = (c and left(c) for c in (chosen.best, chosen.plain))
    return replace(chosen, best=best, plain=plain)


class DeviceRun(EngineRun):
    """The part of a run that belongs to one device.

    Attributes:
        prediction: Predictions for its engines, once the search has started.
    """

    prediction: Prediction

    def begin_fp32(self) -> None:
        """Start building the FP32 engine."""
        self._begin(FP32)

    @property
    def begun(self) -> "Future[BuildOutcome] | None":
        """The last build that was started; None before the first."""
        assert isinstance(self.builds, DeviceBuilds)
        return self.builds.last

    def begin_tf32(self) -> None:
        """Start building the FP32 engine with TF32, if the GPU has it."""
        if has_tf32(self.worker.info):
            self._begin(TF32)

    def _begin(self, name: str) -> None:
        assert isinstance(self.builds, DeviceBuilds)
        self.builds.begin(lambda: self.builds.build(self.fp32, name, tf32=name == TF32))

    def settle(self) -> None:
        """End builds that nobody requested."""
        assert isinstance(self.builds, DeviceBuilds)
        self.builds.settle()

    def search(
        self, fixed: Fixed, heldout: HeldOut
    ) -> tuple[EngineSearch, DeviceAttempts, Proposals]:
        """Return what a search on this device alone would use."""
        always = self.engine_settings.tf32
        weak = self.builds.typing == "weak"
        self.prediction = Prediction(fixed.planner, self._inspected, always_tf32=always, weak=weak)
        search, _ = self._search(fixed, heldout, self.prediction)
        attempts = DeviceAttempts(fixed.planner, self)
        return search, attempts, replace(search.proposals, attempts=attempts)

    def with_tf32(self, attempts: Attempts) -> Candidate | None:
        """Return the FP32 engine with TF32, measured; None on a GPU without it."""
        if (build := self._tf32) is None:
            return None
        band = self.prediction.tf32()
        tf32 = Candidate(frozenset(), TF32, build, terms=WITH_TF32, band=band)
        return attempts.measured(tf32, TF32)

    def exact(self, attempts: DeviceAttempts, table: Table) -> Offer:
        """Judge the FP32 engine like all others."""
        return self._exact(attempts, table)

    def offers(
        self, table: Table, full: Sequence[Offer], search: EngineSearch, chosen: Chosen
    ) -> tuple[Offer, ...]:
        """Return the rows of the table; for all devices if the arguments are."""
        return self._offers(table, full, search, chosen)

    def joins(self, best: Candidate, heldout: HeldOut) -> bool:
        """Return whether held-out samples that fail on this device joined the search."""
        return self._joins(best, heldout)

    def concluded(self, ended: Ended, fixed: Fixed, joined: tuple[str, ...]) -> Proven:
        """Return the result of this device alone."""
        self.notes += ended.chosen.notes
        return self._concluded(ended, fixed=fixed, joined=joined)

    def elsewhere(self, worker: Worker, engines: Engines, heldout: HeldOut) -> Engines:
        """Return the record of a worker of the same kind, which runs the engine delivered here.

        Args:
            worker: The worker.
            engines: This device's record; its engine is on this machine.
            heldout: The samples that judge it.
        """
        engine, row = engines.delivered, engines.row
        found = Engines(
            worker=worker.info,
            typing=engines.typing,
            profiles=engines.profiles,
            results=(),
            rounds=(),
            builds=(),
            keep=engines.keep,
            prefer=engines.prefer,
            rung=engines.rung,
            shares=engines.worker.name,
        )
        if engine is None or row is None:
            return found.model_copy(update={"verdict": engines.verdict})
        measure = Measure(worker, self.case, self.settings, self.engine_settings)
        try:
            judged = measure.judge(
                engine, heldout.samples, heldout.references, unseen=heldout.unseen
            ).verdict
            at = measure.at_shapes(engine, heldout.samples)
            latency = measure.latency(engine, thorough=True)
        except ENGINE_FAULTS as failed:
            return found.model_copy(update={"lost": failed.message})
        verdict = with_shapes(judged, at)
        seen = {"verdict": judged, "shapes": at, "latency": latency, "proof": None, "ratio": None}
        row = row.model_copy(update=seen)
        return found.model_copy(update={"results": (row,), "delivered": engine, "verdict": verdict})

    def lost(self, search: EngineSearch, fixed: Fixed, why: str) -> Engines:
        """Return the record of this device, lost before its engine was judged."""
        found = {
            "rounds": rounds(search, fixed.planner),
            "emulated": fixed.verdict,
            "prefer": self.engine_settings.prefer,
            "lost": why,
        }
        return self._record((self._fp32,)).model_copy(update=found)

    @property
    def right(self) -> bool:
        """Whether its FP32 engine passes."""
        return self._fp32.verdict is not None and self._fp32.verdict.passed
