"""What is wrong, rung by rung."""

from typing import Literal

from halfwise.records.record import NodeName, Record, Severity, Step

SymptomKind = Literal["outputs", "build", "run"]
"""How an engine is wrong: its outputs are, it cannot be built, or it cannot be run."""


class EngineDiagnosis(Record):
    """Where an engine is wrong although its computation is right elsewhere.

    Attributes:
        symptom: How it is wrong.
        limit_db: SNR below which a tensor is wrong, unless rounding explains it.
        region: The nodes that are wrong on their true inputs, in graph order; empty if none are.
        snr_db: SNR of the engine of the region alone: 20 log10 of RMS / RMS error, -inf if not
            finite; None without an engine.
        everywhere: Whether every part that was built fails as the model does: then no node is
            blamed, as the cause may be around the engines.
        explained: Whether the engine of the rest is right with the region's true outputs fed in;
            None if unknown.
        interrupted: Whether Ctrl-C ended the search.
        builds: Number of builds used, including the engine itself.
    """

    symptom: SymptomKind
    limit_db: float
    region: tuple[NodeName, ...] = ()
    snr_db: float | None = None
    everywhere: bool = False
    explained: bool | None = None
    interrupted: bool = False
    builds: int = 1


RungName = Literal["harness", "export", "model", "fp32", "tf32", "precision", "kernels"]


class Sign(Record):
    """One piece of evidence.

    Attributes:
        severity: "error": it made the rung fail; "warning": it may; "info": worth knowing.
        text: One sentence, with its numbers.
        nodes: Nodes concerned.
    """

    severity: Severity
    text: str
    nodes: tuple[NodeName, ...] = ()


class Rung(Record):
    """The answer to one question of a diagnosis.

    Attributes:
        rung: Number of the rung, from 1.
        name: What is examined.
        passed: Whether it is right; None if not examined, or only suspected.
        how: "measured"; "emulated": without the engine that it is about; "skipped".
        cause: What is wrong, in plain words; otherwise what was found, or why it was skipped.
        nodes: The nodes at fault, in graph order.
        evidence: The evidence for it.
        advice: What to do.
        engine: Where an engine is wrong; None if that is not the cause.
    """

    rung: int
    name: RungName
    passed: bool | None
    how: Literal["measured", "emulated", "skipped"]
    cause: str
    nodes: tuple[NodeName, ...] = ()
    evidence: tuple[Sign, ...] = ()
    advice: tuple[Step, ...] = ()
    engine: EngineDiagnosis | None = None
