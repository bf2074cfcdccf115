"""The result of a run on several devices: records, one verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from halfwise.fixing.engines.conclude import Proven
from halfwise.records import EngineFile, Engines, Failure, Verdict
from halfwise.reporting.reasons import under, with_failures


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
    return with_failures(shown.model_copy(update={"failures": (), "reasons": ()}), failures)


def _largest(verdict: Verdict) -> float:
    return max((output.rel_max for output in verdict.outputs.values()), default=0.0)
