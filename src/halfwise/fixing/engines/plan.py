"""An engine's plan, and what building it gave: on each device, and on the worst of them."""

from collections.abc import Collection, Mapping, Sequence
from math import inf, prod

from msgspec import Struct

from halfwise.fixing.engines.measure import with_shapes
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.records import (
    FULL_RUNGS,
    EngineResult,
    EngineRung,
    NodeName,
    Precision,
    Verdict,
    replace,
)

LOW: tuple[Precision, ...] = ("fp16", "bf16")
"""Precision of a node requested in FP32 whose constraint was not honoured."""


class EnginePlan(Struct, frozen=True):
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


class Outcome(Struct, frozen=True):
    """One build of one plan on every device; it is as good as on its worst.

    Attributes:
        plan: The plan.
        rows: Its engine on each device, by name, at least one.
        limit: The largest error, relative to what the search may use, with which it passes.
        allowed: Whether it may be delivered at all: not if the user's rules forbid it, or it passes
            by chance.
    """

    plan: EnginePlan
    rows: Mapping[str, EngineResult]
    limit: float = 1.0
    allowed: bool = True

    def on(self, name: str) -> "Outcome":
        """Return its engine on one of its devices."""
        return replace(self, rows={name: self.rows[name]})

    @property
    def worst(self) -> EngineResult:
        """Its engine where it is worst: where none runs, else where the error is largest."""

        def badness(row: EngineResult) -> float:
            return inf if row.excess is None else min(row.excess, 1e300)

        return max(self.rows.values(), key=badness)

    @property
    def excess(self) -> float | None:
        """The largest error, see `EngineResult`; None if no engine ran on a device."""
        return self.worst.excess

    @property
    def passed(self) -> bool:
        """Whether an engine on each device is within the limit on the calibration samples."""
        return self.excess is not None and self.excess <= self.limit

    @property
    def milliseconds(self) -> float:
        """Geometric mean over the devices, so that no device's speed decides between plans."""
        return prod(row.milliseconds for row in self.rows.values()) ** (1 / len(self.rows))

    @property
    def number(self) -> int:
        """Number of its build, on its worst device."""
        return self.worst.build.number

    @property
    def ignored(self) -> tuple[NodeName, ...]:
        """Kept nodes that the inspector shows in FP16 or BF16 although they were to have more."""
        nodes = () if self.worst.proof is None else self.worst.proof.nodes
        return tuple(n.node for n in nodes if n.precision in LOW and not n.suffices)

    # --- in the final table --------------------------------------------------------------------

    def verdict(self, name: str) -> Verdict | None:
        """Return that of a device: on held-out samples, and at the shapes of every profile."""
        row = self.rows[name]
        return None if row.verdict is None else with_shapes(row.verdict, row.shapes)

    @property
    def may_pass(self) -> bool:
        """Whether it is allowed, and within its limit on each device."""
        return self.allowed and self.passed

    @property
    def deliverable(self) -> bool:
        """Whether it may be delivered, judged at all shapes on each of its devices."""
        return self.may_pass and all(map(is_right, self.rows.values()))


def is_right(row: EngineResult) -> bool:
    """Return whether an engine was judged, and passed, at the shapes of every profile too."""
    shapes = [shape.verdict for shape in row.shapes if shape.verdict is not None]
    return row.verdict is not None and row.verdict.within and all(v.passed for v in shapes)


def is_steady(builds: Collection[Outcome]) -> bool:
    """Return whether a plan passes in more than half of its builds: fewer may be chance."""
    return 2 * sum(built.passed for built in builds) > len(builds)


def fastest(builds: Sequence[Outcome]) -> Outcome:
    """Return the fastest passing build of a plan, at least one; the nearest if none passes."""
    passed = [built for built in builds if built.passed]
    if passed:
        return min(passed, key=lambda built: built.milliseconds)
    return min(builds, key=lambda b: inf if b.excess is None else b.excess)
