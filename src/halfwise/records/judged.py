"""What is acceptable, whether a candidate is, and what the judged samples cover."""

from typing import Literal

from halfwise.declarations import default
from halfwise.records.record import Failure, Level, NodeName, Record, TensorName, replace

Kind = Literal[
    "boxes", "cells", "class-scores", "embedding", "flow", "heatmap", "image", "keypoints", "mask",
    "segmentation", "tokens",
]  # fmt: skip
"""What an output, or a set of outputs, is."""

Evidence = Literal[
    "by-name", "known-count", "log-sum", "rows-sum", "one-channel", "two-valued", "two-channels",
    "pair-of-images", "beside-scores", "joined-with-scores", "row-per-cell",
    "corners-in-order", "whole-classes", "unit-length", "channels-sum", "in-regions", "one-ahead",
    "size-of-input", "times-input", "range-of-images", "smooth", "within-image",
    "cells-of-image", "few-objects", "few-peaks", "peak-each", "number-varies", "suppressed",
]  # fmt: skip
"""What was seen of an output besides its shape:

- "by-name": its name says so;
- "known-count": as many classes as ImageNet has;
- "rows-sum": rows within [0, 1] that add up to 1; "log-sum": their exponentials do;
- "one-channel": one channel within [0, 1]; "two-valued": hardly anything between 0 and 1;
- "two-channels": of [N, 2, height, width];
- "pair-of-images": two inputs of one shape that is that of images;
- "beside-scores", "joined-with-scores": boxes, with scores in another output or the same;
- "row-per-cell": as many rows as a YOLO has cells for the input, or three times as many;
- "corners-in-order": no box has a negative side; "whole-classes": classes are whole numbers;
- "unit-length": rows of length 1;
- "channels-sum": channels within [0, 1] that add up to 1; "in-regions": neighbouring pixels have
  one class; "one-ahead": one class is far ahead of the next; "size-of-input": as an input image;
- "times-input": the size of an input image, or a multiple; "range-of-images": values as images
  have; "smooth": neighbouring pixels are alike;
- "within-image": corners are pixels of an input image, with sides of many lengths;
- "cells-of-image": as many cells as an input image has at a detector's strides; "few-objects": an
  objectness that is low at nearly all cells;
- "few-peaks": maps with peaks that fall off, and nearly no value elsewhere; "peak-each": four maps
  or more, each with one peak or none;
- "number-varies": rows whose number depends on the sample;
- "suppressed": rows that a suppression of overlapping boxes chose.
"""


class Boxes(Record):
    """How boxes are read from outputs.

    Attributes:
        layout: What an image's rows are:

            - "raw": [N, 5 + C] of one output, YOLOX's: offsets of the centre from its cell and
              logarithms of the size, in strides of 8, 16 and 32, then objectness and C classes;
            - "joined": [N, 5 + C] of one output: box, objectness, C classes;
            - "transposed": [4 + C, N] of one output: box, C classes;
            - "final": [N, M] of one output, one class each: see `columns`;
            - "listed": [N, 4] beside scores [N] and maybe classes [N];
            - "per-class": [N, 4] beside scores [N, C];
            - "heads": scores [cells, C] and [cells, 4 · bins] of each map of several strides.
        corners: Whether a box is two opposite corners; otherwise centre, width and height.
        columns: For "final": first column of the box, column of the score, column of the class;
            None for classes [N] in a second output, if in any.
        activation: What turns the scores into probabilities.
        background: The score class for background; -1 for the last, None if there is none.
        suppress: Whether overlapping boxes of one object remain to be suppressed.
        image: Height and width of the input, for "raw" and "heads".
    """

    layout: Literal["raw", "joined", "transposed", "final", "listed", "per-class", "heads"]
    corners: bool = False
    columns: tuple[int, int, int | None] | None = None
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    background: Literal[0, -1] | None = None
    suppress: bool = True
    image: tuple[int, int] | None = None


class Cells(Record):
    """How a detector's cells are read from outputs.

    Attributes:
        layout: "maps" [N, anchors · (5 + C), height, width], or "rows" [N, rows, 5 + C] and [N,
            anchors, height, width, 5 + C].
        anchors: Boxes of each cell, for "maps".
        objectness: Number of its column. Box numbers are the other four of the first five.
        logits: Whether objectness and class scores are logits, of which the sigmoid is taken.
    """

    layout: Literal["maps", "rows"]
    anchors: int = 1
    objectness: Literal[0, 4] = 4
    logits: bool = False


class Recognised(Record):
    """Recognised outputs, and the built-in metric for their use.

    Attributes:
        kind: What they are.
        metric: The built-in metric.
        outputs: Their names.
        required: Smallest metric value that passes, with the FP32 outputs as truth. Higher is
            better; for an error it is minus the largest allowed error.
        evidence: Why they were recognised.
        boxes: How boxes are read; None for other kinds.
        cells: How a detector's cells are read; None for other kinds.
    """

    kind: Kind
    metric: str
    outputs: tuple[str, ...]
    required: float
    evidence: tuple[Evidence, ...]
    boxes: Boxes | None = None
    cells: Cells | None = None


Unit = Literal[
    "boxes",
    "cells",
    "keypoints",
    "mask pixels",
    "peaks",
    "pixels",
    "rows",
    "signals",
    "tokens",
    "values",
    "vectors",
]
"""What a score counts, in the truth: for example the pixels inside its masks."""


class TaskScore(Record):
    """Score of a candidate by the metric of recognised outputs.

    Attributes:
        metric: The built-in metric.
        outputs: Names of the outputs that it judges.
        value: Value for the candidate; higher is better, for an error minus the error. NaN and -inf
            if the candidate's outputs are not finite.
        required: Smallest value that passes.
        passed: Whether it passes, and the samples test it.
        evidence: Number of units behind the value, in all samples, as the truth has them; None for
            a metric that is not built in.
        unit: What `evidence` counts; None likewise.
    """

    metric: str
    outputs: tuple[str, ...]
    value: float
    required: float
    passed: bool
    evidence: int | None = None
    unit: Unit | None = None


class JudgedBatch(Record):
    """Result of a candidate on batches of samples.

    Attributes:
        size: Size along the batch axis.
        samples: Identifiers of the samples in the batches.
        whole: Whether the model gives other results for a batch than row by row for single samples.
        passed: Whether it meets the verdict's criterion.
        failures: Why it failed.
    """

    size: int
    samples: tuple[str, ...]
    whole: bool
    passed: bool
    failures: tuple[Failure, ...] = ()


NotBatched = Literal["sizes", "fails", "metric", "recorded", "interrupted"]


class DynamicAxis(Record):
    """A dynamic axis, and its sizes in the judged samples and batches.

    Attributes:
        inputs: Index of the axis in each input that has it, from 0.
        symbol: Its name in the model; None if it has none.
        sizes: In ascending order; with only one, other sizes were not judged.
        why: Why no batches were made along it: "sizes" (inputs differ in size there), "fails" (the
            model does not run on a batch), "metric" (the model mixes the samples of a batch, and
            the metric reads single ones), "recorded" (only recorded outputs exist), "interrupted"
            (Ctrl-C came); None if it is not a batch axis, or batches were made.
        detail: The model's error if it fails; a clause.
    """

    inputs: dict[TensorName, int]
    symbol: str | None
    sizes: tuple[int, ...]
    why: NotBatched | None = None
    detail: str = ""


UnjudgedKind = Literal[
    "non-finite",
    "empty",
    "zeros",
    "flat",
    "constant",
    "never-ran",
    "metric",
    "guessing",
    "absent",
]
"""Why nothing is known:

- "non-finite": FP32's output has no finite element;
- "empty": the output has no element at all;
- "zeros": an output of zeros would be accepted;
- "flat": a constant would be accepted in place of an output's values, which vary little;
- "constant": psnr has no peak, since the target is constant;
- "never-ran": a body of an If, Loop or Scan ran on no sample;
- "metric": the metric would accept zeros in the place of all outputs;
- "guessing": with the given labels FP32 itself is no better than guessing;
- "absent": the metric compares what FP32 detects, and that is nothing, on any sample, or a single
  class everywhere.
"""


OF_METRIC: tuple[UnjudgedKind, ...] = ("metric", "guessing", "absent")
"""Kinds that concern a metric, not an output or a body."""


class Unjudged(Record):
    """Something that no sample tests, so the verdict does not cover it.

    Attributes:
        kind: Why.
        name: The output, the metric, or the node with the body.
        body: Attribute of the body, such as "then_branch"; empty otherwise.
        op: Operator type of that node.
        around: The model's own node that holds the body, at whatever depth.
        inputs: Model inputs that decide whether it runs; empty if all may, or none.
        reference: Value for FP32: largest magnitude of the output ("zeros"), its smallest value
            ("flat"), or the metric.
        other: Largest value of the output ("flat"), or the metric's value for zeros ("metric") or
            for guessing ("guessing").
        allowed: How far the metric may fall.
        labelled: Whether the metric compares with labels.
    """

    kind: UnjudgedKind
    name: str
    body: str = ""
    op: str = ""
    around: str = ""
    inputs: tuple[str, ...] = ()
    reference: float = 0.0
    other: float = 0.0
    allowed: float = 0.0
    labelled: bool = False


CHANCE = 0.05
"""Share by which errors, costs or times of two runs alike may differ. Our choice: times of builds
of one configuration on an H200 differ by a few percent."""
FP32_SNR_DB = 60.0
"""SNR in dB that an FP32 engine without TF32 reaches if it computes the same function: summing in
another order gives 77 to 133 dB on real models, a wrong kernel 29 (docs/tensorrt-measured.md)."""


class Criterion(Record):
    """What makes a result acceptable. Without a threshold or metric, `rel_max` is 1e-2.

    Attributes:
        max_abs: Largest allowed absolute error, per output.
        rel_max: Largest allowed max |error| / max |reference|, both over the judged samples. Each
            group of slices with a scale of its own is held to it too.
        snr_db: Smallest allowed signal-to-noise ratio in dB, pooled over the judged samples.
        cosine: Smallest allowed cosine similarity, pooled over the judged samples.
        agreement: Smallest allowed fraction of equal elements in integer and Boolean outputs.
        metric: Built-in name or `file.py:function`. If set, it alone decides.
        metric_drop: How far the metric may fall below its value for the reference outputs.
        drop_source: Where `metric_drop` comes from, in words; empty if the user gave it.
        failing: Largest share of inputs that may fail, (0, 1): its upper bound is judged, and the
            samples that fail are left out of everything else. None if every sample must pass.
        recognised: The outputs that the metric judges, if halfwise recognised them. With the metric
            "auto", each is judged by its own metric and all other outputs by the default tolerance;
            `metric_drop` is then 1, as a fraction of the allowance that is used up most.
        untested: Other recognised outputs, which these samples do not test by their metric: masks
            that are empty, images without an object. The default tolerance holds for them.
    """

    max_abs: float | None = None
    rel_max: float | None = None
    snr_db: float | None = None
    cosine: float | None = None
    agreement: float = default("agreement")
    metric: str | None = None
    metric_drop: float = 0.0
    drop_source: str = ""
    failing: float | None = None
    recognised: tuple[Recognised, ...] = ()
    untested: tuple[Recognised, ...] = ()

    @property
    def of_each(self) -> "Criterion":
        """The same where every sample must pass: what a few samples are held to."""
        return replace(self, failing=None)


class Side(Record):
    """How much of an output's reference is finite.

    Attributes:
        nonfinite: Number of elements that are NaN or infinite.
        elements: Number of all elements.
    """

    nonfinite: int = 0
    elements: int = 0


class SliceGroup(Record):
    """Slices of one output that share a scale of their own, and their error.

    Attributes:
        axis: Axis of the slices; None if they are samples.
        ranges: Runs of slices as first and last index, only the first few of many. For samples,
            indices into `Verdict.samples`.
        slices: Number of slices.
        scale: Their largest |reference|, or `span` if that is set.
        span: Largest minus smallest value, for values on an offset; None otherwise.
        room: Factor on the tolerance: more than 1 if they are few among many.
        max_abs: Their largest absolute error.
        allowed: Largest allowed error: rel_max · scale · room.
        worst_sample: Identifier of the sample with that error.
        passed: Whether `max_abs` is at most `allowed`.
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
    """Error of one output against the reference, over all judged samples.

    Attributes:
        max_abs: max |candidate - reference|; inf if the candidate has new non-finite values.
        rel_max: max_abs / max |reference|: 0 if both are 0, inf if only the latter is.
        mean_abs: Mean absolute error over all elements.
        snr_db: 10 log10(Σ reference² / Σ error²); inf for equal outputs.
        cosine: Cosine similarity of the pooled vectors.
        agreement: Fraction of equal elements, for integer and Boolean outputs; None for floats.
        rare_agreement: The same over elements that differ from the most common value of the
            reference: twice the equal ones divided by those of both sides. None if no value has a
            majority.
        nonfinite: Candidate elements that are NaN or inf where the reference differs.
        misshapen: Samples on which the candidate has another shape, or no output.
        reference: Summary of the reference.
        worst_sample: Identifier of the sample with the largest error.
        passed: Whether this output meets the criterion.
        groups: Slices that `rel_max` holds to scales of their own, axis by axis; empty if all
            slices share one scale, or if `rel_max` does not apply.
    """

    max_abs: float
    rel_max: float
    mean_abs: float
    snr_db: float
    cosine: float
    agreement: float | None
    rare_agreement: float | None = None
    nonfinite: int
    misshapen: int = 0
    reference: Side
    worst_sample: str
    passed: bool
    groups: tuple[SliceGroup, ...] = ()

    @property
    def rel_max_needed(self) -> float:
        """The smallest `rel_max` at which this output would pass."""
        return max(self.rel_max, *(g.max_abs / (g.scale * g.room) for g in self.groups), 0.0)


class MetricResult(Record):
    """A task metric on reference and candidate outputs; higher is better.

    Attributes:
        name: Built-in name or `file.py:function`.
        reference: Its value for the reference outputs.
        candidate: Its value for the candidate outputs.
        allowed_drop: How far `candidate` may be below `reference`.
        passed: Whether the drop is within `allowed_drop`.
        labelled: Whether labels were used; None if not recorded.
        parts: For the metric "auto": the metric of each recognised output, and the limit for the
            others.
        evidence: Number of boxes, pixels or rows behind a single metric; see `TaskScore`.
        unit: What `evidence` counts.
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
    def scores(self) -> tuple[TaskScore, ...]:
        """Its parts; a metric that stands alone is one score, of all outputs."""
        return self.parts or (
            TaskScore(
                metric=self.name,
                outputs=(),
                value=self.candidate,
                required=self.reference - self.allowed_drop,
                passed=self.passed,
                evidence=self.evidence,
                unit=self.unit,
            ),
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the combined metrics, each once; its own name if it stands alone."""
        return tuple(dict.fromkeys(score.metric for score in self.scores))


class IntermediateNonfinite(Record):
    """A tensor inside the candidate with non-finite values that the reference lacks.

    Attributes:
        tensor: Its name in the reference, or in the candidate if only that has it.
        producer: The node that computes it, skipping Casts; None for an input.
        elements: Number of NaN or infinite values, over all judged samples.
        harmless: Whether all that comes of it is the same in the reference; None if not checked.
    """

    tensor: TensorName
    producer: NodeName | None
    elements: int
    harmless: bool | None = None


class FailureBound(Record):
    """A bound on the share of all inputs that fail, from the judged samples.

    It holds if the samples were drawn independently from the distribution of the inputs, and only
    the search has used them. A sample fails if it alone is out of tolerance; `rel_max` refers to
    the largest reference value of all samples. With a metric, it fails if it alone loses more than
    the metric may fall (of several metrics, more than one sample may lose).

    Attributes:
        judged: Number of samples judged.
        failing: Number of them that failed.
        samples: Identifiers of these.
        joined: Number of further samples that failed at first and joined the search; `upper` counts
            them as failures.
        upper: Upper bound on the share of inputs that fail, in (0, 1].
        confidence: Probability that the bound holds, over many runs (Clopper and Pearson,
            one-sided).
    """

    judged: int
    failing: int
    samples: tuple[str, ...] = ()
    joined: int = 0
    upper: float
    confidence: float


class FailedRun(Record):
    """A sample on which the candidate did not run, although the reference did.

    Attributes:
        sample: Identifier of the sample.
        node: The node that failed; None if unknown.
        why: The runtime's message.
    """

    sample: str
    node: NodeName | None
    why: str


class Flip(Record):
    """A node whose decision differs if values are not rounded one by one.

    Attributes:
        node: Its name.
        op: Its operator type.
        elements: Number of its values that differ, over the samples that were examined.
        of: Number of its values.
    """

    node: NodeName
    op: str
    elements: int
    of: int


class FileRun(Record):
    """Result of the written file in a runtime, without emulated rounding.

    Attributes:
        runner: Name of the runtime; in parentheses, what it is set to.
        version: Its version.
        not_run: Why it was not run; empty if it was.
        built: Whether it was built, where it cannot be run.
        static: Why it was built only with the samples' shapes fixed; "" if it was built as it is.
        folded: Products that the file has in FP32 and what was built computes from low operands.
        traffic: Bytes that the kernels of what was built read and write; None where unknown.
        passed: Whether outputs are acceptable; no if a target refuses or folds it; None if not run.
        fp32: Whether a target has the FP32 model right; asked by `fix` where it has the file wrong.
        outputs: Error measures by output name.
        metric: The task metric, if one was given.
    """

    runner: str
    version: str = ""
    not_run: str = ""
    built: bool = False
    static: str = ""
    folded: tuple[NodeName, ...] = ()
    traffic: int | None = None
    passed: bool | None = None
    fp32: bool | None = None
    outputs: dict[str, OutputError]
    metric: MetricResult | None = None


class Verdict(Record):
    """Pass or fail, on which samples and at which level. Only `level == "engine"` is proof.

    Attributes:
        passed: Whether the candidate is acceptable.
        level: "emulated", "recorded" (outputs read from a file) or "engine".
        runner: What computed recorded outputs; None at the other levels.
        samples: Identifiers of the judged samples.
        unseen: Whether the search saw none of them; otherwise the verdict fails.
        outputs: Error measures by output name; where a share of inputs may fail, of the samples
            that do not, as is `metric`.
        worst_sample: Identifier of the worst sample over all outputs.
        strict: Where a metric decides, the largest error over the default tolerance, of all samples
            together.
        excesses: Per sample, the error of its worst output relative to what is allowed, for the
            sample alone; with a metric, relative to the default tolerance.
        intermediate_nonfinite: Non-finite values inside the model, even if the outputs are finite.
        metric: The task metric, if one was given.
        failed_runs: Samples on which the candidate did not run.
        failures: Why it failed; empty if it passed.
        hints: Remarks about the criterion or the data.
        as_file: How the file does without emulation in ONNX Runtime, then in each target; empty if
            it was not run.
        sums: The lowest format of sums inside FP16 ops with which it is known to pass; None if it
            failed, has no FP16 ops, has INT8, or was not examined.
        batch: Result on batches of the samples, if they can be batched.
        axes: The model's dynamic axes, and the sizes at which they were judged.
        on_real_data: False if the inputs look generated but had to be real; the verdict then fails.
        failure_bound: What the samples show about all inputs; None if nothing was judged, if the
            search had seen the samples, or if a user's metric has no value for a single one.
        unjudged: What no sample tests; empty if not checked.
        judged: False if it fails only because of that, because the search had seen the samples, or
            because they are too few: nothing that was tested is wrong.
    """

    passed: bool
    level: Level
    runner: str | None = None
    samples: tuple[str, ...]
    unseen: bool
    outputs: dict[str, OutputError]
    worst_sample: str | None
    strict: float | None = None
    excesses: tuple[float, ...] = ()
    intermediate_nonfinite: tuple[IntermediateNonfinite, ...] = ()
    metric: MetricResult | None = None
    failed_runs: tuple[FailedRun, ...] = ()
    failures: tuple[Failure, ...] = ()
    hints: tuple[str, ...] = ()
    as_file: tuple[FileRun, ...] = ()
    sums: Literal["fp32", "fp16"] | None = None
    batch: JudgedBatch | None = None
    axes: tuple[DynamicAxis, ...] = ()
    failure_bound: FailureBound | None = None
    on_real_data: bool = True
    unjudged: tuple[Unjudged, ...] = ()
    judged: bool = True

    @property
    def within(self) -> bool:
        """Whether it passed, or would have if the search had not seen the samples."""
        if self.passed or self.unseen:
            return self.passed
        if self.failed_runs or any(o.nonfinite for o in self.outputs.values()):
            return False
        if self.metric is not None:
            return self.metric.passed
        return bool(self.samples) and all(o.passed for o in self.outputs.values())
