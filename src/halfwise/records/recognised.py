"""What the outputs of a model are recognised as, and how a candidate does by their metric."""

from typing import Literal

from halfwise.records.record import Record

Kind = Literal["boxes", "class-scores", "flow", "mask"]
"""What an output, or a set of outputs, is."""

Evidence = Literal[
    "by-name", "known-count", "log-sum", "rows-sum", "one-channel", "two-valued", "two-channels",
    "channels-last", "pair-of-images", "beside-scores", "joined-with-scores",
]  # fmt: skip
"""What was seen of an output besides its shape:

- "by-name": its name says so;
- "known-count": as many classes as ImageNet has;
- "rows-sum": rows within [0, 1] that add up to 1; "log-sum": their exponentials do;
- "one-channel": one channel within [0, 1]; "two-valued": hardly anything between 0 and 1;
- "two-channels", "channels-last": of [N, 2, height, width] and [N, height, width, 2];
- "pair-of-images": two inputs of one shape that is that of images;
- "beside-scores", "joined-with-scores": boxes, with scores in another output or the same.
"""


class Recognised(Record):
    """Outputs that are recognised, and the built-in metric that asks what they are used for.

    Attributes:
        kind: What they are.
        metric: The built-in metric.
        outputs: Their names.
        required: What the metric must be at least, with FP32's own outputs as the truth. Higher is
            better: of an error it is minus the largest that is allowed.
        shape: Shape of the first of the outputs, on the first sample.
        evidence: What was seen.
    """

    kind: Kind
    metric: str
    outputs: tuple[str, ...]
    required: float
    shape: tuple[int, ...]
    evidence: tuple[Evidence, ...]


class TaskScore(Record):
    """How a candidate does by the metric of recognised outputs.

    Attributes:
        metric: The built-in metric.
        outputs: Names of the outputs that it judges.
        value: Of the candidate; higher is better, of an error minus the error. NaN and -inf where
            the candidate's outputs are not finite.
        required: What it must be at least.
        passed: Whether it is, and the samples test it.
        untested: Whether the samples test nothing: values next to zero would pass, too.
    """

    metric: str
    outputs: tuple[str, ...]
    value: float
    required: float
    passed: bool
    untested: bool = False
