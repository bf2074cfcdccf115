"""What is acceptable, and whether a candidate is."""

from typing import Literal

from halfwise.declarations import default
from halfwise.records.coverage import DynamicAxis, JudgedBatch, Unjudged
from halfwise.records.recognised import Recognised, TaskScore, Unit
from halfwise.records.record import Failure, Level, NodeName, Record, TensorName

FP32_SNR_DB = 60.0
"""What an FP32 engine without TF32 reaches when it computes the same function: rounding in another
order gives 77 to 133 dB on real models, a wrong kernel 29 (docs/tensorrt-measured.md)."""


class Criterion(Record):
    """What makes a result acceptable. Without any threshold or metric, `rel_max` 1e-2 holds.

    Attributes:
        max_abs: Largest allowed absolute error, per output.
        rel_max: Largest allowed max |error| / max |reference|, both over the judged samples; also
            within each group of slices that has a scale of its own.
        snr_db: Smallest allowed signal-to-noise ratio in dB, pooled over the judged samples.
        cosine: Smallest allowed cosine similarity, pooled over the judged samples.
        agreement: Smallest allowed fraction of equal elements in integer and Boolean outputs.
        metric: Built-in name or `file.py:function`; when set it decides alone.
        metric_drop: How far the metric may fall below the reference's own value.
        drop_source: Whose convention `metric_drop` is, in words; empty where the user gave it.
        recognised: What the metric is of, where it had to be told from the outputs. With the metric
            "auto" all of it, each by its own metric, beside the default tolerance for all other
            outputs; `metric_drop` is then 1, of what is left of the allowance that is used up most.
    """

    max_abs: float | None = None
    rel_max: float | None = None
    snr_db: float | None = None
    cosine: float | None = None
    agreement: float = default("agreement")
    metric: str | None = None
    metric_drop: float = 0.0
    drop_source: str = ""
    recognised: tuple[Recognised, ...] = ()


class Side(Record):
    """Summary of one side (reference or candidate) of an output; over finite elements.

    Attributes:
        nonfinite: How many elements are NaN or infinite.
        elements: How many there are in all; 0 in records from before.
    """

    minimum: float
    maximum: float
    mean: float
    deviation: float
    nonfinite: int = 0
    elements: int = 0


class SliceGroup(Record):
    """Slices of one output that have a scale of their own, and how far they are off.

    Attributes:
        axis: The axis that they are slices of; None where they are samples.
        ranges: Runs of slices, first and last index of each; the first few of many. Of samples,
            places in `Verdict.samples`.
        slices: Their number.
        scale: Their largest |reference|; by the span where that is given.
        span: Their largest value less their smallest, of values on an offset; None of others.
        room: Times the tolerance that they have: more than 1 where they are few among many.
        max_abs: Their largest error.
        allowed: What it may be: rel_max · scale · room.
        worst_sample: Identifier of the sample that has it.
        passed: Whether it is not more.
    """

    axis: int | None
    ranges: tuple[tuple[int, int], ...]
    slices: int
    scale: float
    span: float | None = None
    room: float = 1.0
    max_abs: float
    allowed: float
    worst_sample: str
    passed: bool


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
        rare_agreement: Likewise among elements that are not what most of the reference are: twice
            the equal ones over those of both sides. None where no value is that of most.
        nonfinite: Candidate elements that are NaN or inf where the reference is not the same.
        misshapen: Samples on which the candidate has another shape, or nothing.
        reference: Summary of the reference.
        candidate: Summary of the candidate.
        worst_sample: Identifier of the sample with the largest error.
        passed: Whether the criterion holds for this output.
        groups: Slices that are held to scales of their own under `rel_max`, axis by axis; empty
            where all have one scale, and where `rel_max` does not count.
    """

    max_abs: float
    rel_max: float
    mean_abs: float
    median_abs: float
    snr_db: float
    cosine: float
    agreement: float | None
    rare_agreement: float | None = None
    nonfinite: int
    misshapen: int = 0
    reference: Side
    candidate: Side
    worst_sample: str
    passed: bool
    groups: tuple[SliceGroup, ...] = ()

    @property
    def rel_max_needed(self) -> float:
        """The smallest `rel_max` that this output would pass."""
        return max(self.rel_max, *(g.max_abs / (g.scale * g.room) for g in self.groups), 0.0)


class Errors(Record):
    """The largest of `OutputError.max_abs`, of `mean_abs` and of `median_abs` over all outputs."""

    max_abs: float
    mean_abs: float
    median_abs: float


class MetricResult(Record):
    """A task metric on reference and candidate outputs; higher is better.

    Attributes:
        name: Built-in name or `file.py:function`.
        reference: Its value for the reference's own outputs.
        candidate: For the candidate's.
        allowed_drop: How far the latter may be below.
        passed: Whether it is not.
        labelled: Whether there were labels; None where that was not recorded.
        parts: With the metric "auto", the metric of each recognised output, and what the others
            are held to.
        evidence: How many boxes, pixels or rows one metric rests on; see `TaskScore`.
        unit: What they are.
    """

    name: str
    reference: float
    candidate: float
    allowed_drop: float
    passed: bool
    labelled: bool | None = None
    parts: tuple[TaskScore, ...] = ()
    evidence: int | None = None
    unit: Unit | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that it joins, each once; its own where that is one."""
        return tuple(dict.fromkeys(part.metric for part in self.parts)) or (self.name,)


class IntermediateNonfinite(Record):
    """A tensor inside the candidate with non-finite values that the reference does not have.

    Attributes:
        tensor: Its name in the reference; of what only the candidate has, that one's.
        producer: The node that computes it, not one that converts it; None for an input.
        elements: How many of its values are NaN or infinite, over all judged samples.
        harmless: Whether all that reads it was shown to have a finite limit at infinity, which
            larger inputs keep; None where nobody looked.
        ends: How it ends where it is harmless: "limit", at a finite limit of all that computes with
            it, where the reference was seen to be; "unseen", at such a limit, and no sample showed
            that of the reference; "unread", since nothing computes with it. None otherwise, and in
            records from before.
    """

    tensor: TensorName
    producer: NodeName | None
    elements: int
    harmless: bool | None = None
    ends: Literal["limit", "unseen", "unread"] | None = None


class FailureBound(Record):
    """What the judged samples show of all inputs: a bound on the share of those that fail.

    It holds where the samples were drawn independently from the distribution of the inputs, and
    nothing but the search has used them. A sample fails if it is out of tolerance by itself;
    `rel_max` is of the largest reference value of them all.

    Attributes:
        judged: How many were judged.
        failing: How many of them failed.
        joined: How many more failed at first and joined the search; `upper` counts them as failing.
        upper: The share of inputs that fail is at most this, in (0, 1] …
        confidence: … with this probability, over many runs (Clopper and Pearson, one-sided).
    """

    judged: int
    failing: int
    joined: int = 0
    upper: float
    confidence: float


class FailedRun(Record):
    """A sample that the candidate could not be run on, although the reference could.

    Attributes:
        sample: Identifier of the sample.
        node: The node that failed; None where it is not known.
        why: What the runtime says of it.
    """

    sample: str
    node: NodeName | None
    why: str


class Flip(Record):
    """A node inside that decides otherwise where values are not rounded one by one.

    Attributes:
        node: Its name.
        op: Its operator type.
        elements: How many of its values differ, over the samples that were looked at.
        of: How many there are.
    """

    node: NodeName
    op: str
    elements: int
    of: int


class FileRun(Record):
    """How the written file does where ONNX Runtime runs it as it is, without emulated rounding.

    Attributes:
        runner: Name and version of what ran it.
        not_run: Why it was not run; empty where it was.
        passed: Whether the outputs are acceptable; None where it was not run.
        outputs: Error measures by output name.
        metric: The task metric, where one was given.
        flips: Decisions that differ from the emulation, where the outputs are not acceptable.
    """

    runner: str
    not_run: str = ""
    passed: bool | None = None
    outputs: dict[str, OutputError]
    metric: MetricResult | None = None
    flips: tuple[Flip, ...] = ()


class Verdict(Record):
    """Pass or fail, on which samples, at which level. Only `level == "engine"` is proof.

    Attributes:
        passed: Whether the candidate is acceptable.
        level: "emulated", "recorded" (outputs that a file holds) or "engine".
        runner: Who computed recorded outputs; None at the other levels.
        samples: Identifiers of the judged samples.
        unseen: Whether the search never saw any of them; without that the verdict fails.
        outputs: Error measures by output name.
        worst_sample: Identifier of the worst sample over all outputs.
        excesses: Of each sample, the error that it reaches alone over what is allowed, of its worst
            output; with a metric over the default tolerance. Empty in records before this field.
        intermediate_nonfinite: Non-finite values inside, even where the outputs are finite.
        metric: The task metric, where one was given.
        failed_runs: Samples that the candidate could not be run on.
        reasons: Why it failed, one sentence each; empty where it passed.
        failures: The same as facts; none in records before this field.
        required_worth: The cost over that of everything low that --require-worth allows, where that
            alone made it fail: all else passed.
        hints: Remarks about the criterion or the data.
        as_file: How the file does as ONNX Runtime runs it; None where nobody asked.
        batch: How batches of the samples did, where they can be put together.
        axes: The model's dynamic axes, and at which sizes they were judged.
        on_real_data: False where the inputs look made up, and were not to be; that fails.
        failure_bound: What the samples show of all inputs; None where nothing was judged, where the
            search had seen them, and where a metric judges them all together.
        unjudged: What no sample tests; empty where nobody looked.
        judged: False where that alone makes it fail, or that the search had seen the samples:
            nothing that was tested is wrong.
    """

    passed: bool
    level: Level
    runner: str | None = None
    samples: tuple[str, ...]
    unseen: bool
    outputs: dict[str, OutputError]
    worst_sample: str | None
    excesses: tuple[float, ...] = ()
    intermediate_nonfinite: tuple[IntermediateNonfinite, ...] = ()
    metric: MetricResult | None = None
    failed_runs: tuple[FailedRun, ...] = ()
    reasons: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    required_worth: float | None = None
    hints: tuple[str, ...] = ()
    as_file: FileRun | None = None
    batch: JudgedBatch | None = None
    axes: tuple[DynamicAxis, ...] = ()
    failure_bound: FailureBound | None = None
    on_real_data: bool = True
    unjudged: tuple[Unjudged, ...] = ()
    judged: bool = True

    @property
    def errors(self) -> Errors | None:
        """The largest errors of any output; None without outputs."""
        found = self.outputs.values()
        names = Errors.model_fields if found else ()
        largest = {name: max(getattr(error, name) for error in found) for name in names}
        return Errors(**largest) if largest else None

    @property
    def within(self) -> bool:
        """Whether it passed, or would but that the search had seen the samples."""
        if self.passed or self.unseen:
            return self.passed
        if self.failed_runs or any(o.nonfinite for o in self.outputs.values()):
            return False
        if self.metric is not None:
            return self.metric.passed
        return bool(self.samples) and all(o.passed for o in self.outputs.values())
