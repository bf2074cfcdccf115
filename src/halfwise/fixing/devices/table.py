"""The result on several devices: what passes on each may be delivered, under one verdict."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from halfwise.fixing.devices.joint import joint, mean, parts_of
from halfwise.fixing.engines.attempts import Candidate, is_steady
from halfwise.fixing.engines.conclude import Proven
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.table import Offer, Table
from halfwise.records import EngineFile, EngineResult, Engines, Failure, Latency, Verdict
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
        proven: Result of each kind of device alone, if it was not lost.
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

    def as_built(self, built: Mapping[str, EngineFile | None]) -> "Together":
        """Return a copy with engines at the paths where they were built; local copies are removed.

        Args:
            built: What each kind of device delivers.
        """
        engines = {
            name: each.model_copy(update={"delivered": built[each.shares or name]})
            for name, each in self.engines.items()
            if each.delivered is not None
        }
        return replace(self, engines={**self.engines, **engines})

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
