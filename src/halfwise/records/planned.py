"""The plan: which nodes stay in FP32 and why, how it was found, and what it is worth.

Costs are relative to everything low: the mixed model that keeps nothing. Nodes without a low type
are FP32 there too, as are nodes that move data from an FP32 input to an FP32 output.
"""

from collections.abc import Mapping
from typing import Literal

from halfwise.records.record import Failure, GuardKind, NodeName, Record, Remark, TensorName

RepairRule = Literal["scale", "one-node", "mask", "split", "shift"]
"""The rules, `fixing.repair.making`.

"scale": store tensors times a power of two; "one-node": replace a decomposed operator by the one
that computes in FP32 inside; "mask": masks that survive the Add after them; "split":
long sums in parts; "shift": take off what readers do not see, with `--only fp16`.
"""


Allowed = Literal["bf16", "tf32"]
"""What is done only on request.

"bf16": BF16 for kept nodes that need no more; "tf32": TF32 for kept matrix products, if it is
enough for all of them.
"""


class Proof(Record):
    """Distance of a repaired model from the original.

    Attributes:
        samples: Samples that both ran on, by origin: "calibration", "heldout" and "widened" (see
            `fixing.repair.proof`).
        repaired: Largest difference of an output in FP32, relative to the largest magnitude of that
            output.
        equal: Whether all outputs of both are bitwise equal.
        broken: Output elements that are NaN or infinite in one of the models and something else in
            the other; on widened samples, those that are so in the repaired model alone.
    """

    samples: dict[str, int]
    repaired: float
    equal: bool
    broken: int = 0


class Place(Record):
    """A suspected cause at a node: what names a guard across models.

    Attributes:
        kind: The guard's kind.
        node: Its node.
    """

    kind: GuardKind
    node: NodeName


class Repair(Record):
    """A repair at one place: what its rule needs to repeat it, and its effect.

    Attributes:
        rule: The rule behind it.
        nodes: Nodes that it changes or removes, by their old names, in graph order.
        exponents: For "scale": tensor → e, if stored times 2^e; only those with e ≠ 0.
        numbers: Other parameters of the rule, by name.
        identity: The identity behind it; "" before it was made.
        guards: The guards that it resolves.
        before: Error of the low model without it, relative to what the search allows; None if not
            measured.
        after: Error with it.
        proof: Proof that the function is the same; None until proven.
        room: For "scale": how many times as large as on the search samples its tensors may become
            until the first one overflows; None if not measured.
        advice: An equivalent line for the training or export code; "" for none.
    """

    rule: RepairRule
    nodes: tuple[NodeName, ...]
    exponents: Mapping[TensorName, int] = {}
    numbers: Mapping[str, int | float] = {}
    identity: str = ""
    guards: tuple[Place, ...] = ()
    before: float | None = None
    after: float | None = None
    proof: Proof | None = None
    room: float | None = None
    advice: str = ""


class Remade(Record):
    """Result of repeating, on the original, the repairs named in a candidate's metadata.

    Attributes:
        repairs: The repairs, in order.
        proof: Proof that they preserve the function; None if they could not be made.
        failures: Reasons against the candidate: "unmade", "other-graph", "unproven".
        differs: If it names no repairs: the first node or output that differs from the original
            other than by types and Casts; "" for none.
    """

    repairs: tuple[Repair, ...]
    proof: Proof | None = None
    failures: tuple[Failure, ...] = ()
    differs: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts it."""
        return not self.failures


LowFormat = Literal["fp16", "bf16"]
"""Names of `formats.LOW_FORMATS`."""

KeptBy = Literal["search", "rule", "model", "engine"]
"""Who decided that a node stays in FP32.

"search": trials; "rule": an option of the user; "model": its file computes the node in FP32 among
lower ones; "engine": a build needed it or was faster with it.
"""


CutStage = Literal[
    "observe",
    "emulate",
    "repair",
    "search",
    "growth",
    "curve",
    "sums",
]
"""A stage that the time budget cut short or left out.

"observe": sums, rounding, distributions inside ops, or all statistics on samples that joined;
"emulate": which samples are worst; "repair": untried repairs; "search": smaller
plans; "growth": the source of an error that no guard explains; "curve": other plans to
choose from; "sums": whether the plan, or one with more kept nodes, passes with sums in FP16.
"""


class Because(Record):
    """Facts on why a node stays in FP32, besides who decided it and the effect of lowering it.

    Attributes:
        guard: Index in `Run.guards` of the guard that names the cause.
        rule: The user's rule as written on the command line; "" for none.
        nonfinite: Whether lowering this node alone brings new NaN or infinities.
        at_headroom: Whether a tensor at the node was emulated with a smaller range, for headroom.
        contribution: What the node or its group alone adds to the error, over what is allowed.
        opposed: Rules that lower other nodes, if even all free nodes in FP32 fail; otherwise None.
        beside: The convolution left out of INT8, without which this sum has no kernel, or None.
        spare: Whether a plan that lowers it passes too and costs more.
    """

    guard: int | None = None
    rule: str = ""
    nonfinite: bool = False
    at_headroom: bool = False
    contribution: float | None = None
    opposed: tuple[str, ...] | None = None
    beside: NodeName | None = None
    spare: bool = False


BudgetEnd = Literal["work", "seconds", "interrupt"]
"""What ended a stage: the work limit, which is the same in every run, the time limit, or Ctrl-C."""


class KeptNode(Record):
    """A node that stays in FP32, or in the low format while others are INT8.

    Attributes:
        node: Name of the node.
        op: Operator type.
        precision: Its type instead of the low format or, with "fp16", instead of INT8.
        reason: One sentence with numbers, which the report makes of `because`. "" until the run is
            recorded.
        kept_by: Who decided it.
        guard: Kind of the guard that names the cause, if any.
        error_without: Error relative to the search tolerance when only this node returns to the low
            format: 1 is the tolerance. A lower bound, as the first failing sample ends the trial.
            With a metric, 1 plus the drop beyond its allowance. None if not measured.
        unknown: Whether nothing is known of it: no guard, no rule, and not lowered before the
            search ended.
        because: Why, as facts.
    """

    node: NodeName
    op: str
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    reason: str = ""
    kept_by: KeptBy = "search"
    guard: GuardKind | None = None
    error_without: float | None = None
    unknown: bool = False
    because: Because | None = None

    @property
    def spare(self) -> bool:
        """Whether it is kept only because less would cost more."""
        return self.because is not None and self.because.spare


class AdjustedConstant(Record):
    """A constant that is stored at other values than plain rounding gives.

    Finite values beyond the low format's range are stored as its largest, and a single value that
    would become zero as its smallest (see `Format.store_constant`).

    Attributes:
        name: Its name.
        minimum: Its smallest finite value in the model.
        maximum: Its largest finite value in the model.
        elements: Number of values adjusted.
        consumers: The low nodes that read it; empty if it is only an output.
    """

    name: TensorName
    minimum: float
    maximum: float
    elements: int
    consumers: tuple[NodeName, ...]

    @property
    def largest(self) -> float:
        """Its largest magnitude."""
        return max(-self.minimum, self.maximum)


class Unsupported(Record):
    """A node that must be FP32: its schema or halfwise has no low-precision form of it."""

    node: NodeName
    op: str
    reason: str


class Plan(Record):
    """Which nodes stay in FP32, and why.

    Attributes:
        low: Name of the low format.
        keep: The compute nodes that stay in FP32, in graph order.
        data_movement: Nodes that only move data between kept nodes, in FP32 at no cost.
        constants: Constants stored at other values than plain rounding gives.
        unsupported: Nodes that must be FP32 by schema, or unknown to ONNX; not in `keep`.
        minimal: Whether removing any kept node was seen to fail on the calibration samples; of a
            plan with INT8, giving INT8 to any node left out, but for sums with `Because.beside`.
        candidates: Number of compute nodes that could be low.
        casts: Number of Cast nodes inserted.
        lowered: Nodes lowered by user rules → the rule.
        int8: Nodes that read their inputs through Q/DQ pairs.
        left_out: Nodes that could be INT8 but use the low format, as INT8 is not enough.
        repairs: Repairs of the network with these nodes, in order.
        remarks: Facts about the plan as a whole.
    """

    low: LowFormat
    keep: tuple[KeptNode, ...]
    data_movement: tuple[NodeName, ...]
    constants: tuple[AdjustedConstant, ...]
    unsupported: tuple[Unsupported, ...]
    minimal: bool
    candidates: int
    casts: int
    lowered: Mapping[NodeName, str] = {}
    int8: tuple[NodeName, ...] = ()
    left_out: tuple[KeptNode, ...] = ()
    repairs: tuple[Repair, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def has_int8(self) -> bool:
        """Whether INT8 was tried, even if no node uses it."""
        return bool(self.int8 or self.left_out)

    @property
    def searched(self) -> tuple[KeptNode, ...]:
        """What the search kept: `left_out` if INT8 was tried, otherwise `keep`."""
        return self.left_out if self.has_int8 else self.keep

    @property
    def own(self) -> tuple[KeptNode, ...]:
        """The kept nodes that the user's file itself computes in FP32 among lower ones."""
        return tuple(kept for kept in self.keep if kept.kept_by == "model")


class Search(Record):
    """How the plan was found.

    Attributes:
        tolerance_factor: Fraction of the tolerance available to the search.
        calibration: Identifiers of the samples of the search, joined ones last.
        joined: Held-out samples that failed and joined the calibration samples.
        seconds_budget: Time limit of all optional work, in seconds.
        exhausted: Whether the budget ended the search.
        remarks: Steps of the search.
        cut: Stages that the budget ended or left out.
        budget: Work limit, in inferences over the calibration samples at the start of the run.
        spent: Work done, in the same unit, including work that was not optional.
        late: Runs of a sample that exceeded the run time-out and failed; another run may differ.
        refused: Why ONNX Runtime failed on a run of the plan's own network, emulated, the first
            time; empty if it never did.
        ended_by: What ended stages; unless it was the work limit alone, another run may differ.
        seen: First 16 digits of the SHA-256 of each sample that was used by this search, or by an
            earlier one that the plan comes from.
    """

    tolerance_factor: float
    calibration: tuple[str, ...]
    joined: tuple[str, ...]
    seconds_budget: float
    exhausted: bool
    cut: tuple[CutStage, ...] = ()
    remarks: tuple[Remark, ...] = ()
    budget: float | None = None
    spent: float | None = None
    ended_by: tuple[BudgetEnd, ...] = ()
    late: int = 0
    refused: str = ""
    seen: tuple[str, ...] = ()


LEAST_SAVED = 0.25
"""A plan that saves less than this share of what everything low saves gains little: a convention.
It costs more work than it brings; plans that keep a few small nodes save 0.9."""
LEAST_DEARER = 1.01
"""A plan that costs this many times FP32's cost is dearer: a convention."""


class Worth(Record):
    """What a plan is worth. Costs are relative to everything low.

    Attributes:
        cost: Predicted cost of the plan.
        fp32: Predicted cost of everything in FP32.
        measured: Time of the engine over that with everything low; None unless FP32 is timed too.
        measured_fp32: The same for the FP32 engine without TF32.
        low: Name of the low format, of a verification.
    """

    cost: float
    fp32: float
    measured: float | None = None
    measured_fp32: float | None = None
    low: LowFormat | None = None

    @property
    def ratio(self) -> float:
        """Cost relative to everything low, measured if possible, otherwise predicted."""
        return self.cost if self.measured is None else self.measured

    @property
    def fp32_ratio(self) -> float:
        """`ratio` of everything in FP32."""
        return self.fp32 if self.measured_fp32 is None else self.measured_fp32

    @property
    def saved(self) -> float:
        """Share of what everything low saves that the plan saves too, in [0, 1].

        If everything low saves nothing: 1 if the plan costs less than FP32, otherwise 0.
        """
        won, possible = self.fp32_ratio - self.ratio, self.fp32_ratio - 1
        return min(1.0, max(0.0, won / possible)) if possible > 0 else float(won > 0)

    @property
    def times_fp32(self) -> float:
        """Cost relative to everything in FP32; 1 if that is zero."""
        return self.ratio / self.fp32_ratio if self.fp32_ratio > 0 else 1.0

    @property
    def is_dearer(self) -> bool:
        """Whether the plan costs more than everything in FP32."""
        return self.times_fp32 >= LEAST_DEARER

    @property
    def gains(self) -> bool:
        """Whether the plan saves enough to be worth having."""
        return self.saved >= LEAST_SAVED


MOST = 0.5
"""Something causes an error if no more than this share of it is left without it. Our choice."""


class Joined(Record):
    """A Concat whose one scale leaves nothing of a tensor that it joins.

    Attributes:
        tensor: That tensor.
        largest: Its largest magnitude.
        beside: The largest tensor that it joins.
        most: Its largest magnitude.
        scale: The scale: the distance of two levels.
    """

    tensor: TensorName
    largest: float
    beside: TensorName
    most: float
    scale: float


class Blamed(Record):
    """Parts of a quantised model, and the error without their quantisation.

    Attributes:
        nodes: The nodes whose results and weights are left in floats, or the name of an input.
        op: The operator of a single node; "" for several and for an input.
        error: The largest error with these left out, relative to what is allowed.
        share: The share of the error that this removes, 0 to 1.
        joined: That a Concat's scale loses a tensor; None otherwise.
    """

    nodes: tuple[NodeName, ...]
    op: str = ""
    error: float
    share: float
    joined: Joined | None = None


class Flat(Record):
    """Slices of an output that are constant although the reference varies.

    Attributes:
        output: The output.
        axis: Axis of the slices.
        ranges: Runs of slices as first and last index.
        slices: Number of slices.
        of: Number of slices of the axis.
        varies: By how much the reference varies there at most.
    """

    output: TensorName
    axis: int
    ranges: tuple[tuple[int, int], ...]
    slices: int
    of: int
    varies: float


class Blame(Record):
    """Which parts of a quantised model its error comes from.

    A part is a node with the quantisation of its result and weights, or an input with its own.
    Errors are the largest on some of the worst samples, relative to what is allowed, or to the
    default tolerance where a metric judges.

    Attributes:
        parts: Number of parts.
        samples: Number of samples.
        error: The error with all parts quantised.
        bare: The error with none quantised.
        left_out: The parts that remove most of it when left out, by share; few at most. Empty if
            most of the error stays without any quantisation, or no few parts matter.
        together: The error with all these left out.
        share: The share of the error that this removes.
        flat: What is constant in the outputs.
        by_metric: Whether a metric judges.
    """

    parts: int
    samples: int
    error: float
    bare: float
    left_out: tuple[Blamed, ...] = ()
    together: float
    share: float
    flat: tuple[Flat, ...] = ()
    by_metric: bool = False

    @property
    def is_spread(self) -> bool:
        """Whether `left_out` removes less than half of the error."""
        return self.share < MOST

    @property
    def is_lossy(self) -> bool:
        """Whether quantisation causes half of the error or more."""
        return self.bare <= MOST * self.error


class Followed(Record):
    """Where an error comes from that no guard explains, as far as that was found.

    Attributes:
        kept: What was FP32 meanwhile: the kept nodes that guards or rules explain.
        error: Error of the outputs then, relative to what the search allows (with a metric,
            relative to the default tolerance), on the worst of the samples; inf with new NaN or
            infinities.
        accumulates: Whether no single node causes most of the relative error at the outputs.
        samples: Number of samples of which it is the worst.
    """

    kept: tuple[NodeName, ...]
    error: float
    accumulates: bool
    samples: int = 1
