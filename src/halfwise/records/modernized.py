"""What `halfwise modernize` did to a model."""

from halfwise.records.judged import Verdict
from halfwise.records.record import NodeName, Record, TensorName


class Rewriting(Record):
    """Nodes that became one operator.

    Attributes:
        op: The operator.
        output: The tensor that it gives.
        removed: Nodes that are gone.
        added: Nodes that came.
        error: Largest error over the largest magnitude, of this tensor alone: on the inputs, and
            on random numbers at two sizes of every dynamic axis where these nodes can run alone.
    """

    op: str
    output: TensorName
    removed: tuple[NodeName, ...]
    added: tuple[NodeName, ...]
    error: float


class LeftAlone(Record):
    """Nodes that look like one operator and stay.

    Attributes:
        op: The operator; "normalisation" where it is not known which.
        nodes: They, or the node that they were found by.
        reason: Why.
    """

    op: str
    nodes: tuple[NodeName, ...]
    reason: str


class Modernized(Record):
    """A model and what became of it.

    Attributes:
        model: Where the model came from.
        opset: Version of its default operator set.
        new_opset: That of the new model.
        target: What the new model has to be read by, and how that was found out.
        rewritings: What was rewritten, and stands.
        left: What was left alone or undone.
        folded: Nodes that computed constants and are gone.
        names: New node names by old one, of nodes that are gone or renamed; none where nothing
            stands for them.
        nodes: Number of nodes before.
        new_nodes: Number of nodes after.
        samples: Identifiers of the samples that both models ran on.
        real: Whether they are real data.
        error: Largest error of an output over its largest magnitude, on these samples, in FP32.
        fp16_before: Verdict on the model with everything in FP16, by emulation; None without data.
        fp16_after: That on the new model.
        notes: Remarks.
    """

    model: str
    opset: int
    new_opset: int
    target: str
    rewritings: tuple[Rewriting, ...]
    left: tuple[LeftAlone, ...]
    folded: tuple[NodeName, ...]
    names: dict[NodeName, tuple[NodeName, ...]]
    nodes: int
    new_nodes: int
    samples: tuple[str, ...]
    real: bool
    error: float
    fp16_before: Verdict | None = None
    fp16_after: Verdict | None = None
    notes: tuple[str, ...] = ()
