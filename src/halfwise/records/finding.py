"""Faults of a model, or in the log of a builder, that show without running anything."""

from typing import Literal

from halfwise.records.record import NodeName, Record, Severity, TensorName


class Finding(Record):
    """A fault found at one place.

    Attributes:
        rule: Id of the rule that found it.
        severity: How bad it is.
        node: The node, by the user's name for it ("" if it has none); None if the finding concerns
            the whole file.
        place: Its position in the file, from 1, nodes of bodies after the node with the body; None
            if it is not in the file's graph.
        op: Its operator type; "" without a node.
        called: halfwise's name for an unnamed node, as in the reports of `fix`; "" if it has a
            name, or if unknown.
        tensor: The tensor, weight or input concerned; None if it is not a single one.
        message: What was found, with its numbers: one sentence.
        fix: What to do: one sentence.
        source: URL of the documentation or report behind it.
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
    """Result of linting a model.

    Attributes:
        source: The file.
        producer: The tool that wrote it, with its version; "" if the file does not say.
        opset: Version of ONNX's operator set; None if the file names none.
        nodes: Number of nodes, bodies included.
        tensorrt: Version whose parser the model was checked against; None for none.
        findings: Errors first, then warnings, then infos; within each by rule, in graph order.
        ignored: Ids of rules left out on request.
        skipped: What could not be checked because the graph cannot be read, one sentence each.
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
        tensorrt: Version of the trtexec that will read them.
        keys: Number of keys in all options.
        findings: Errors first, then warnings, then infos.
    """

    source: str
    tensorrt: str
    keys: int
    findings: tuple[Finding, ...]


class LogFinding(Record):
    """A message in a log, however often it occurs.

    Attributes:
        kind: Which known message it is, such as "layernorm-fp16"; otherwise "unknown".
        severity: How bad it is, whatever the builder calls it; "info" needs no action.
        sentence: What it means; the builder's own words if unknown.
        hint: What to do about it; empty if nothing needs doing, or nothing is known.
        source: URL of the documentation or report behind it; empty if unknown.
        nodes: ONNX nodes in its order; layers, tensors or weights if it names no node.
        count: Number of such lines.
        lines: The first of these lines, unchanged except that long ones are cut.
        before: For a process that ended by itself, the last line before it, cut likewise.
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
    """What a name in a log refers to in the model.

    Attributes:
        name: The name in the log, without TensorRT's additions.
        node: The node; None if the model has no such name.
        op: Its operator type; empty without a node.
        place: Its position in the file, from 1; nodes of bodies follow the node that has them.
        via: How the name leads there: "node" is its own name, "output" a tensor that it writes,
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
        source: Where the log came from.
        lines: Number of lines read.
        tensorrt: Version of TensorRT, if the log shows it.
        command: The command that was run, if the log shows it; otherwise empty.
        findings: Errors first, then warnings, then infos, each in the order of the log.
        nodes: What the names in `findings` refer to; None without a model.
        model_nodes: Number of nodes in the model, bodies included; None without a model.
    """

    source: str
    lines: int
    tensorrt: str | None
    findings: tuple[LogFinding, ...]
    command: str = ""
    nodes: tuple[LogNode, ...] | None = None
    model_nodes: int | None = None
