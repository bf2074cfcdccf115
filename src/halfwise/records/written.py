"""Models that were rewritten."""

from halfwise.records.judged import Verdict
from halfwise.records.record import MadeUp, NodeName, Record, TensorName


class Rewriting(Record):
    """Nodes that were replaced by one operator.

    Attributes:
        op: The operator.
        output: The tensor that it computes.
        removed: Nodes removed.
        added: Nodes added.
        error: Largest error relative to the largest magnitude, of this tensor alone: on the inputs,
            and on random numbers at two sizes of every dynamic axis if these nodes can run alone.
    """

    op: str
    output: TensorName
    removed: tuple[NodeName, ...]
    added: tuple[NodeName, ...]
    error: float


class LeftAlone(Record):
    """Nodes that resemble one operator but were left as they are.

    Attributes:
        op: The operator; "normalisation" if it is unknown which.
        nodes: The nodes, or the node by which they were found.
        reason: Why.
    """

    op: str
    nodes: tuple[NodeName, ...]
    reason: str


class Modernized(Record):
    """A model, and how it was modernised.

    Attributes:
        model: Source of the model.
        opset: Version of its default operator set.
        new_opset: That of the new model.
        target: What must be able to read the new model, and how that was determined.
        rewritings: Rewritings that were kept.
        left: What was left as it was, or undone.
        folded: Nodes that computed constants and were removed.
        names: New node names by old name, for nodes removed or renamed; empty if nothing replaces
            them.
        nodes: Number of nodes before.
        new_nodes: Number of nodes after.
        samples: Identifiers of the samples that both models ran on.
        real: Whether they are real data.
        made_up: Inputs that look generated; empty for random ones.
        error: Largest error of an output relative to its largest magnitude, on these samples, in
            FP32.
        fp16_before: Verdict on the model with everything in FP16, by emulation; None on inputs that
            are not real, unless they are accepted.
        fp16_after: Verdict on the new model, likewise.
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
    made_up: tuple[MadeUp, ...] = ()
    error: float
    fp16_before: Verdict | None = None
    fp16_after: Verdict | None = None
    notes: tuple[str, ...] = ()
