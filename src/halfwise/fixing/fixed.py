"""What a run found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.found import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.rule import place
from halfwise.fixing.scoring import Scoring
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
        observations: Observations of the reference.
        guards: Guards.
        growth: Error growth; empty if not measured.
        followed: What growth and trials show about the source of the error; None if not followed.
        plan: The plan.
        search: Record of the search.
        baseline: Verdict on the model with everything low, except what its file computes in FP32.
        verdict: Verdict on the mixed model.
        references: Reference outputs of the calibration samples.
        scoring: Measures plans.
        found: Result of the search; its kept nodes are the plan's.
        curve: Plans to choose from.
        evaluations: Assignments tried.
        stage_seconds: Seconds per stage.
        all_int8: Verdict on INT8 wherever possible; None without INT8.
        rungs: Results of each type if several were requested, most exact first; the run delivers
            one of them.
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
    scoring: Scoring
    found: Found
    curve: Curve
    evaluations: int
    stage_seconds: dict[str, float]
    rungs: tuple["Fixed", ...] = ()
    all_int8: Verdict | None = None

    @property
    def planner(self) -> Planner:
        """What builds models and records of other plans, and predicts their errors."""
        return self.scoring.planner

    @property
    def heldout(self) -> HeldOut:
        """The samples that judged, and those no search has seen."""
        return self.scoring.heldout

    @property
    def without_int8(self) -> tuple[KeptNode, ...]:
        """What could be INT8, if INT8 was tried and no node has it; else empty."""
        found = self.rungs[-1].plan if self.rungs else self.plan
        return () if found.int8 or self.plan.has_int8 else found.left_out

    @property
    def first(self) -> Planner:
        """The planner of the model as given, without repairs."""
        planner = self.planner
        while planner.original is not None:
            planner = planner.original
        return planner

    @property
    def seen(self) -> Observations:
        """The observations, including what the plan's repairs resolved in the model as given."""
        answered = {guard for repair in self.plan.repairs for guard in repair.guards}
        evidence = self.first.evidence
        mended = tuple(guard for guard in evidence.guards if place(guard) in answered)
        tensors = {guard.tensor for guard in mended}
        before = tuple(one for one in evidence.observations.tensors if one.tensor in tensors)
        return self.observations.model_copy(update={"mended": mended, "before": before})

    def telling(self, *remarks: Remark) -> "Fixed":
        """Return a copy with more facts about its plan."""
        remarks = (*self.plan.remarks, *remarks)
        return replace(self, plan=self.plan.model_copy(update={"remarks": remarks}))

    def improves(self, below: "Fixed") -> bool:
        """Return whether it has INT8, passed, and is predicted to be cheaper than `below`."""
        own, its = (one.planner.price(one.found.kept) for one in (self, below))
        cheaper = own is None or its is None or own < its
        return self.verdict.passed and bool(self.plan.int8) and cheaper


@dataclass(frozen=True)
class Passed:
    """A plan that passed on held-out samples.

    Attributes:
        planner: For the network with its repairs.
        found: The plan.
        types: Types of its kept nodes in place of FP32.
        unrepaired: Plans of the network without repairs; None if none were made.
        undone: Remarks on undone repairs.
    """

    planner: Planner
    found: Found
    types: Types
    unrepaired: Curve | None
    undone: Sequence[Remark]
