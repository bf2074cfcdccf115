"""A run on several devices: one search, one plan, and its engines on each.

What passes on each may be delivered, under one verdict.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.attempts import USUAL, Candidate, Chosen, is_steady
from halfwise.fixing.engines.builds import nothing_judged
from halfwise.fixing.engines.conclude import Ended, Proven
from halfwise.fixing.engines.device import (
    JointAttempts,
    JointPrediction,
    JointProposals,
    chosen_on,
    joint,
    mean,
    only_on,
    parts_of,
    search_on,
    side_by_side,
)
from halfwise.fixing.engines.run import EngineRun
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.table import Offer, Table, choose
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.scoring import HeldOut
from halfwise.fixing.stages import Stages
from halfwise.progress import Watcher
from halfwise.records import EngineResult, Engines, Failure, Latency, Verdict
from halfwise.reporting.remarks import under, with_failures


@dataclass(frozen=True)
class JointOffer(Offer):
    """Engines of one plan that may be delivered; its row is that of its worst device.

    Attributes:
        parts: The offer on each device, by name.
    """

    parts: Mapping[str, Offer] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether it is on all devices."""
        return all(part.known for part in self.parts.values())

    @property
    def passed(self) -> bool:
        """Whether it may be delivered on all devices."""
        return all(part.passed for part in self.parts.values())

    @property
    def milliseconds(self) -> float:
        """Geometric mean over the devices; inf if not timed on one."""
        return mean([part.milliseconds for part in self.parts.values()])


def joint_offer(parts: Mapping[str, Offer], candidate: Candidate) -> JointOffer:
    """Return the offer of a plan that is in every device's table, at least one."""

    def badness(name: str) -> tuple[bool, float]:
        part = parts[name]
        excess = part.candidate.excess
        return not part.passed, inf if excess is None else excess

    whose = parts[max(parts, key=badness)]
    shows = {part.row.shows for part in parts.values()}
    row = whose.row if len(shows) == 1 else whose.row.model_copy(update={"shows": None})
    return JointOffer(
        rung=whose.rung,
        candidate=candidate,
        limit=whose.limit,
        row=_joint_row(row, [part.row.latency for part in parts.values()]),
        allowed=all(part.allowed for part in parts.values()),
        checked=any(part.checked for part in parts.values()),
        parts=dict(parts),
    )


def _joint_row(row: EngineResult, times: Sequence[Latency | None]) -> EngineResult:
    """Return a row with the geometric mean of times, by round."""
    known = [latency for latency in times if latency is not None]
    if len(known) < len(times):
        return row.model_copy(update={"latency": None})
    rounds = zip(*(latency.medians for latency in known), strict=False)
    found = {
        "median_ms": mean([latency.median_ms for latency in known]),
        "medians": tuple(mean(each) for each in rounds),
        "device_bytes": max(latency.device_bytes for latency in known),
    }
    return row.model_copy(update={"latency": known[0].model_copy(update=found)})


class JointTable(Table):
    """Makes rows on every device."""

    def __init__(self, devices: Mapping[str, Table]) -> None:
        """Take the table of each device, by name."""
        self.devices = devices

    def with_tf32(self, tf32: Candidate) -> Offer:
        """Return the FP32 engines with TF32."""
        parts = parts_of(tf32)
        found = {name: table.with_tf32(parts[name]) for name, table in self.devices.items()}
        return joint_offer(found, tf32)

    def further(
        self, offers: Sequence[Offer], low: Sequence[Candidate], allowed: Collection[Candidate]
    ) -> tuple[Offer, ...]:
        """Return the offers with those of the low format: see `Table.further`."""
        found = {
            name: table.further(
                [parts_of_offer(o)[name] for o in offers],
                [parts_of(c)[name] for c in low],
                [parts_of(c)[name] for c in allowed],
            )
            for name, table in self.devices.items()
        }
        return _zipped([*(o.candidate for o in offers), *low], found)

    def raced(self, offers: Sequence[Offer], seconds: float = inf) -> tuple[Offer, ...]:
        """Return the offers with the times of rounds, which share the time: see `Table.raced`."""
        share = seconds / len(self.devices)
        found = {
            name: table.raced([parts_of_offer(o)[name] for o in offers], share)
            for name, table in self.devices.items()
        }
        return _zipped([o.candidate for o in offers], found)


def only_on_offers(names: Container[str], offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers restricted to the named devices; they include at least one."""
    found = []
    for offer in offers:
        parts = {n: part for n, part in parts_of_offer(offer).items() if n in names}
        candidate = joint({n: part.candidate for n, part in parts.items()})
        found.append(joint_offer(parts, candidate))
    return tuple(found)


def own_offer(offer: Offer, name: str, search: EngineSearch) -> Offer:
    """Return one device's offer, marked if it passed there but not on all devices.

    `search` is that device's view.
    """
    part = parts_of_offer(offer)[name]
    builds = search.tried.get(part.candidate.plan, ())
    steady = bool(builds) and is_steady(builds) and part.candidate.keep >= search.ruled
    here = replace(part, allowed=part.allowed or steady)
    return replace(here, elsewhere=here.passed and not offer.passed)


def parts_of_offer(offer: Offer) -> Mapping[str, Offer]:
    """Return the offers by device."""
    assert isinstance(offer, JointOffer)
    return offer.parts


def _zipped(
    candidates: Sequence[Candidate], found: Mapping[str, Sequence[Offer]]
) -> tuple[Offer, ...]:
    return tuple(
        joint_offer({name: offers[place] for name, offers in found.items()}, candidate)
        for place, candidate in enumerate(candidates)
    )


@dataclass(frozen=True)
class Together:
    """The result of a run on several devices.

    Attributes:
        engines: The record of each device, by its name.
        proven: Result of each device alone, if it was not lost.
    """

    engines: Mapping[str, Engines]
    proven: Mapping[str, Proven]

    @property
    def refuted(self) -> bool:
        """Whether engines on each device refute every plan that was built."""
        return all(proven.refuted for proven in self.proven.values())

    @property
    def one(self) -> Proven:
        """The result as if it were one device: the verdict of all, the plan of each."""
        first = next(iter(self.proven.values()))
        verdicts = {n: e.verdict for n, e in self.engines.items() if e.verdict is not None}
        lost = {n: e.lost for n, e in self.engines.items() if e.lost}
        return replace(first, verdict=all_of(verdicts, lost))

    def in_order(self, names: Iterable[str]) -> "Together":
        """Return a copy with the devices in the order of the command, lost ones last.

        The first one represents the run if a single one has to.
        """
        order = sorted(names, key=lambda name: bool(self.engines[name].lost))
        return replace(self, engines={name: self.engines[name] for name in order})


def all_of(verdicts: Mapping[str, Verdict], gone: Mapping[str, str]) -> Verdict:
    """Return the verdict on all devices: passed if all pass and none is lost.

    Args:
        verdicts: Verdicts of the judged devices, by name; at least one.
        gone: Why the others were lost.
    """
    failed = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    shown = max((failed or verdicts).values(), key=_largest)
    if not failed and not gone:
        return shown
    failures = [f for name, v in failed.items() for f in under("device", name, v.failures)]
    failures += [
        Failure(kind="device-lost", names={"device": name, "why": why})
        for name, why in gone.items()
    ]
    return with_failures(shown.model_copy(update={"failures": ()}), failures)


def _largest(verdict: Verdict) -> float:
    return max((output.rel_max for output in verdict.outputs.values()), default=0.0)


@dataclass
class DevicesRun:
    """Finds one plan for several devices.

    Attributes:
        runs: The run of each device, by name, in the order of the command; at least one.
        watcher: Receives progress.
        gone: Why devices were lost.
    """

    runs: dict[str, EngineRun]
    watcher: Watcher
    gone: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with the first stage."""
        self.stages = Stages(self.watcher)

    def reference(self) -> Together | None:
        """Build and judge the FP32 engine of each device; return the result if one is wrong.

        Raises:
            HalfwiseError: as for `EngineRun.reference`; the message names the device.
        """
        for run in self.runs.values():
            run.builds.over = self._over
        self._on_each(EngineRun.reference)
        if all(run.right for run in self.runs.values()):
            return None
        proven = {name: run.refused() for name, run in self.runs.items()}
        wrong = {name: each for name, each in proven.items() if not self.runs[name].right}
        return Together({n: _with_verdict(p, n in wrong) for n, p in proven.items()}, wrong)

    def tf32(self) -> None:
        """Build the FP32 engine with TF32 on each device, and report where it passes."""
        self._on_each(EngineRun.tf32)

    def _on_each(self, do: Callable[[EngineRun], object]) -> None:
        """Do something on all devices at once; an error names its device."""

        def do_on(name: str) -> None:
            with _naming(name):
                do(self.runs[name])

        workers = {name: run.worker for name, run in self.runs.items()}
        side_by_side({name: partial(do_on, name) for name in self.runs}, workers)

    def _over(self) -> bool:
        """Return whether Ctrl-C came when each device had a proven engine."""
        return all(run.early.over for name, run in self.runs.items() if name not in self.gone)

    def prove(self, fixed: Fixed) -> Together:
        """Search from the plan of `fixed`, judge the result on each device, compare.

        Raises:
            EngineFailed: all devices were lost before any of their engines was judged.
        """
        heldout = fixed.heldout.for_watcher(self.watcher)
        with self.stages("engines"):
            search, attempts = self._search(fixed, heldout)
            tables = {n: Table(run, fixed.planner, heldout) for n, run in self.runs.items()}
            exact = self._exact(attempts, tables)
            chosen = search.run(fixed.found.kept)
            while chosen.best is not None and self._joins(chosen.best, heldout, attempts):
                chosen = search.again(chosen.best.keep, attempts.again)
            tf32 = self._with_tf32(attempts)
            search.end(fixed.planner.budget, tf32=tf32 is not None)
        with self.stages("verdict"):
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
        self._bands = {name: prediction for name, (_, _, prediction) in each.items()}
        first = next(iter(self._own.values()))
        # A device's needs are found by its own builds, one device after another.
        budget = replace(first.budget, builds=first.budget.builds * len(each), over=self._over)
        own = {name: attempts for name, (_, attempts, _) in each.items()}
        attempts = JointAttempts(own, self._bands, self.gone)
        proposing = {
            name: replace(search.proposals, budget=budget) for name, (search, _, _) in each.items()
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
        found = {
            n: self.runs[n].with_tf32(own, self._bands[n]) for n, own in attempts.devices.items()
        }
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
        proven = {n: self.runs[n].brought(each, paths[n]) for n, each in found.proven.items()}
        engines = {n: _with_verdict(each) for n, each in proven.items()}
        return Together({**found.engines, **engines}, proven)

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
