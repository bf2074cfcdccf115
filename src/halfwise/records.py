"""The nouns of a run: frozen records that hold numbers, names and sentences, never arrays.

A record is what `run.json` stores and what the renderers read. Non-finite numbers are stored as
the strings "Infinity", "-Infinity" and "NaN", because JSON has none.
"""

from typing import Literal, NewType

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

NodeName = NewType("NodeName", str)
"""Name of an ONNX node, unique within a model once halfwise has loaded it."""
TensorName = NewType("TensorName", str)
"""Name of a value (tensor) in an ONNX graph."""

Level = Literal["emulated", "engine"]
GuardKind = Literal[
    "overflow",
    "headroom",
    "square",
    "sum",
    "underflow",
    "eps",
    "cancellation",
    "constant-range",
    "constant-subnormal",
    "integer",
    "angle",
    "mask",
    "margin",
]


class Record(BaseModel):
    """Base of every record: immutable, no unknown fields, non-finite numbers as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Criterion(Record):
    """What makes a result acceptable. Without any threshold or metric, `rel_max` 1e-2 holds.

    Attributes:
        max_abs: Largest allowed absolute error, per output.
        rel_max: Largest allowed max |error| / max |reference|, both over the judged samples.
        snr_db: Smallest allowed signal-to-noise ratio in dB, pooled over the judged samples.
        cosine: Smallest allowed cosine similarity, pooled over the judged samples.
        agreement: Smallest allowed fraction of equal elements in integer and Boolean outputs.
        metric: Built-in name or `file.py:function`; when set it decides alone.
        metric_drop: How far the metric may fall below the reference's own value.
    """

    max_abs: float | None = None
    rel_max: float | None = None
    snr_db: float | None = None
    cosine: float | None = None
    agreement: float = 0.99
    metric: str | None = None
    metric_drop: float = 0.0


class Histogram(Record):
    """Counts of log2 |x|: `counts[i]` values in [2^(first+i), 2^(first+i+1)); zeros apart."""

    first: int
    counts: tuple[int, ...]
    zeros: int


class Detail(Record):
    """Statistics of one tensor that need its elements; taken on at most 32 samples.

    Attributes:
        smallest_nonzero: Smallest non-zero magnitude, inf where all elements are zero.
        overflow: Fraction of elements that round to infinity in the low format.
        flush: Fraction of non-zero elements that round to zero.
        subnormal: Fraction of elements that become subnormal, zero not counted.
        histogram: log2 histogram of the magnitudes of finite elements.
        samples: Number of samples these figures come from.
    """

    smallest_nonzero: float
    overflow: float
    flush: float
    subnormal: float
    histogram: Histogram
    samples: int


class Observation(Record):
    """What one tensor of the FP32 reference looked like over all samples.

    Attributes:
        tensor: Name of the tensor.
        producer: Node that computes it; None for a graph input.
        absmax: Largest finite magnitude over all samples (0 for an empty tensor).
        nonfinite: Number of NaN and infinite elements over all samples.
        worst_sample: Index, among the observed samples, of the one that holds `absmax`.
        detail: Element statistics, None where they were not taken.
    """

    tensor: TensorName
    producer: NodeName | None
    absmax: float
    nonfinite: int
    worst_sample: int
    detail: Detail | None = None


class InnerObservation(Record):
    """A number about the inside of an op, which no single tensor shows.

    Attributes:
        node: The node.
        op: Its operator type.
        kind: What `value` is. "square": the largest x² (or Σx²) inside Pow, ReduceL2 and
            ReduceSumSquare. "sum": the largest Σ|x| that a running sum can reach in ReduceSum,
            ReduceMean, MatMul, Gemm, Conv, Softmax. "cancellation": median over elements of
            max(|a|, |b|) / |a ± b| in Add and Sub, inf where results are mostly zero. "margin":
            for ArgMax, ArgMin and TopK, the smallest gap between the last chosen and the first
            rejected score divided by the low format's spacing at that score.
        value: The number.
        worst_sample: Index of the sample where it occurs.
    """

    node: NodeName
    op: str
    kind: Literal["square", "sum", "cancellation", "margin"]
    value: float
    worst_sample: int


class Observations(Record):
    """What the FP32 reference looked like on the observed samples.

    Attributes:
        tensors: One record per float tensor that a node computes or the graph takes as input, in
            graph order.
        inner: Numbers about the inside of ops, in graph order.
        samples: Identifiers of the observed samples; `worst_sample` indexes them.
    """

    tensors: tuple[Observation, ...]
    inner: tuple[InnerObservation, ...]
    samples: tuple[str, ...]


class Guard(Record):
    """A suspicion with numbers: something in FP16 that may go wrong. The output decides.

    Attributes:
        kind: Class of the suspicion.
        node: The node where it arises.
        tensor: The tensor or constant concerned, None where it lies inside an op.
        message: One sentence with the numbers.
        fix: The usual repair, empty where none is known.
        nodes: Every node that would have to stay in FP32 if the suspicion is true: the producer
            and the consumers of the tensor.
        severity: How far beyond the limit, ≥ 1 for certain loss, below 1 for possible loss.
    """

    kind: GuardKind
    node: NodeName
    tensor: TensorName | None
    message: str
    fix: str
    nodes: tuple[NodeName, ...]
    severity: float


class Growth(Record):
    """Relative RMS error of one tensor in the all-low emulation, in graph order.

    Attributes:
        node: The node that produces the tensor.
        depth: Longest path from an input, in nodes.
        error: RMS(error) / RMS(reference) on one sample; inf where non-finite values appear.
        inherited: The largest `error` among the node's inputs.
    """

    node: NodeName
    depth: int
    error: float
    inherited: float


class KeptNode(Record):
    """A node that stays in FP32.

    Attributes:
        node: Name of the node.
        op: Operator type.
        precision: Always "fp32".
        reason: One sentence with numbers.
        guard: Kind of the guard that names the cause, None where no guard does.
        error_without: Excess over the search tolerance when this node alone returns to the low
            format (1 is the tolerance itself); None where it was not measured.
    """

    node: NodeName
    op: str
    precision: Literal["fp32"] = "fp32"
    reason: str
    guard: GuardKind | None = None
    error_without: float | None = None


class SaturatedConstant(Record):
    """A constant with finite values beyond the low format's range, stored at its largest value."""

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
        constants: Constants that saturate.
        unsupported: Nodes that must be FP32 by schema; not counted as kept.
        minimal: True where removing any kept node was seen to fail the search tolerance on the
            calibration samples.
        candidates: Number of compute nodes that could be low.
        casts: Number of Cast nodes that the rewriter inserts.
        notes: Sentences about the plan as a whole (error that accumulates, rules that forced).
    """

    low: str
    keep: tuple[KeptNode, ...]
    data_movement: tuple[NodeName, ...]
    constants: tuple[SaturatedConstant, ...]
    unsupported: tuple[Unsupported, ...]
    minimal: bool
    candidates: int
    casts: int
    notes: tuple[str, ...] = ()


class Side(Record):
    """Summary of one side (reference or candidate) of an output; over finite elements."""

    minimum: float
    maximum: float
    mean: float
    deviation: float


class OutputError(Record):
    """How far one output is from the reference, over all judged samples.

    Attributes:
        max_abs: max |candidate - reference|; inf where the candidate has new non-finite values.
        rel_max: max_abs / max |reference| (0 where both are 0, inf where only the latter is).
        mean_abs: Mean absolute error over all elements.
        median_abs: Median absolute error over all elements.
        snr_db: 10 log10(Σ reference² / Σ error²); inf for equal outputs.
        cosine: Cosine similarity of the pooled vectors.
        agreement: Fraction of equal elements (integer and Boolean outputs; None for float ones).
        nonfinite: Candidate elements that are NaN or inf where the reference is not the same.
        reference: Summary of the reference.
        candidate: Summary of the candidate.
        worst_sample: Identifier of the sample with the largest error.
        passed: Whether the criterion holds for this output.
    """

    max_abs: float
    rel_max: float
    mean_abs: float
    median_abs: float
    snr_db: float
    cosine: float
    agreement: float | None
    nonfinite: int
    reference: Side
    candidate: Side
    worst_sample: str
    passed: bool


class MetricResult(Record):
    """A task metric on reference and candidate outputs; higher is better."""

    name: str
    reference: float
    candidate: float
    allowed_drop: float
    passed: bool


class IntermediateNonfinite(Record):
    """A tensor inside the candidate with non-finite values that the reference does not have."""

    tensor: TensorName
    producer: NodeName | None
    elements: int


class Verdict(Record):
    """Pass or fail, on which samples, at which level. Only `level == "engine"` is proof.

    Attributes:
        passed: Whether the candidate is acceptable.
        level: "emulated" or "engine".
        samples: Identifiers of the judged samples.
        unseen: Whether the search never saw any of them; without that the verdict fails.
        outputs: Error measures by output name.
        worst_sample: Identifier of the worst sample over all outputs.
        intermediate_nonfinite: Non-finite values inside, even where the outputs are finite.
        metric: The task metric, where one was given.
        reasons: Why it failed, one sentence each; empty where it passed.
        hints: Remarks about the criterion or the data.
    """

    passed: bool
    level: Level
    samples: tuple[str, ...]
    unseen: bool
    outputs: dict[str, OutputError]
    worst_sample: str | None
    intermediate_nonfinite: tuple[IntermediateNonfinite, ...] = ()
    metric: MetricResult | None = None
    reasons: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


class Search(Record):
    """How the plan was found.

    Attributes:
        tolerance_factor: Fraction of the tolerance that the search had to stay within.
        calibration: Identifiers of the samples the search used, joined ones last.
        joined: Held-out samples that failed and joined the calibration.
        seconds_budget: The time budget.
        exhausted: Whether the budget ended the search.
        steps: What the search did, one line each.
    """

    tolerance_factor: float
    calibration: tuple[str, ...]
    joined: tuple[str, ...]
    seconds_budget: float
    exhausted: bool
    steps: tuple[str, ...]


class Cost(Record):
    """What the run took."""

    evaluations: int
    seconds: float
    stage_seconds: dict[str, float]
    peak_rss_bytes: int


class Provenance(Record):
    """What is needed to repeat the run.

    Attributes:
        versions: Package name to version, halfwise and Python included.
        platform: Operating system and processor.
        device: Execution provider that ran the model.
        model: Path of the model as given.
        model_sha256: Hash of the model file and its external data.
        inputs: Description of the inputs as understood.
        inputs_sha256: Hash of all samples.
        options: The options of the command.
        seed: Seed of every random choice.
        date: UTC, ISO 8601.
    """

    versions: dict[str, str]
    platform: str
    device: str
    model: str
    model_sha256: str
    inputs: tuple[str, ...]
    inputs_sha256: str
    options: dict[str, str]
    seed: int
    date: str


class Run(Record):
    """Everything one run found; the content of `run.json`.

    Attributes:
        schema_version: Version of this structure.
        kind: The command that made it.
        criterion: What was acceptable.
        accumulate: Format of running sums inside ops.
        io: Type of float graph inputs and outputs of the rewritten model.
        headroom: Factor on observed ranges within which overflow counts.
        baseline: Verdict on the model with everything low.
        guards: Suspicions, gravest first.
        growth: Error growth through the all-low model.
        plan: The plan.
        search: How it was found.
        verdict: The verdict on the rewritten model.
        original_names: Names in the user's file by halfwise's names, where they differ.
        warnings: Remarks on inputs and model.
        next_step: What to do now, one line each.
        cost: Time and memory.
        provenance: Versions and hashes.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["fix", "verify"]
    criterion: Criterion
    accumulate: Literal["fp32", "fp16"]
    io: Literal["fp32", "fp16"]
    headroom: float
    baseline: Verdict | None
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    plan: Plan | None
    search: Search | None
    verdict: Verdict
    original_names: dict[NodeName, str]
    warnings: tuple[str, ...]
    next_step: tuple[str, ...]
    cost: Cost
    provenance: Provenance
