"""What is wrong with a model, or with what a builder is told, and shows without a run."""

from halfwise.records.record import NodeName, Record, Severity, TensorName


class Finding(Record):
    """One thing found, at one place.

    Attributes:
        rule: Id of the rule that found it.
        severity: How bad it is.
        node: The node, by the user's name for it ("" where it has none); None where the finding is
            about the file as a whole.
        place: Its position in the file, from 1, nodes of bodies after the node that has them; None
            where it is not in the file's graph.
        op: Its operator; "" without a node.
        tensor: The tensor, weight or input that it is about; None where it is about no single one.
        message: What was found, with its numbers: one sentence.
        fix: What to do about it: one sentence.
        source: Address of the documentation or report that this rests on.
    """

    rule: str
    severity: Severity
    node: NodeName | None = None
    place: int | None = None
    op: str = ""
    tensor: TensorName | None = None
    message: str
    fix: str
    source: str


class LintReport(Record):
    """A model, linted.

    Attributes:
        source: The file.
        producer: What wrote it, with its version; "" where the file does not say.
        opset: Version of ONNX's operator set; None where the file names none.
        nodes: Number of nodes, bodies included.
        tensorrt: Version whose parser the model was held against; None for none.
        findings: Errors first, then warnings, then infos; within each by rule, in graph order.
        ignored: Ids of rules that were not looked for, as asked.
        skipped: One sentence per thing that could not be looked at, because the graph cannot be
            read.
    """

    source: str
    producer: str
    opset: int | None
    nodes: int
    tensorrt: str | None
    findings: tuple[Finding, ...]
    ignored: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class ConstraintReport(Record):
    """Precision constraints in trtexec's notation, checked against a model.

    Attributes:
        source: The ONNX file.
        tensorrt: Version of the trtexec that is to read them.
        command: Whether a whole command was given.
        keys: Number of keys in all options together.
        findings: Errors first, then warnings, then infos.
        corrected: The command or the options as they should be; "" where nothing of them is left.
    """

    source: str
    tensorrt: str
    command: bool
    keys: int
    findings: tuple[Finding, ...]
    corrected: str
