"""What is wrong, rung by rung, and how two preprocessing pipelines differ."""

from typing import Literal

from halfwise.records.coverage import FrozenSize
from halfwise.records.engine_fault import EngineDiagnosis
from halfwise.records.followed import Decided
from halfwise.records.quantisation import QuantisationLoss
from halfwise.records.record import NodeName, Record, Severity
from halfwise.records.step import Step

DifferenceKind = Literal[
    "batch-axis",
    "layout",
    "dtype",
    "order",
    "flip",
    "channels",
    "scale",
    "mean",
    "deviation",
    "normalisation",
    "padding",
    "fit",
    "crop",
    "size",
    "kernel",
    "resampling",
    "shape",
    "values",
]

_SEVERITIES: dict[DifferenceKind, Severity] = {
    "batch-axis": "info",
    "dtype": "warning",
    "kernel": "warning",
    "resampling": "warning",
}
"""Differences that change values only slightly; all others change what the model sees."""


class InputDifference(Record):
    """One difference between two pipelines.

    Attributes:
        kind: Its kind. "resampling": a kernel that raw images would name; "fit": how the image is
            fitted to its frame (stretched, letterboxed, cropped); "normalisation": one that no
            single gain and offset explain; "values": anything not explained by the others.
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


def difference(
    kind: DifferenceKind, sentence: str, a: str, b: str, evidence: str = ""
) -> InputDifference:
    """Return a difference with the severity of its kind."""
    severity = _SEVERITIES.get(kind, "error")
    return InputDifference(
        kind=kind, severity=severity, sentence=sentence, a=a, b=b, evidence=evidence
    )


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
        residual_max: Largest |transformed A − B| over the pixels that both have; inf if shapes
            differ.
        level: One of 255 levels in B's unit, for comparison with residuals.
        exact: Whether only rounding is left (`residual_max` is at most one level).
        order: Index of the sample of A for each sample of B.
        code: Python that transforms a sample of A into one of B, with NumPy only; empty if nothing
            is to be done.
        pipeline_a: A's resizing, fitted on raw images; None without them.
        pipeline_b: B's resizing.
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
    order: tuple[int, ...]
    code: str = ""
    pipeline_a: str | None = None
    pipeline_b: str | None = None


class PreprocessingReport(Record):
    """Comparison of two pipelines.

    Attributes:
        a: Source of A.
        b: Source of B.
        inputs: Comparisons by input.
        notes: Remarks and warnings.
    """

    a: str
    b: str
    inputs: tuple[InputComparison, ...]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether the model sees the same: arrays differ at most in how they are stored."""
        return all(d.severity == "info" for each in self.inputs for d in each.differences)


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
        matches: Whether everything matches with `best`, on enough numbers to rule out chance.
        also: Number of other changes that match.
        shown_by: Samples whose outputs were beyond the limit before and match now.
        numbers: Number of independent output values that became right.
        beside_spread: Whether errors are relative to the spread of outputs between samples, taken
            as at least a hundredth of their size; otherwise relative to their size.
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
    numbers: int = 0
    beside_spread: bool = False


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
        quantisation: Effect of a quantised model's pairs; None if not checked.
        decided: Decisions that cause most of the error; None if that was not checked or shown.
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
    quantisation: QuantisationLoss | None = None
    decided: Decided | None = None
