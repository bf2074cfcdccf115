"""Which nodes stay in FP32, why, how that was found, and what it is worth.

Costs are over that of everything low: the mixed model that keeps nothing. What takes no low type is
FP32 in it too, and so is what moves data from an FP32 input to an FP32 output.
"""

from typing import Literal

from pydantic import Field

from halfwise.records.ladder import RangeMethod
from halfwise.records.record import GuardKind, NodeName, Record, Remark, TensorName
from halfwise.records.repair import Repair

LowFormat = Literal["fp16", "bf16"]
"""Names of `formats.LOW_FORMATS`."""

KeptBy = Literal["search", "rule", "model", "engine"]
"""Who decided that a node stays in FP32.

"search": trials; "rule": an option of the user; "model": its file, which computes the node in FP32
among lower ones; "engine": a build that needed it, or was faster with it.
"""


CutStage = Literal[
    "observe",
    "emulate",
    "repair",
    "search",
    "certify",
    "growth",
    "origin",
    "notes",
    "worth",
    "curve",
]
"""A stage that the time budget ended early or left out.

"observe": sums, roundings, distributions inside, or all of it on samples that joined; "emulate":
which samples are worst; "repair": repairs that were not tried; "search" and "certify": smaller
plans; "growth" and "origin": where an error comes from that no guard explains; "notes": what the
margin or another tolerance would change; "worth": cheaper plans; "curve": other plans to choose
from.
"""


class Because(Record):
    """Facts on why a node stays in FP32, beside who decided it and what lowering it does.

    Attributes:
        guard: Position in `Run.guards` of the guard that names the cause.
        rule: The rule of the user, as written on the command line; "" for none.
        reads_beyond: Whether that rule is one about ranges, and met by a tensor that it reads.
        nonfinite: Whether new NaN or infinities appear when it alone returns to the low format.
        at_headroom: Whether a tensor at it was emulated with a smaller range, for the headroom.
        contribution: What it or its group adds to the error alone, over what the search allows.
        opposed: Rules that lower other nodes, where all that is free in FP32 fails; else None.
    """

    guard: int | None = None
    rule: str = ""
    reads_beyond: bool = False
    nonfinite: bool = False
    at_headroom: bool = False
    contribution: float | None = None
    opposed: tuple[str, ...] | None = None


BudgetEnd = Literal["work", "seconds", "interrupt"]
"""What ended a stage: the work was spent, which is so in every run, the seconds, or Ctrl-C."""


class KeptNode(Record):
    """A node that stays in FP32, or in the low format where others have INT8.

    Attributes:
        node: Name of the node.
        op: Operator type.
        precision: What it has instead of the low format, or, with "fp16", of INT8.
        reason: One sentence with numbers, and the usual repair, for readers of the record: the
            report makes both of `because`. "" before a run is put on record.
        why: The sentence alone; empty in records before this field.
        kept_by: Who decided it; "search" in records before this field.
        guard: Kind of the guard that names the cause, if any.
        error_without: Excess over the search tolerance when this node alone returns to the low
            format: 1 is the tolerance itself, and a lower bound, since the first failing sample
            ends the trial. With a metric, 1 plus what it falls beyond its allowance. None where
            it was not measured.
        unknown: Whether nothing is known of it: no guard, no rule, and not lowered before the
            search ended. False in records before this field.
        because: Why, as facts; None in records before this field.
    """

    node: NodeName
    op: str
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    reason: str = ""
    why: str = ""
    kept_by: KeptBy = "search"
    guard: GuardKind | None = None
    error_without: float | None = None
    unknown: bool = False
    because: Because | None = None


class Origin(Record):
    """Where most of an error is born, as a trial showed.

    Attributes:
        node: The node at which the error appears.
        kept: What was FP32 in that trial: the node, and what it needed of its neighbours.
        error: Error of the outputs with `kept` in FP32 too, over what the search allows: the
            largest on any of the samples that `Followed.samples` counts.
    """

    node: NodeName
    kept: tuple[NodeName, ...]
    error: float


class Followed(Record):
    """Where the error comes from that no guard explains, as far as it was found.

    Attributes:
        kept: What was FP32 while it was followed: the kept nodes that guards or rules explain.
        error: Error of the outputs then, over what the search allows (with a metric: over what the
            default tolerance allows), on the worst of the samples; inf with new NaN or infinities.
        tried: Nodes that were tried as the origin, those first where the relative error is largest.
        origin: The first of them that halves the error when it is FP32, on all samples (see
            `halfwise.fixing.propagation`); None where none does.
        accumulates: Whether no node makes most of what reaches the outputs by relative errors.
        samples: On how many samples the errors are the largest; 1 in records before this field.
        out_of_time: Whether the time budget ended the trials.
    """

    kept: tuple[NodeName, ...]
    error: float
    tried: tuple[NodeName, ...]
    origin: Origin | None
    accumulates: bool
    samples: int = 1
    out_of_time: bool = False


class AdjustedConstant(Record):
    """A constant that is stored at other values than rounding gives.

    Finite values beyond the low format's range are stored at its largest, and a single value that
    would become zero at its smallest (see `Format.store_constant`).

    Attributes:
        name: Its name.
        minimum: Its smallest finite value in the model.
        maximum: Its largest finite value in the model.
        elements: How many values are adjusted.
        consumers: The low nodes that read it; none where it is only an output.
    """

    name: TensorName
    minimum: float
    maximum: float
    elements: int
    consumers: tuple[NodeName, ...]


class Unsupported(Record):
    """A node that must be FP32: its schema or halfwise offers no low-precision form."""

    node: NodeName
    op: str
    reason: str


class Plan(Record):
    """Which nodes stay in FP32, and why.

    Attributes:
        low: Name of the low format.
        keep: The compute nodes that stay in FP32, in graph order.
        data_movement: Nodes that only move data between kept nodes, carried in FP32 for free.
        constants: Constants stored at other values than rounding gives.
        unsupported: Nodes that must be FP32, by schema or since ONNX does not know them; not kept.
        minimal: True where removing any kept node was seen to fail the search tolerance on the
            calibration samples.
        candidates: Number of compute nodes that could be low.
        casts: Number of Cast nodes that the rewriter inserts.
        lowered: Nodes that user rules lowered → the rule.
        int8: The nodes that read their inputs through pairs of Q and DQ; none in records before.
        left_out: Those that could have INT8 and have the low format, since it is not enough.
        ranges: How ranges of INT8 were found; None without it, and where a file brought them.
        repairs: Those of the network whose nodes these are, in the order in which they are made;
            none in records before this field.
        notes: Sentences about the plan as a whole, for readers of the record; empty before a run is
            put on record.
        remarks: The same as facts; none in records before this field.
    """

    low: LowFormat
    keep: tuple[KeptNode, ...]
    data_movement: tuple[NodeName, ...]
    constants: tuple[AdjustedConstant, ...]
    unsupported: tuple[Unsupported, ...]
    minimal: bool
    candidates: int
    casts: int
    lowered: dict[NodeName, str] = Field(default_factory=dict)
    int8: tuple[NodeName, ...] = ()
    left_out: tuple[KeptNode, ...] = ()
    ranges: RangeMethod | None = None
    repairs: tuple[Repair, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def has_int8(self) -> bool:
        """Whether nodes were tried in INT8, whatever has it."""
        return bool(self.int8 or self.left_out)

    @property
    def searched(self) -> tuple[KeptNode, ...]:
        """What its search kept: `left_out` where INT8 was tried, else `keep`."""
        return self.left_out if self.has_int8 else self.keep

    @property
    def own(self) -> tuple[KeptNode, ...]:
        """The kept nodes that the user's file itself computes in FP32 among lower ones."""
        return tuple(kept for kept in self.keep if kept.kept_by == "model")


class Search(Record):
    """How the plan was found.

    Attributes:
        tolerance_factor: Fraction of the tolerance that the search had to stay within.
        calibration: Identifiers of the samples the search used, joined ones last.
        joined: Held-out samples that failed and joined the calibration.
        seconds_budget: The most seconds that all optional work could take.
        exhausted: Whether the budget ended the search.
        steps: What the search did, one line each, for readers of the record.
        remarks: The same as facts; none in records before this field.
        cut: The stages that the budget ended or left out; none in records before this field.
        budget: The most work that was allowed, in inferences over the calibration samples that the
            run began with; None in records before this field.
        spent: The work done, likewise; that which must be done counts too.
        late: Runs of a sample that the search took for failed, because they took longer than one
            may (--run-timeout); then another run may give another plan.
        ended_by: What ended stages; where more than work did, another run may give another plan.
        r2: R² of errors that were predicted of plans, by their logarithms, on those that were tried
            and nothing was fitted to; below 0.8 predictions chose none. None where none was made.
        seen: The first 16 digits of the SHA-256 of what each sample held that the search used, or
            one before it that the plan comes from; none in records before this field.
    """

    tolerance_factor: float
    calibration: tuple[str, ...]
    joined: tuple[str, ...]
    seconds_budget: float
    exhausted: bool
    steps: tuple[str, ...]
    cut: tuple[CutStage, ...] = ()
    remarks: tuple[Remark, ...] = ()
    budget: float | None = None
    spent: float | None = None
    ended_by: tuple[BudgetEnd, ...] = ()
    late: int = 0
    r2: float | None = None
    seen: tuple[str, ...] = ()


LEAST_SAVED = 0.25
"""A plan that saves less than this share of what everything low would save gains little: a
convention. Such a plan costs more work than it brings; nodes that are few and small keep 0.9."""
LEAST_DEARER = 1.01
"""A plan whose cost is so many times FP32's costs more: a convention, what three digits show."""


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
        over_fp32: Cost over that of everything in FP32, for readers of the record: above 1 FP32 is
            cheaper. None in records before this field.
    """

    cost: float
    fp32: float
    measured: float | None = None
    measured_fp32: float | None = None
    nearest: NearPlan | None = None
    metric: str | None = None
    over_fp32: float | None = None

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
    def times_fp32(self) -> float:
        """Cost over that of everything in FP32; 1 where that is nothing."""
        return self.ratio / self.fp32_ratio if self.fp32_ratio > 0 else 1.0

    @property
    def is_dearer(self) -> bool:
        """Whether the plan costs more than everything in FP32."""
        return self.times_fp32 >= LEAST_DEARER

    @property
    def gains(self) -> bool:
        """Whether the plan saves enough to be worth having."""
        return self.saved >= LEAST_SAVED
