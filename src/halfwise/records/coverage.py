"""Which sizes and outputs the judged samples cover, and which size alone a model runs at."""

from typing import Literal

from halfwise.records.record import Failure, NodeName, Record, TensorName


class JudgedBatch(Record):
    """How a candidate did on samples that were put together in batches.

    Attributes:
        size: Size along the batch axis.
        shapes: Shapes of the inputs that have a dynamic axis.
        samples: Identifiers of the samples in the batches, or of batches that were judged whole.
        whole: Whether the model itself does not give, row by row, what it gives for single samples.
            Whole batches are then compared with the reference on the same batch.
        passed: Whether it did as well as the verdict demands.
        rel_max: Largest error over largest reference value, by output name; inf for new non-finite
            values. Empty where it could not be run.
        reasons: Why it failed, a clause each.
        failures: The same as facts; none in records before this field.
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
    """An axis that is dynamic, and the sizes that the judged samples and batches have there.

    Attributes:
        inputs: The axis of each input that has it, counted from 0.
        symbol: Its name in the model; None where it has none.
        sizes: In ascending order; with one alone, other sizes were not judged.
        why: Why no batches were put together along it: "sizes" (inputs differ in size there),
            "fails" (the model itself does not run on one), "metric" (the model mixes the samples of
            a batch, and the metric reads single ones), "recorded" (there are only outputs on
            record); None where it is no batch axis, or they were.
        detail: What the model says where it fails; a clause.
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
"""Kinds that are of a metric, not of an output or a body."""


class Unjudged(Record):
    """Something of which no sample shows anything, so that a verdict does not speak of it.

    Attributes:
        kind: Why.
        name: The output, the metric, or the node that has the body.
        body: The body's attribute, such as "then_branch"; empty for all else.
        op: Operator type of that node.
        inputs: Inputs of the model that decide whether it runs; empty where all may, or none.
        reference: FP32's own: largest magnitude of the output ("zeros"), its smallest value
            ("flat"), or value of the metric.
        other: The output's largest value ("flat"), or what the metric gives for zeros ("metric")
            or by guessing ("guessing").
        allowed: How far the metric may fall.
        labelled: Whether the metric compares with labels.
    """

    kind: UnjudgedKind
    name: str
    body: str = ""
    op: str = ""
    inputs: tuple[str, ...] = ()
    reference: float = 0.0
    other: float = 0.0
    allowed: float = 0.0
    labelled: bool = False


class FrozenSize(Record):
    """An axis that the file declares dynamic and that has one size all the same.

    Attributes:
        axes: The axis of each input that has it.
        batch: Whether it is the batch axis.
        given: Its length in the samples: there the model fails.
        runs: The length at which it runs, on the same values repeated or cut. One less and one more
            fail too.
        nodes: Nodes with a constant that holds this length or a multiple of it, in graph order.
        shown: Whether the model runs on the samples with `given` in the place of `runs` in these
            constants; only tried for batches.
        failure: What ONNX Runtime said of the samples.
    """

    axes: dict[TensorName, int]
    batch: bool
    given: int
    runs: int
    nodes: tuple[NodeName, ...]
    shown: bool
    failure: str
