"""What is wrong, rung by rung, and what two preprocessing pipelines differ in."""

from typing import Literal

from halfwise.records.coverage import FrozenSize
from halfwise.records.engine_fault import EngineDiagnosis
from halfwise.records.judged import OutputError
from halfwise.records.quantisation import QuantisationLoss
from halfwise.records.record import NodeName, Record, Severity

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
    "padding-side",
    "padding-value",
    "fit",
    "crop",
    "size",
    "kernel",
    "antialias",
    "resampling",
    "half-pixel",
    "rounding",
    "clipping",
    "shape",
    "values",
]

_SEVERITIES: dict[DifferenceKind, Severity] = {
    "batch-axis": "info",
    "dtype": "warning",
    "rounding": "warning",
    "clipping": "warning",
    "half-pixel": "warning",
    "kernel": "warning",
    "antialias": "warning",
    "resampling": "warning",
}
"""What changes values by little; all else changes what the model sees."""


class InputDifference(Record):
    """One thing that two pipelines do differently.

    Attributes:
        kind: Which; "resampling" is a kernel or antialiasing where no more can be told, "fit" how
            the image is fitted to its frame (stretched, letterboxed, cropped), "normalisation" one
            that no single gain and offset explain, "values" what nothing here explains.
        severity: "error" changes what the model sees, "warning" changes it by little, "info" is
            only how arrays are stored.
        sentence: What B does differently.
        a: What A does, in a few words.
        b: What B does.
        evidence: The numbers that tell it; empty where the words are all there is.
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
    """One input, from two pipelines.

    Attributes:
        name: Its name in A.
        name_b: Its name in B.
        samples: How many samples were compared.
        shape_a: Shape of A's first sample.
        shape_b: Shape of B's first sample.
        dtype_a: Type of A.
        dtype_b: Type of B.
        differences: What differs, in the order in which pipelines do it; empty where nothing does.
        largest: Largest |A − B| before, in B's unit; None where the shapes differ.
        residual_max: Largest |transformed A − B| over the pixels that both have.
        residual_rms: Its root mean square, likewise.
        level: One of 255 levels in B's unit, which residuals compare with.
        exact: Whether nothing but rounding is left (`residual_max` is one level or less).
        order: Which sample of A each of B is.
        code: Python that turns a sample of A into one of B, with NumPy alone; empty where nothing
            is to be done.
        pipeline_a: How A resizes, fitted on raw images; None without them.
        pipeline_b: How B does.
    """

    name: str
    name_b: str
    samples: int
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    dtype_a: str
    dtype_b: str
    differences: tuple[InputDifference, ...]
    largest: float | None
    residual_max: float
    residual_rms: float
    level: float
    exact: bool
    order: tuple[int, ...]
    code: str = ""
    pipeline_a: str | None = None
    pipeline_b: str | None = None


class PreprocessingReport(Record):
    """Two pipelines, compared.

    Attributes:
        a: Where A came from.
        b: Where B came from.
        inputs: By input.
        notes: What was understood, and warnings.
        outputs: What the difference does to the model's outputs, B against A; None without a model
            or where the model cannot run on both (a note tells why).
        outputs_mapped: The same for B against A as the code transforms it: what would be left if A
            did as B does; None where nothing was transformed, or as `outputs`.
    """

    a: str
    b: str
    inputs: tuple[InputComparison, ...]
    notes: tuple[str, ...] = ()
    outputs: dict[str, OutputError] | None = None
    outputs_mapped: dict[str, OutputError] | None = None

    @property
    def same(self) -> bool:
        """Whether the model sees the same: nothing differs but how arrays are stored."""
        return all(d.severity == "info" for each in self.inputs for d in each.differences)


class TriedInputs(Record):
    """A change of the inputs that was tried, to see whether the framework had it.

    Attributes:
        differences: What the framework's inputs (B) would do differently from the samples (A).
        error: Largest RMS error of an output on a sample, relative to the RMS of that output over
            all samples.
    """

    differences: tuple[InputDifference, ...]
    error: float


class InputTrials(Record):
    """Changes of the inputs that were tried where the outputs are not those of the framework.

    Attributes:
        planned: How many there are.
        tried: How many of them were run: fewer where the time was up.
        kinds: The kinds of differences that they have, as far as they were run.
        limit: The error up to which outputs match.
        before: The error without a change, as in `TriedInputs`.
        best: The one with which all outputs of all samples match; where there is none, the one that
            came closest on the one sample that all were tried on. None where none came close to it.
        matches: Whether with `best` all match, on enough numbers to tell it from chance.
        also: How many others match too.
        shown_by: Samples whose outputs were beyond the limit before, and match.
        numbers: How many independent numbers of outputs became right.
        beside_spread: Whether errors are over what outputs vary by between samples, taken as at
            least a hundredth of their size; else over their size.
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
        engine: Where an engine is wrong; None where that is not it.
        quantisation: What the pairs of a quantised model do; None where nobody looked.
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
    engine: EngineDiagnosis | None = None
    quantisation: QuantisationLoss | None = None
