"""What is wrong, rung by rung: from the inputs up to the kernels."""

from typing import Literal

from halfwise.records.frozen import FrozenSize
from halfwise.records.preprocessing import InputTrials
from halfwise.records.record import NodeName, Record, Severity

RungName = Literal["harness", "export", "model", "fp32", "tf32", "precision", "kernels"]


class Sign(Record):
    """One piece of evidence.

    Attributes:
        severity: "error" is what made the rung fail; "warning" may be; "info" is worth knowing.
        text: One sentence, with its numbers.
        nodes: Nodes that it is about.
    """

    severity: Severity
    text: str
    nodes: tuple[NodeName, ...] = ()


class Rung(Record):
    """The answer to one question of a diagnosis.

    Attributes:
        rung: Its number, from 1.
        name: What is looked at.
        passed: Whether it is right; None where it was not looked at, or is only suspected.
        how: "measured"; "emulated": without the engine that it is about; "skipped".
        cause: What is wrong, in plain words; where nothing is, what was found; why it was skipped.
        nodes: The nodes at fault, in graph order.
        evidence: What that rests on.
        advice: What to do, one sentence each.
        overflows: Whether nodes at fault are certain to leave the low format's range.
        inputs: What was tried on the inputs, where the outputs are not the framework's.
        frozen: The size of the export that the model insists on; None where that is not it.
    """

    rung: int
    name: RungName
    passed: bool | None
    how: Literal["measured", "emulated", "skipped"]
    cause: str
    nodes: tuple[NodeName, ...] = ()
    evidence: tuple[Sign, ...] = ()
    advice: tuple[str, ...] = ()
    overflows: bool = False
    frozen: FrozenSize | None = None
    inputs: InputTrials | None = None
