"""What the judged samples do not test."""

from typing import Literal

from halfwise.records.record import Record

UnjudgedKind = Literal[
    "non-finite", "empty", "zeros", "flat", "constant", "never-ran", "metric", "guessing"
]
"""Why nothing is known:

- "non-finite": FP32's output has no finite element;
- "empty": the output has no element at all;
- "zeros": an output of zeros would be accepted;
- "flat": a constant would be accepted in place of an output's values, which vary little;
- "constant": psnr has no peak, since the target is constant;
- "never-ran": a body of an If, Loop or Scan ran on no sample;
- "metric": the metric would accept zeros in the place of all outputs;
- "guessing": with the given labels FP32 itself is no better than guessing.
"""


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
