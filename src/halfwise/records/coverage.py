"""Which sizes and outputs the judged samples cover, and which sizes a model insists on."""

from typing import Literal

from halfwise.records.record import Failure, NodeName, Record, TensorName


class JudgedBatch(Record):
    """Result of a candidate on batches of samples.

    Attributes:
        size: Size along the batch axis.
        shapes: Shapes of the inputs that have a dynamic axis.
        samples: Identifiers of the samples in the batches, or of batches judged as a whole.
        whole: Whether the model gives other results for a batch than row by row for single samples.
            Whole batches are then compared with the reference on the same batch.
        passed: Whether it meets the verdict's criterion.
        rel_max: Largest error / largest reference value, by output name; inf for new non-finite
            values. Empty if it could not be run.
        reasons: Why it failed, one clause each.
        failures: The same as facts.
    """

    size: int
    shapes: dict[TensorName, tuple[int, ...]]
    samples: tuple[str, ...]
    whole: bool
    passed: bool
    rel_max: dict[str, float]
    reasons: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


NotBatched = Literal["sizes", "fails", "metric", "recorded"]


class DynamicAxis(Record):
    """A dynamic axis, and its sizes in the judged samples and batches.

    Attributes:
        inputs: Index of the axis in each input that has it, from 0.
        symbol: Its name in the model; None if it has none.
        sizes: In ascending order; with only one, other sizes were not judged.
        why: Why no batches were made along it: "sizes" (inputs differ in size there), "fails" (the
            model does not run on a batch), "metric" (the model mixes the samples of a batch, and
            the metric reads single ones), "recorded" (only recorded outputs exist); None if it is
            not a batch axis, or batches were made.
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


class FrozenSize(Record):
    """An axis that the file declares dynamic but that works at one size only.

    Attributes:
        axes: Index of the axis in each input that has it.
        batch: Whether it is the batch axis.
        given: Its length in the samples, at which the model fails.
        runs: The length at which the model runs, on the same values repeated or cut. One less and
            one more fail as well.
        nodes: Nodes with a constant equal to this length or a multiple of it, in graph order.
        shown: Whether the model runs on the samples once `given` replaces `runs` in these
            constants; tried for batches only.
        failure: ONNX Runtime's message for the samples.
    """

    axes: dict[TensorName, int]
    batch: bool
    given: int
    runs: int
    nodes: tuple[NodeName, ...]
    shown: bool
    failure: str
