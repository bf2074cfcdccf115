"""An engine's plan, and what building it gave: on each device, and on the worst of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from statistics import fmean

from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.records import (
    FULL_RUNGS,
    BuildOutcome,
    EngineRung,
    Latency,
    NodeName,
    Precision,
    PrecisionProof,
)

TF32_ENGINE = "FP32, TF32 on"
"""Name of the FP32 engine with TF32 in the final table."""
LOW: tuple[Precision, ...] = ("fp16", "bf16")
"""Precision of a node requested in FP32 whose constraint was not honoured."""


@dataclass(frozen=True)
class EnginePlan:
    """What distinguishes an engine from others of the run, chance aside.

    Attributes:
        types: The types of its nodes, and the network with its repairs that it is of.
        rung: The lowest type that it may compute in.
        tf32: Whether FP32 nodes may be TF32 although neither settings nor types ask for it.
        level: Optimization level; None for that of the run.
        unconstrained: Whether the builder decides what is FP32. Weak typing only.
    """

    types: Plan
    rung: EngineRung
    tf32: bool = False
    level: int | None = None
    unconstrained: bool = False

    @property
    def keep(self) -> Nodes:
        """Compute nodes in FP32, BF16 or TF32; with INT8, those that are left out of INT8."""
        types = self.types
        return types.kept if types.quantisation is None else types.quantisation.nodes - types.int8

    @property
    def is_full(self) -> bool:
        """Whether nothing may be low: the FP32 engines."""
        return self.rung in FULL_RUNGS

    def keeping(self, keep: Nodes) -> "EnginePlan":
        """Return the plan that keeps other nodes: those that this one keeps too in their types."""
        bf16, tf32 = self.types.bf16 & keep, self.types.tf32 and bool(keep)
        return replace(self, types=replace(self.types, kept=keep, bf16=bf16, tf32=tf32))


@dataclass(frozen=True)
class Built:
    """One build of one plan on one device, measured on the calibration samples.

    Attributes:
        build: Outcome of the build.
        excess: Error relative to what the search may use; 1 is the limit. None if no engine ran.
        latency: Its speed; None if not measured.
        failure: Why the engine did not run; empty if it ran.
        lost: Whether the connection was lost after the build, which says nothing about the plan.
        proof: What it computes in; read if its error is too large, else None.
    """

    build: BuildOutcome
    excess: float | None = None
    latency: Latency | None = None
    failure: str = ""
    lost: bool = False
    proof: PrecisionProof | None = None

    @property
    def milliseconds(self) -> float:
        """Median time, ms; inf if not timed."""
        return inf if self.latency is None else self.latency.median_ms

    @property
    def shows_nothing(self) -> bool:
        """Whether a lost connection is all that is known about it."""
        return self.excess is None and (self.lost or self.build.status == "lost")

    @property
    def why(self) -> str:
        """Why it has no result; empty if it has one."""
        return self.failure or ("" if self.build.engine is not None else self.build.message)


@dataclass(frozen=True)
class Outcome:
    """One build of one plan on every device; it is as good as on its worst.

    Attributes:
        plan: The plan.
        step: Why it was tried, one sentence.
        parts: Its build on each device, by name; at least one.
    """

    plan: EnginePlan
    step: str
    parts: Mapping[str, Built]

    def on(self, names: Collection[str]) -> "Outcome":
        """Return its builds on some of its devices, at least one."""
        return replace(self, parts={n: part for n, part in self.parts.items() if n in names})

    @property
    def at(self) -> str:
        """The device where it is worst: where no engine runs, else where the error is largest."""

        def badness(name: str) -> float:
            excess = self.parts[name].excess
            return inf if excess is None else min(excess, 1e300)

        return max(self.parts, key=badness)

    @property
    def worst(self) -> Built:
        """Its build on that device."""
        return self.parts[self.at]

    @property
    def excess(self) -> float | None:
        """The largest error, see `Built`; None if no engine ran on a device."""
        return self.worst.excess

    @property
    def error(self) -> float:
        """Geometric mean of its errors: it falls if one device is mended; inf if one has none."""
        errors = [part.excess for part in self.parts.values()]
        return mean([inf if error is None else error for error in errors])

    @property
    def passed(self) -> bool:
        """Whether an engine on each device is within what the search may use."""
        return self.excess is not None and self.excess <= 1

    @property
    def milliseconds(self) -> float:
        """Geometric mean over the devices, so that no device's speed decides between plans."""
        return mean([part.milliseconds for part in self.parts.values()])

    @property
    def number(self) -> int:
        """Number of its build, on its worst device."""
        return self.worst.build.number

    @property
    def ignored(self) -> tuple[NodeName, ...]:
        """Kept nodes that the inspector shows in FP16 or BF16 although they were to have more."""
        nodes = () if self.worst.proof is None else self.worst.proof.nodes
        return tuple(n.node for n in nodes if n.precision in LOW and not n.suffices)

    @property
    def honoured(self) -> bool:
        """Whether the inspector shows every kept node in its type, or as vanished."""
        proof = self.worst.proof
        if proof is None or self.plan.rung == "int8":
            return False
        return all(n.suffices or n.precision == "other" for n in proof.nodes)


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean of times (≥ 0); inf if one is, or without any."""
    if not values or inf in values:
        return inf
    return exp(fmean(log(value) for value in values)) if min(values) > 0 else 0.0


def is_steady(builds: Sequence[Outcome]) -> bool:
    """Return whether a plan passes in more than half of its builds: fewer may be chance."""
    return 2 * sum(built.passed for built in builds) > len(builds)


def fastest(builds: Sequence[Outcome]) -> Outcome:
    """Return the fastest passing build of a plan, at least one; the nearest if none passes."""
    passed = [built for built in builds if built.passed]
    if passed:
        return min(passed, key=lambda built: built.milliseconds)
    return min(builds, key=lambda b: inf if b.excess is None else b.excess)
