"""What the log of an engine builder says, in plain words."""

from typing import Literal

from halfwise.records.record import NodeName, Record, Severity


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
