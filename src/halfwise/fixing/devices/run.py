"""A run on several kinds of device: one search, one plan, and its engines on each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from halfwise.errors import HalfwiseError
from halfwise.fixing.devices.device import DeviceRun
from halfwise.fixing.devices.joint import (
    JointAttempts,
    JointPrediction,
    JointProposals,
    chosen_on,
    joint,
    only_on,
    parts_of,
    search_on,
)
from halfwise.fixing.devices.table import (
    JointOffer,
    JointTable,
    Together,
    joint_offer,
    only_on_offers,
    own_offer,
    parts_of_offer,
)
from halfwise.fixing.engines.attempts import Candidate, Chosen
from halfwise.fixing.engines.builds import nothing_judged
from halfwise.fixing.engines.conclude import Ended, Proven
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.table import Offer, Table, choose
from halfwise.fixing.engines.terms import USUAL
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.heldout import HeldOut
from halfwise.progress import Watcher
from halfwise.records import Engines, Failure, Spared
from halfwise.reporting.reasons import with_failures
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import ENGINE_FAULTS


@dataclass
class DevicesRun:
    """Finds one plan for several devices.

    Attributes:
        runs: The run of each device, by name, in the order of the command; at least one.
        watcher: Receives progress.
        seconds: Wall time of each stage.
        gone: Why devices were lost.
    """

    runs: dict[str, DeviceRun]
    watcher: Watcher
    seconds: dict[str, float] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)

    def reference(self) -> Together | None:
        """Build and judge the FP32 engine of each device; return the result if one is wrong.

        Raises:
            HalfwiseError: as for `EngineRun.reference`; the message names the device.
        """
        for run in self.runs.values():
            run.builds.over = self._over
            run.begin_fp32()
        for name in self._as_built():
            with _naming(name):
                self.runs[name].reference()
        if all(run.right for run in self.runs.values()):
            return None
        proven = {name: run.refused() for name, run in self.runs.items()}
        wrong = {name: each for name, each in proven.items() if not self.runs[name].right}
        return Together({n: _with_verdict(p, n in wrong) for n, p in proven.items()}, wrong)

    def _as_built(self) -> Iterator[str]:
        """Yield the devices as their builds end: a failure ends the others' builds."""
        left = dict(self.runs)
        while left:
            wait([run.begun for run in left.values() if run.begun], return_when=FIRST_COMPLETED)
            ended = [n for n, run in left.items() if run.begun is None or run.begun.done()]
            for name in ended:
                del left[name]
                yield name

    def tf32(self) -> None:
        """Build the FP32 engine with TF32 on each device, and report where it passes."""
        for run in self.runs.values():
            run.begin_tf32()
        for run in self.runs.values():
            run.tf32()

    def _over(self) -> bool:
        """Return whether Ctrl-C came when each device had a proven engine."""
        return all(run.early.over for name, run in self.runs.items() if name not in self.gone)

    def prove(self, fixed: Fixed) -> Together:
        """Search from the plan of `fixed`, judge the result on each device, compare.

        Raises:
            EngineFailed: all devices were lost before any of their engines was judged.
        """
        heldout = self._heldout = fixed.heldout.for_watcher(self.watcher)
        with self._stage("engines"):
            search, attempts = self._search(fixed, heldout)
            tables = {n: Table(run, fixed.planner, heldout) for n, run in self.runs.items()}
            exact = self._exact(attempts, tables)
            chosen = search.run(fixed.found.kept)
            while chosen.best is not None and self._joins(chosen.best, heldout, attempts):
                chosen = search.again(chosen.best.keep, attempts.again)
            for run in self.runs.values():
                run.settle()
            if search.budget.interrupted:
                fixed.planner.budget.tell("interrupt")
            if search.budget.over():
                search.spared.append(Spared(kind="interrupted"))
            tf32 = self._with_tf32(attempts)
            if tf32 is None:
                search.spared.append(Spared(kind="no-tf32"))
        with self._stage("verdict"):
            if heldout.joined or exact.checked or not exact.passed:
                exact = self._exact(attempts, tables)
            # Earlier results of a device lost since are on record.
            every = {name: search_on(name, own, search) for name, own in self._own.items()}
            chosen = only_on(attempts.devices, search, chosen)
            table = JointTable({name: tables[name] for name in attempts.devices})
            more = [] if tf32 is None else [table.with_tf32(tf32)]
            full = only_on_offers(attempts.devices, [exact, *more])
            first = next(iter(self.runs.values()))
            offers = first.offers(table, full, search, chosen)
        return self._concluded(search, chosen, offers, fixed, every, tuple(heldout.joined))

    def _search(self, fixed: Fixed, heldout: HeldOut) -> tuple[EngineSearch, JointAttempts]:
        """Return the search over all devices: one device's search that sees all of them as one."""
        each = {name: run.search(fixed, heldout) for name, run in self.runs.items()}
        self._own = {name: own for name, (own, _, _) in each.items()}
        first = next(iter(self._own.values()))
        # A device's needs are found by its own builds, one device after another.
        budget = replace(first.budget, builds=first.budget.builds * len(each), over=self._over)
        own = {name: attempts for name, (_, attempts, _) in each.items()}
        bands = {name: run.prediction for name, run in self.runs.items()}
        attempts = JointAttempts(own, bands, self.gone)
        proposing = {
            name: replace(proposals, budget=budget) for name, (_, _, proposals) in each.items()
        }
        strong = [n for n, run in self.runs.items() if run.builds.typing == "strong"]
        search = replace(
            first,
            attempt=attempts.attempt,
            proposals=JointProposals(proposing, self.gone),
            builds=max(own.builds for own in self._own.values()),
            budget=budget,
            full=None,
            units=self._own[strong[0]].units if strong else first.units,
            prediction=None,
        )
        predictions = {n: own.prediction for n, own in self._own.items() if own.prediction}
        if predictions:
            search.prediction = JointPrediction(
                predictions, lambda: parts_of(search.tried[frozenset(), USUAL][0])
            )
        return search, attempts

    def _exact(self, attempts: JointAttempts, tables: Mapping[str, Table]) -> JointOffer:
        """Judge the FP32 engine of each device like all others."""
        found = {n: self.runs[n].exact(own, tables[n]) for n, own in attempts.devices.items()}
        return joint_offer(found, joint({n: offer.candidate for n, offer in found.items()}))

    def _joins(self, best: Candidate, heldout: HeldOut, attempts: JointAttempts) -> bool:
        """Return whether held-out samples that fail on a device joined the search."""
        parts = parts_of(best)
        found = [self.runs[name].joins(parts[name], heldout) for name in attempts.devices]
        return any(found)

    def _with_tf32(self, attempts: JointAttempts) -> Candidate | None:
        """Return the FP32 engines with TF32; None if a GPU lacks it."""
        found = {n: self.runs[n].with_tf32(own) for n, own in attempts.devices.items()}
        known = {name: candidate for name, candidate in found.items() if candidate is not None}
        return attempts.left(known) if len(known) == len(found) else None

    def _concluded(
        self,
        search: EngineSearch,
        chosen: Chosen,
        offers: Sequence[Offer],
        fixed: Fixed,
        every: Mapping[str, EngineSearch],
        joined: tuple[str, ...],
    ) -> Together:
        """Return the result of each device, and of all together."""
        prefer = next(iter(self.runs.values())).engine_settings.prefer
        offers = self._left(offers)
        delivered = choose(offers, prefer) or _nearest(offers)
        engines, proven = {}, {}
        for name, run in self.runs.items():
            if name in self.gone:
                engines[name] = run.lost(every[name], fixed, self.gone[name])
                continue
            seen = search_on(name, self._own[name], search)
            own = [own_offer(offer, name, seen) for offer in offers]
            here = next((o for o, of in zip(own, offers, strict=True) if of is delivered), None)
            ended = Ended(
                seen,
                chosen_on(name, chosen, seen),
                own,
                here if here is not None and here.passed else None,
            )
            proven[name] = run.concluded(ended, fixed, joined)
            engines[name] = _with_verdict(proven[name])
        return Together(engines, proven)

    def brought(self, found: Together, paths: Mapping[str, Path]) -> Together:
        """Return the result with its engines here, each at its path unless it was here before.

        The verdict fails if one cannot be fetched.
        """
        engines = dict(found.engines)
        for name, proven in found.proven.items():
            engine = proven.engines.delivered
            if engine is None:
                continue
            try:
                here = self.runs[name].fetched.deliver(engine, paths[name])
                engines[name] = engines[name].model_copy(update={"delivered": here})
            except (*ENGINE_FAULTS, OSError) as failed:
                why = failed.message if isinstance(failed, HalfwiseError) else f"{failed}."
                lost = Failure(kind="unfetched", names={"path": engine.path, "why": why})
                verdict = with_failures(proven.verdict, (lost,))
                unfetched = {"delivered": None, "verdict": verdict}
                engines[name] = engines[name].model_copy(update=unfetched)
        return replace(found, engines=engines)

    def on_all(self, found: Together, workers: Mapping[str, Mapping[str, Worker]]) -> Together:
        """Add workers that built for others to the result; they run those engines too.

        Args:
            found: The result; engines of several workers are on this machine.
            workers: Workers of each kind, by the name of the one that measured.
        """
        engines = dict(found.engines)
        for name, others in workers.items():
            for other, worker in others.items():
                if other != name:
                    with self._stage(f"verdict on {other}"):
                        engines[other] = self.runs[name].elsewhere(
                            worker, engines[name], self._heldout
                        )
        return replace(found, engines=engines)

    def _left(self, offers: Sequence[Offer]) -> tuple[Offer, ...]:
        """Return the offers on the devices that still answered when judged."""
        parts = [parts_of_offer(offer) for offer in offers]
        names = parts[0].keys()
        silent = {n: [p[n].row for p in parts if p[n].row.lost or p[n].checked] for n in names}
        lost = {n: rows for n, rows in silent.items() if len(rows) == len(parts)}
        whys = {n: next((r.failure or r.untimed for r in rows), "") for n, rows in lost.items()}
        if lost.keys() == names:
            raise nothing_judged(next(iter(whys.values())))
        self.gone |= whys
        return only_on_offers(names - lost.keys(), offers)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.watcher.stage(name)
        started = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


def _with_verdict(proven: Proven, known: bool = True) -> Engines:
    return proven.engines.model_copy(update={"verdict": proven.verdict if known else None})


def _nearest(offers: Sequence[Offer]) -> Offer | None:
    """Return the plan that passes on most devices; None if none passes on any."""
    passed = [sum(p.passed for p in parts_of_offer(offer).values()) for offer in offers]
    return offers[passed.index(max(passed))] if any(passed) else None


@contextmanager
def _naming(device: str) -> Iterator[None]:
    """Add the device's name to errors raised in the block."""
    try:
        yield
    except HalfwiseError as error:
        error.message = f"{device}: {error.message}"
        raise
