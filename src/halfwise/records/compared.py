"""What comparing the tensors of two computations of one model showed."""

from typing import Literal

from halfwise.records.record import NodeName, Record, TensorName

TensorStatus = Literal[
    "good", "born", "inherited", "constant", "fused", "missing", "refused", "skipped"
]
SideName = Literal["a", "b"]


class NodeComparison(Record):
    """One node: how far its output differs between the two, and where that comes from.

    Attributes:
        node: The node.
        op: Its operator.
        tensor: Its output with the largest error.
        status: "good": within the tolerance; "born": the error arises here, since the node's own
            function of what it was given is another; "inherited": its inputs differ already;
            "constant": folded away, since no input of the model reaches it; "fused": the engine has
            no such tensor, as far as it tells; "missing": a model or file has no tensor of that
            name; "refused": no engine could be built that gives it out; "skipped": not looked at.
        error: Relative RMS error over all samples, B against A; None where it was not compared.
        inherited: The largest error among the tensors that it reads.
        born: Relative RMS error against the node's own function in FP32, applied to what it was
            given; of the side that is further off. None where that cannot be told.
        side: The side on which the error is born.
        region: Where "born", the nodes among which it arises: the node itself where all that it
            reads is known, else those back to the nearest tensors that are.
        worst_sample: Identifier of the sample with the largest error; None where not compared.
    """

    node: NodeName
    op: str
    tensor: TensorName
    status: TensorStatus
    error: float | None = None
    inherited: float = 0.0
    born: float | None = None
    side: SideName | None = None
    region: tuple[NodeName, ...] = ()
    worst_sample: str | None = None


class Comparison(Record):
    """Two computations of one model, tensor by tensor.

    Attributes:
        a: What the first is.
        b: What the second is.
        samples: Identifiers of the samples.
        tolerance: Relative RMS error up to which a tensor is good.
        nodes: Every node that was compared, or whose tensor one of the two lacks, in graph order.
        first: Nodes among which the first divergence lies, in graph order: the first error that is
            born and leads to an output; one node where its inputs are known. Empty where there is
            none.
        path: Nodes on the way of the error from there to the worst output.
        outputs: Relative RMS error of each output of the model that both have.
        builds: Engines that were built for it.
        notes: What else to know, such as whether marking tensors changed an engine's outputs.
    """

    a: str
    b: str
    samples: tuple[str, ...]
    tolerance: float
    nodes: tuple[NodeComparison, ...]
    first: tuple[NodeName, ...]
    path: tuple[NodeName, ...]
    outputs: dict[TensorName, float]
    builds: int = 0
    notes: tuple[str, ...] = ()

    @property
    def different(self) -> bool:
        """Whether an output is beyond the tolerance, or an error is born anywhere."""
        return self.differs or bool(self.first)

    @property
    def differs(self) -> bool:
        """Whether an output is beyond the tolerance."""
        return any(error > self.tolerance for error in self.outputs.values())
