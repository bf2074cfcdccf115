"""What is wrong with a model or in the log of a builder, and shows without a run."""

from typing import Literal

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
        called: What halfwise calls it where it has no name of its own, as in the reports of `fix`;
            "" where it has one, or that cannot be told.
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
    called: NodeName = NodeName("")
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


class LogFinding(Record):
    """One thing that a log says, however often.

    Attributes:
        kind: Which known message it is, such as "layernorm-fp16"; "unknown" for any other.
        severity: How bad it is, which may differ from what the builder calls it: "info" is nothing
            to act on.
        sentence: What it means; the builder's own words where it is unknown.
        hint: What to do about it; empty where nothing is to be done, or nothing is known.
        source: Address of the documentation or report that this rests on; empty where unknown.
        nodes: ONNX nodes, and layers, tensors or weights where it names no node, in its order.
        count: Number of lines that say so.
        lines: The first of these lines, as they are, cut where they are long.
        before: Of a process that ended by itself, the last line before, cut likewise.
    """

    kind: str
    severity: Severity
    sentence: str
    hint: str = ""
    source: str = ""
    nodes: tuple[NodeName, ...] = ()
    count: int = 1
    lines: tuple[str, ...] = ()
    before: str = ""


class LogNode(Record):
    """What a name in a log stands for in the model.

    Attributes:
        name: As the log has it, without what TensorRT adds.
        node: The node; None where the model has nothing of that name.
        op: Its operator; empty without a node.
        place: Its position in the file, from 1; nodes of bodies follow the node that has them.
        via: How the name leads there: "node" is its own name, "output" a tensor that it makes,
            "reader" a constant or input that it reads; empty without a node.
    """

    name: NodeName
    node: NodeName | None = None
    op: str = ""
    place: int | None = None
    via: Literal["node", "output", "reader", ""] = ""


class LogReport(Record):
    """A log, explained.

    Attributes:
        source: Where it came from.
        lines: Number of lines read.
        tensorrt: Version of TensorRT, where the log tells it.
        command: The command that was run, where the log tells it; empty where not.
        findings: Errors first, then warnings, then infos, each in the order of the log.
        nodes: What the names in `findings` stand for; None without a model.
        model_nodes: Number of nodes in the model, bodies included; None without a model.
    """

    source: str
    lines: int
    tensorrt: str | None
    findings: tuple[LogFinding, ...]
    command: str = ""
    nodes: tuple[LogNode, ...] | None = None
    model_nodes: int | None = None
