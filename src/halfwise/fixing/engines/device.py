"""Several devices as one for the search: a plan is as good as on its worst device."""

import os
import signal
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from statistics import fmean
from typing import TypeVar

from halfwise.fixing.engines.attempts import (
    USUAL,
    Assignment,
    Attempts,
    Candidate,
    Chosen,
    Plan,
    Step,
    Terms,
)
from halfwise.fixing.engines.moves import Proposal
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import Proposals
from halfwise.fixing.engines.search import EngineSearch
from halfwise.records import BuildOutcome
from halfwise.tensorrt.client import Worker

_Found = TypeVar("_Found")
_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""


def side_by_side(
    calls: Mapping[str, Callable[[], _Found]], workers: Mapping[str, Worker]
) -> dict[str, _Found]:
    """Return what each device's call returns; each runs in its own thread.

    If one raises, what the others' workers do is ended, and the error is raised.
    """
    with ThreadPoolExecutor(len(calls) or 1, "device") as pool:
        # Ctrl-C ends builds in every thread.
        running = {name: pool.submit(copy_context().run, call) for name, call in calls.items()}
        try:
            ended, _ = wait(running.values(), return_when=FIRST_EXCEPTION)
            for each in ended:
                each.result()
            return {name: each.result() for name, each in running.items()}
        finally:
            while left := {name: each for name, each in running.items() if not each.done()}:
                for name in left:
                    _end(workers[name])
                wait(left.values(), _LOOK_AGAIN)


def _end(worker: Worker) -> None:
    """End a worker's process; to a build it looks like a lost connection."""
    if (number := worker.process_id) is not None:
        with suppress(ProcessLookupError):
            os.killpg(number, signal.SIGTERM)


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


@dataclass
class JointAttempts:
    """Tries plans on all devices concurrently.

    Attributes:
        devices: Attempts per device, by name; a lost device is removed.
        bands: Error bands explained by low precision, per device.
        gone: Why devices were removed.
    """

    devices: dict[str, Attempts]
    bands: Mapping[str, Prediction]
    gone: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, Plan], Candidate] = field(default_factory=dict)

    def attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> JointCandidate:
        """Build the plan on every device and measure the engines; see `Attempts.attempt`.

        Builds in strong typing do not differ: one per plan is enough there.
        """
        plan = keep, terms
        building = {n: d for n, d in self.devices.items() if (n, plan) not in self._known}
        built = side_by_side(
            {n: device.builder(keep, step, terms) for n, device in building.items()},
            {n: device.bench.worker for n, device in building.items()},
        )
        parts = {}
        for name, device in self.devices.items():
            if name not in built:
                parts[name] = self._known[name, plan]
                continue
            part = device.measured(Candidate(keep, step, built[name], terms=terms), plan)
            if part.lost:  # this concerns the connection, not yet the plan
                part = device.attempt(keep, step, terms)
            parts[name] = self.bands[name].banded(part)
            if device.bench.builds.typing == "strong" and part.excess is not None:
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

    def culprits(self, failed: Candidate) -> Iterator[tuple[str, Assignment]]:
        """Yield sets of nodes to add: see `Proposals.culprits`."""
        proposals, part = self._worst(failed)
        return proposals.culprits(part)

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
