"""What a model's outputs are recognised as, and how a candidate scores by their metric."""

from typing import Literal

from halfwise.records.record import Record

Kind = Literal[
    "boxes", "class-scores", "embedding", "flow", "heat-map", "image", "mask", "segmentation",
    "spectrum", "tokens", "waveform",
]  # fmt: skip
"""What an output, or a set of outputs, is."""

Evidence = Literal[
    "by-name", "known-count", "log-sum", "rows-sum", "one-channel", "two-valued", "two-channels",
    "pair-of-images", "beside-scores", "joined-with-scores", "row-per-cell",
    "corners-in-order", "whole-classes", "unit-length", "channels-sum", "in-regions", "one-ahead",
    "size-of-input", "times-input", "range-of-images", "smooth", "bins", "around-zero",
    "length-of-input", "within-image",
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
- "bins": 2^k + 1 of them along an axis, in an input of the same shape, too; "around-zero": a mean
  near 0; "length-of-input": an axis of an input is as long;
- "within-image": corners are pixels of an input image, with sides of many lengths.
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
            - "per-class": [N, 4] beside scores [N, C].
        corners: Whether a box is two opposite corners; otherwise centre, width and height.
        columns: For "final": first column of the box, column of the score, column of the class.
        activation: What turns the scores into probabilities.
        background: The score class for background; -1 for the last, None if there is none.
        suppress: Whether overlapping boxes of one object remain to be suppressed.
        image: Height and width of the input, for "raw".
    """

    layout: Literal["raw", "joined", "transposed", "final", "listed", "per-class"]
    corners: bool = False
    columns: tuple[int, int, int] | None = None
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    background: Literal[0, -1] | None = None
    suppress: bool = True
    image: tuple[int, int] | None = None


class Recognised(Record):
    """Recognised outputs, and the built-in metric for their use.

    Attributes:
        kind: What they are.
        metric: The built-in metric.
        outputs: Their names.
        required: Smallest metric value that passes, with the FP32 outputs as truth. Higher is
            better; for an error it is minus the largest allowed error.
        shape: Shape of the first of the outputs, on the first sample.
        evidence: Why they were recognised.
        boxes: How boxes are read; None for other kinds.
        drop: How far the metric may fall; None for its default.
    """

    kind: Kind
    metric: str
    outputs: tuple[str, ...]
    required: float
    shape: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    boxes: Boxes | None = None
    drop: float | None = None


Unit = Literal["boxes", "mask pixels", "pixels", "rows", "signals", "tokens", "values", "vectors"]
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
        untested: Whether the samples test nothing: values next to zero would pass too.
        evidence: Number of units behind the value, in all samples, as the truth has them; None for
            a metric that is not built in.
        unit: What `evidence` counts; None likewise.
    """

    metric: str
    outputs: tuple[str, ...]
    value: float
    required: float
    passed: bool
    untested: bool = False
    evidence: int | None = None
    unit: Unit | None = None
