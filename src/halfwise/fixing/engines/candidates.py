"""Plans as engines: what was tried, what may be tried next, and how often."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from halfwise.records import BuildOutcome, Latency, NodeName, Precision, PrecisionProof

Assignment = frozenset[NodeName]

LOW: tuple[Precision, ...] = ("fp16", "bf16")
"""What a node that was to be FP32 is in where its constraint was not honoured."""


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
        untimed: Why one that runs could not be timed; empty otherwise.
        tf32: Whether the search allowed TF32 for what is kept.
        lost: Whether the connection was lost while it ran, was timed or was fetched, which tells
            nothing of the plan.
        proof: What it computes in; looked at where it is off, None otherwise.
    """

    keep: Assignment
    step: str
    build: BuildOutcome
    excess: float | None = None
    latency: Latency | None = None
    failure: str = ""
    untimed: str = ""
    tf32: bool = False
    lost: bool = False
    proof: PrecisionProof | None = None

    @property
    def passed(self) -> bool:
        """Whether there is an engine that is within what the search may use."""
        return self.excess is not None and self.excess <= 1

    @property
    def untold(self) -> bool:
        """Whether a lost connection is all that is known of it."""
        return self.excess is None and (self.lost or self.build.status == "lost")

    @property
    def ignored(self) -> tuple[NodeName, ...]:
        """Kept nodes that the inspector shows in a lower type than FP32."""
        nodes = () if self.proof is None else self.proof.nodes
        return tuple(n.node for n in nodes if n.asked == "fp32" and n.precision in LOW)

    @property
    def honoured(self) -> bool:
        """Whether the inspector shows every kept node in FP32, or as one that vanished.

        In TF32 it is not what the emulation computes.
        """
        if self.proof is None:
            return False
        asked = [n for n in self.proof.nodes if n.asked == "fp32"]
        return all(n.precision in ("fp32", "other") for n in asked)


@dataclass(frozen=True)
class Chosen:
    """Result of the search.

    Attributes:
        best: The candidate to deliver; None where no engine passed.
        plain: The engine with nothing kept.
        excesses: Errors of all builds of the delivered plan.
        minimal: Whether no single kept node can be dropped, as builds or predictions show.
        predicted: Nodes of which a prediction alone shows that they are needed.
        notes: What to know of it.
    """

    best: Candidate | None
    plain: Candidate
    excesses: tuple[float, ...]
    minimal: bool
    predicted: Assignment
    notes: tuple[str, ...]


def passing_share(builds: Sequence[Candidate]) -> float:
    """Return which share of the builds of a plan, at least one, passes."""
    return sum(c.passed for c in builds) / len(builds)


def is_steady(builds: Sequence[Candidate]) -> bool:
    """Return whether a plan passes in more than half of its builds: less may be chance."""
    return passing_share(builds) > 1 / 2


@dataclass
class Budget:
    """Builds that may still be spent on new plans."""

    left: int

    def take(self) -> None:
        """Spend one."""
        self.left -= 1


class Moves(Protocol):
    """What the search may try next; each set with the reason to try it, likeliest first."""

    def culprits(
        self, failed: Candidate, /, *, idle: bool = False
    ) -> Iterable[tuple[str, Assignment]]:
        """Return sets of nodes to add to a plan whose engine is out of tolerance.

        `idle` tells that what it keeps changes nothing in its engine.
        """

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
