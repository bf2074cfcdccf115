"""What a run found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.found import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.need import label
from halfwise.fixing.types import Types
from halfwise.graph.casts import Rewritten
from halfwise.metrics import Outputs
from halfwise.records import (
    Curve,
    Followed,
    Growth,
    Guard,
    KeptNode,
    Observations,
    Plan,
    Remark,
    Search,
    Verdict,
)


@dataclass(frozen=True)
class Fixed:
    """What `fix` found.

    Attributes:
        rewritten: The mixed model.
        observations: What the reference looked like.
        guards: Suspicions.
        growth: Error growth; empty where none was measured.
        followed: What it and trials show of where the error comes from; None without.
        plan: The plan.
        search: How it was found.
        baseline: Verdict on the model with everything low but what its file computes in FP32.
        verdict: Verdict on the mixed model.
        references: Reference outputs of the calibration samples.
        heldout: What was judged on, and what no search has seen.
        found: What the search found; its kept nodes are those of the plan.
        planner: Makes models and records of other plans, and predicts their errors.
        curve: The plans to choose from.
        evaluations: Number of assignments tried.
        stage_seconds: Time per stage.
        all_int8: Verdict on INT8 wherever it could be; None without INT8.
        rungs: What each type came to where several were asked for, most exact first; one of them is
            what the run delivers.
    """

    rewritten: Rewritten
    observations: Observations
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    followed: Followed | None
    plan: Plan
    search: Search
    baseline: Verdict
    verdict: Verdict
    references: Sequence[Outputs]
    heldout: HeldOut
    found: Found
    planner: Planner
    curve: Curve
    evaluations: int
    stage_seconds: dict[str, float]
    rungs: tuple["Fixed", ...] = ()
    all_int8: Verdict | None = None

    @property
    def without_int8(self) -> tuple[KeptNode, ...]:
        """What could have INT8, where it was tried and no node has it; else empty."""
        found = self.rungs[-1].plan if self.rungs else self.plan
        return () if found.int8 or self.plan.has_int8 else found.left_out

    @property
    def first(self) -> Planner:
        """What planned for the model as it was given, without repairs."""
        planner = self.planner
        while planner.original is not None:
            planner = planner.original
        return planner

    @property
    def seen(self) -> Observations:
        """The observations, with what repairs of the plan mended in the model as it was given."""
        answered = {guard for repair in self.plan.repairs for guard in repair.guards}
        evidence = self.first.evidence
        mended = tuple(guard for guard in evidence.guards if label(guard) in answered)
        tensors = {guard.tensor for guard in mended}
        before = tuple(one for one in evidence.observations.tensors if one.tensor in tensors)
        return self.observations.model_copy(update={"mended": mended, "before": before})

    def telling(self, *remarks: Remark) -> "Fixed":
        """Return it with more to know of its plan."""
        remarks = (*self.plan.remarks, *remarks)
        return replace(self, plan=self.plan.model_copy(update={"remarks": remarks}))

    def improves(self, below: "Fixed") -> bool:
        """Return whether it has INT8, passed, and is not predicted to cost as much as `below`."""
        own, its = (one.planner.price(one.found.kept) for one in (self, below))
        cheaper = own is None or its is None or own < its
        return self.verdict.passed and bool(self.plan.int8) and cheaper


@dataclass(frozen=True)
class Passed:
    """A plan that passed on held-out samples.

    Attributes:
        planner: Of the network with its repairs.
        found: The plan.
        types: What its kept nodes have instead of FP32.
        unrepaired: Plans of the network without them; None where none were made.
        undone: Remarks on those that were undone.
    """

    planner: Planner
    found: Found
    types: Types
    unrepaired: Curve | None
    undone: Sequence[Remark]
