"""Plans as engines: what was tried, what may be tried next, and how often."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from halfwise.records import BuildOutcome, Latency, NodeName

Assignment = frozenset[NodeName]


@dataclass(frozen=True)
class Candidate:
    """One build of one plan, measured on the calibration samples.

    Attributes:
        keep: Compute nodes to be FP32.
        step: Why it was tried, one sentence.
        build: What came of the build.
        excess: Error over what the search may use; 1 is the limit. None without an engine that ran.
        latency: Its speed; None where it was not measured.
        failure: Why there is an engine that did not run; empty otherwise.
        tf32: Whether the search allowed TF32 for what is kept.
        lost: Whether the connection was lost while it ran, which tells nothing of the plan.
    """

    keep: Assignment
    step: str
    build: BuildOutcome
    excess: float | None = None
    latency: Latency | None = None
    failure: str = ""
    tf32: bool = False
    lost: bool = False

    @property
    def passed(self) -> bool:
        """Whether there is an engine that is within what the search may use."""
        return self.excess is not None and self.excess <= 1


@dataclass
class Budget:
    """Builds that may still be spent on new plans."""

    left: int

    def take(self) -> None:
        """Spend one."""
        self.left -= 1


class Moves(Protocol):
    """What the search may try next; each set with the reason to try it, likeliest first."""

    def culprits(self, failed: Candidate, /) -> Iterable[tuple[str, Assignment]]:
        """Return sets of nodes to add to a plan whose engine is out of tolerance."""

    def unbuildable(self, failed: Candidate, /) -> Iterable[tuple[str, Assignment]]:
        """Return other sets to keep instead of one that has no engine."""

    def gains_from_tf32(self, keep: Assignment, /) -> bool:
        """Return whether TF32 is forbidden so far, and would make a kept node faster."""

    def wider(self, keep: Assignment, /) -> Iterable[tuple[str, Assignment]]:
        """Return wider islands around a kept set, which break fewer fusions."""


class Forecast(Protocol):
    """What emulation says of plans that are not built yet."""

    def learn(self, plain: BuildOutcome, /) -> None:
        """Take from the engine with nothing kept what it computes in FP32 by itself."""

    def enough(self, keep: Assignment, /) -> bool | None:
        """Return whether a plan passes by the emulation with fusion; None when time is up."""

    def beyond(self, keep: Assignment, limit: float, /) -> bool:
        """Return whether both emulations predict an error beyond `limit`; false when time is up."""

    def error(self, keep: Assignment, /) -> float:
        """Return the smaller error that both predict, 1 being the limit; 0 when time is up."""

    def excess(self, keep: Assignment, /) -> float:
        """Return the error that the emulation with fusion predicts, on all samples."""
