"""The ladder: what each type that a run tried came to, most exact first."""

from typing import Literal, get_args

from halfwise.records.judged import Errors
from halfwise.records.recognised import TaskScore
from halfwise.records.record import Failure, Record
from halfwise.records.timed import Latency, TimeRatio

EngineRung = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
"""The lowest type that a plan or an engine may compute in; the ladder, most exact first. A plan
that keeps nodes in FP32 belongs to its lowest type."""
FULL_RUNGS: tuple[EngineRung, ...] = ("fp32", "tf32")
"""Rungs of engines that compute nothing in a low format."""

RangeMethod = Literal["minmax", "entropy", "percentile"]
"""How a tensor's INT8 range follows from what samples showed: all of it; the part that loses least
information (relative entropy of histograms); all but the rarest magnitudes."""
RANGE_METHODS: tuple[RangeMethod, ...] = get_args(RangeMethod)


RightBy = Literal["labels", "expected"]
"""What FP32 was found right by: labels of the inputs, or what the framework computes on them."""


class LadderRung(Record):
    """What one rung of a run came to.

    Attributes:
        rung: The lowest type.
        passed: Whether its plan, or its engine, passed on held-out samples; of FP32, whether it is
            right by `by`. None where it was not judged, and where nothing has INT8.
        kept: Compute nodes in FP32 (or BF16 beside FP16).
        left_out: Nodes that INT8 is not enough for, which have the low format instead.
        candidates: How many nodes could have the rung's type.
        error: Error on the calibration samples over what is allowed; with a metric, 1 plus what it
            falls beyond its allowance. None where it was not measured.
        heldout: The same on held-out samples.
        errors: Absolute errors there, or of its engine; None of FP32 without one, and in records
            before this field.
        scores: Task metrics on held-out samples.
        cost: Predicted cost over that of everything low; None where it is not known.
        low_share: Share of the multiply-accumulates that have the rung's type; None likewise.
        bytes: Size of its file with weights, or of its engine; None where none was made.
        latency: Speed of its engine; None without one.
        beside: Its time over that of the rung before it, from interleaved runs; None without.
        evaluations: Plans that were tried for it.
        by: What FP32 was judged by; None of other rungs, and where it was not judged.
        failures: Why it did not pass; those of the verdict of the run where that is of this rung.
        chosen: Whether it is the fastest that passed, by the times of engines, else by predicted
            cost.
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
        """Whether nothing of its plan has INT8, though that was tried: it is the plan below."""
        return self.rung == "int8" and self.passed is None and self.left_out == self.candidates
