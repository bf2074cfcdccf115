"""What a run on several devices came to: records, one verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from halfwise.fixing.engines.conclude import Proven
from halfwise.records import EngineFile, Engines, Failure, Verdict
from halfwise.reporting.reasons import under, with_failures


@dataclass(frozen=True)
class Together:
    """What a run on several devices came to.

    Attributes:
        engines: The record of each device, by its name.
        proven: What each kind of device comes to by itself, where it was not lost.
    """

    engines: Mapping[str, Engines]
    proven: Mapping[str, Proven]

    @property
    def refuted(self) -> bool:
        """Whether engines of each device speak against every plan that was built."""
        return all(proven.refuted for proven in self.proven.values())

    @property
    def one(self) -> Proven:
        """As if it was one device: its verdict is that of all, its plan that of each."""
        first = next(iter(self.proven.values()))
        verdicts = {n: e.verdict for n, e in self.engines.items() if e.verdict is not None}
        lost = {n: e.lost for n, e in self.engines.items() if e.lost}
        return replace(first, verdict=all_of(verdicts, lost))

    def as_built(self, built: Mapping[str, EngineFile | None]) -> "Together":
        """Return the same with engines where they were built, for what lies here goes.

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
        """Return the same with the devices in the order of the command, those that are lost last.

        The first stands for the run where one has to.
        """
        order = sorted(names, key=lambda name: bool(self.engines[name].lost))
        return replace(self, engines={name: self.engines[name] for name in order})


def all_of(verdicts: Mapping[str, Verdict], gone: Mapping[str, str]) -> Verdict:
    """Return the verdict on all devices: passed where each is, and none is lost.

    Args:
        verdicts: Those of the devices that were judged, by name; at least one.
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
    return with_failures(shown.model_copy(update={"failures": (), "reasons": ()}), failures)


def _largest(verdict: Verdict) -> float:
    return max((output.rel_max for output in verdict.outputs.values()), default=0.0)
