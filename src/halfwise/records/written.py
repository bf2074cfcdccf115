"""Models that were written: exports of PyTorch modules, and rewritten graphs."""

from halfwise.records.judged import Verdict
from halfwise.records.record import NodeName, Record, TensorName


class ParityCheck(Record):
    """Module and export on the same inputs.

    Attributes:
        sizes: Sizes of the dynamic axes by symbol.
        error: Largest error of an output over its largest magnitude; infinite where the export
            does not run or gives other shapes.
        problem: Why it does not run; empty where it does.
    """

    sizes: dict[str, int]
    error: float
    problem: str = ""


class Exported(Record):
    """An export.

    Attributes:
        module: Where the module came from.
        model: The file.
        exporter: "dynamo" or "torchscript".
        opset: Version of its default operator set.
        nodes: Number of nodes.
        inputs: Shapes of the inputs, such as "x batch×3×224×224".
        outputs: Names of the outputs.
        tolerance: The largest error that passes.
        checks: Each dynamic axis at two sizes or more, the others as in the example.
        passed: Whether no check is above the tolerance.
        traced: Where tracing took a value of the inputs for a constant: on other inputs the module
            may do something else, which equal sizes do not show.
    """

    module: str
    model: str
    exporter: str
    opset: int
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerance: float
    checks: tuple[ParityCheck, ...]
    passed: bool
    traced: tuple[str, ...] = ()


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
