"""What is wrong, rung by rung, and how two preprocessing pipelines differ."""

from typing import Literal

from halfwise.records.judged import FrozenSize
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


DifferenceKind = Literal[
    "batch-axis",
    "layout",
    "dtype",
    "channels",
    "scale",
    "mean",
    "deviation",
    "normalisation",
    "fit",
    "resampling",
    "shape",
    "values",
]

_KINDS: dict[DifferenceKind, tuple[Severity, str]] = {
    "dtype": ("warning", "B is {b}, A {a}."),
    "batch-axis": ("info", "B has {b} leading axes of length 1, A {a}."),
    "layout": ("error", "B is laid out as {b}, A as {a}."),
    "channels": ("error", "B's channels are A's channels {b}."),
    "scale": ("error", "B's values have the scale {b}, A's {a}."),
    "mean": ("error", "B's values have the mean {b} taken off, A's {a}."),
    "deviation": ("error", "B's values are divided by the deviation {b}, A's by {a}."),
    "normalisation": ("error", "B is normalised {b}, A {a}."),
    "resampling": (
        "warning",
        "What is left is fine detail: another resize kernel or decoder, or places off by a pixel "
        "or two.",
    ),
    "fit": (
        "error",
        "The images differ in how they are fitted, cropped, turned, padded or sized, or show "
        "something else; not taken apart further: make these steps alike and compare again.",
    ),
    "shape": ("error", "B is {b}, A {a}."),
    "values": (
        "error",
        "Values differ, and no known step explains how: padding, gamma, clipping, other colours "
        "or each sample's own mean and deviation would do so.",
    ),
}
"""Severity and sentence: only "error" changes clearly what the model sees."""


class InputDifference(Record):
    """One difference between two pipelines.

    Attributes:
        kind: Its kind. "resampling": fine detail; "fit": how
            the image is fitted to its frame (stretched, letterboxed, sized), or another image;
            "normalisation": by each image's own mean and deviation, which only `diagnose` tries;
            "values": anything not explained by the others.
        severity: "error" changes what the model sees, "warning" changes it only slightly, "info" is
            only how arrays are stored.
        sentence: What B does differently.
        a: What A does, in a few words.
        b: What B does.
        evidence: The numbers behind it; empty if there are none.
    """

    kind: DifferenceKind
    severity: Severity
    sentence: str
    a: str
    b: str
    evidence: str = ""


def difference(kind: DifferenceKind, a: str, b: str, evidence: str = "") -> InputDifference:
    """Return a difference in the words, and with the severity, of its kind."""
    severity, sentence = _KINDS[kind]
    text = sentence.format(a=a, b=b)
    return InputDifference(kind=kind, severity=severity, sentence=text, a=a, b=b, evidence=evidence)


class InputComparison(Record):
    """One input from two pipelines.

    Attributes:
        name: Its name in A.
        name_b: Its name in B.
        samples: How many samples were compared.
        shape_a: Shape of A's first sample.
        shape_b: Shape of B's first sample.
        dtype_a: Type of A.
        dtype_b: Type of B.
        differences: Differences in the order in which pipelines apply them; empty if there are
            none.
        residual_max: Largest |transformed A − B|; inf if shapes differ.
        level: One of 255 levels in B's unit, for comparison with residuals.
        exact: Whether only rounding is left (`residual_max` is at most one level).
        code: Python that transforms a sample of A into one of B, with NumPy only; empty if nothing
            is to be done.
    """

    name: str
    name_b: str
    samples: int
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    dtype_a: str
    dtype_b: str
    differences: tuple[InputDifference, ...]
    residual_max: float
    level: float
    exact: bool
    code: str = ""


class TriedInputs(Record):
    """A change of the inputs that was tried, in case the framework applied it.

    Attributes:
        differences: What the framework's inputs (B) would do differently from the samples (A).
        error: Largest RMS error of an output on a sample, relative to the RMS of that output over
            all samples.
    """

    differences: tuple[InputDifference, ...]
    error: float


class InputTrials(Record):
    """Changes of the inputs that were tried because the outputs differ from the framework's.

    Attributes:
        planned: Number of changes planned.
        tried: Number of changes run: fewer if time ran out.
        kinds: Kinds of differences among those run.
        limit: The error up to which outputs match.
        before: The error without a change, as in `TriedInputs`.
        best: The change with which all outputs of all samples match; if there is none, the one that
            came closest on the single sample on which all were tried. None if none came close.
        matches: Whether everything matches with `best`, on enough samples to rule out chance.
        also: Number of other changes that match.
        shown_by: Samples whose outputs were beyond the limit before and match now.
    """

    planned: int
    tried: int
    kinds: tuple[DifferenceKind, ...]
    limit: float
    before: float
    best: TriedInputs | None
    matches: bool
    also: int = 0
    shown_by: int = 0


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
        overflows: Whether nodes at fault are certain to exceed the low format's range.
        inputs: What was tried on the inputs, if the outputs differ from the framework's.
        frozen: The size from the export that the model insists on; None if that is not the cause.
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
    overflows: bool = False
    frozen: FrozenSize | None = None
    inputs: InputTrials | None = None
    engine: EngineDiagnosis | None = None
