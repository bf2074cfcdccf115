"""What a plan is worth: its cost against that of everything low, and of everything FP32.

Everything low is the mixed model that keeps nothing: what takes no low type is FP32 in it too, and
so is what moves data from an FP32 input to an FP32 output.
"""

from halfwise.records.record import Record

LEAST_SAVED = 0.25
"""A plan that saves less than this share of what everything low would save gains little: a
convention. Such a plan costs more work than it brings; nodes that are few and small keep 0.9."""


class NearPlan(Record):
    """A plan that was evaluated, but is out of tolerance.

    Attributes:
        kept: Number of compute nodes in FP32.
        cost: Predicted cost over that of everything low.
        error: Error on the calibration samples over what is allowed: 1 just passes, up to it only
            the margin is missing. With a metric, 1 plus what it falls beyond its allowance. Finite.
    """

    kept: int
    cost: float
    error: float


class Worth(Record):
    """What a plan is worth. Costs are over that of everything low.

    Attributes:
        cost: Predicted cost of the plan.
        fp32: Predicted cost of everything in FP32.
        measured: Time of the delivered engine over that of the engine with everything low; None
            without both, and without the FP32 engine's.
        measured_fp32: Likewise, of the FP32 engine without TF32.
        nearest: The plan with the smallest error, of those that the search evaluated and that are
            worth having; None where this plan is, or where there was none. Where this one costs
            more than is required, of those that are predicted to cost no more than that.
        metric: A built-in metric that the outputs look made for; None where none does.
    """

    cost: float
    fp32: float
    measured: float | None = None
    measured_fp32: float | None = None
    nearest: NearPlan | None = None
    metric: str | None = None

    @property
    def ratio(self) -> float:
        """Cost over that of everything low: measured, or else predicted."""
        return self.cost if self.measured is None else self.measured

    @property
    def fp32_ratio(self) -> float:
        """What `ratio` is for everything in FP32."""
        return self.fp32 if self.measured_fp32 is None else self.measured_fp32

    @property
    def saved(self) -> float:
        """Share of what everything low would save that the plan saves, in [0, 1].

        Where everything low saves nothing, 1 if the plan costs less than FP32, else 0.
        """
        won, possible = self.fp32_ratio - self.ratio, self.fp32_ratio - 1
        return min(1.0, max(0.0, won / possible)) if possible > 0 else float(won > 0)

    @property
    def gains(self) -> bool:
        """Whether the plan saves enough to be worth having."""
        return self.saved >= LEAST_SAVED
