"""The ladder: the result of each type that a run tried, most exact first."""

from typing import Literal, get_args

from halfwise.records.judged import Errors
from halfwise.records.outcomes import Latency, TimeRatio
from halfwise.records.recognised import TaskScore
from halfwise.records.record import Failure, Record

EngineRung = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
"""The lowest type that a plan or an engine may compute in; the ladder, most exact first. A plan
that keeps nodes in FP32 belongs to its lowest type."""
FULL_RUNGS: tuple[EngineRung, ...] = ("fp32", "tf32")
"""Rungs of engines without a low format."""

RangeMethod = Literal["minmax", "entropy", "percentile"]
"""How a tensor's INT8 range follows from the samples. "minmax": the whole range; "entropy": the
part that loses least information (relative entropy of histograms); "percentile": all but the rarest
magnitudes."""
RANGE_METHODS: tuple[RangeMethod, ...] = get_args(RangeMethod)


RightBy = Literal["labels", "expected"]
"""What FP32 was checked against: labels of the inputs, or the framework's outputs."""


class LadderRung(Record):
    """Result of one rung of a run.

    Attributes:
        rung: The lowest type.
        passed: Whether its plan, or its engine, passed on held-out samples; for FP32, whether it is
            right according to `by`. None if not judged, and if nothing is INT8.
        kept: Compute nodes in FP32 (or BF16 beside FP16).
        left_out: Nodes for which INT8 is not enough, so they use the low format.
        candidates: Number of nodes that could have the rung's type.
        error: Error on the calibration samples relative to what is allowed; with a metric, 1 plus
            the drop beyond its allowance. None if not measured.
        heldout: The same on held-out samples.
        errors: Absolute errors on held-out samples, or of its engine; None for FP32 without an
            engine, and in older records.
        scores: Task metrics on held-out samples.
        cost: Predicted cost relative to everything low; None if unknown.
        low_share: Share of multiply-accumulates in the rung's type; None if unknown.
        bytes: Size of its file with weights, or of its engine; None if neither was made.
        latency: Speed of its engine; None without one.
        beside: Its time relative to the previous rung, from interleaved runs; None without one.
        evaluations: Number of plans tried for it.
        by: What FP32 was checked against; None for other rungs, and if it was not judged.
        failures: Why it did not pass; those of the run's verdict if that is about this rung.
        chosen: Whether it is the fastest that passed, by engine times, otherwise by predicted cost.
    """

    rung: EngineRung
    passed: bool | None
    kept: int = 0
    left_out: int = 0
    candidates: int = 0
    error: float | None = None
    heldout: float | None = None
    errors: Errors | None = None
    scores: tuple[TaskScore, ...] = ()
    cost: float | None = None
    low_share: float | None = None
    bytes: int | None = None
    latency: Latency | None = None
    beside: TimeRatio | None = None
    evaluations: int = 0
    by: RightBy | None = None
    failures: tuple[Failure, ...] = ()
    chosen: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing in its plan is INT8 although that was tried: it equals the plan below."""
        return self.rung == "int8" and self.passed is None and self.left_out == self.candidates
