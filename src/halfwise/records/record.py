"""The base of all records, the types that they share, steps, and findings of lint and logs."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NewType,
    Self,
    SupportsFloat,
    dataclass_transform,
)

import msgspec
import numpy as np

SCHEMA_VERSION = 1

NodeName = NewType("NodeName", str)
"""Name of an ONNX node, unique within a model once halfwise has loaded it."""
TensorName = NewType("TensorName", str)
"""Name of a value (tensor) in an ONNX graph."""

Level = Literal["emulated", "recorded", "engine"]
Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Most severe first. An error cannot work, a warning breaks some models, an info helps once
something else is wrong."""
GuardKind = Literal[
    "overflow",
    "headroom",
    "square",
    "sum",
    "underflow",
    "eps",
    "cancellation",
    "constant-range",
    "constant-subnormal",
    "integer",
    "grid",
    "angle",
    "mask",
    "margin",
    "infinite",
    "decision",
]


_NOT_ASCII = re.compile(r"[^\n -~]+")


class _ByKeyword(msgspec.StructMeta):
    """Makes classes whose fields are named in every call, which msgspec does not inherit."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **settings: Any
    ) -> "_ByKeyword":
        return super().__new__(mcls, name, bases, namespace, kw_only=True, **settings)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record(msgspec.Struct, metaclass=_ByKeyword, frozen=True, forbid_unknown_fields=True):
    """Base of every record: immutable, no unknown fields, non-finite numbers as strings.

    Types are checked where a record is read, not where it is made. `msgspec.convert` takes one from
    plain values, with `strict=False` if numbers may be strings.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them, non-finite numbers as strings."""
        fields = msgspec.to_builtins(self, enc_hook=_number)
        plain: dict[str, Any] = json.loads(json.dumps(fields), parse_constant=str)
        return plain

    def to_json(self, *, indent: int = -1) -> str:
        """Return the record as JSON, with characters escaped that other programs would trip over.

        Bytes of file names that are not UTF-8 are lone surrogates in Python (PEP 383), which JSON
        readers refuse. Terminals act on control characters, such as marks that reverse the
        direction of text.

        Args:
            indent: Spaces for each level; -1 for one line.
        """
        text = json.dumps(self.to_dict(), ensure_ascii=False)
        return msgspec.json.format(_NOT_ASCII.sub(_escaped, text), indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the record that `to_json` wrote.

        Raises:
            ValueError: it is none of this class.
        """
        return msgspec.json.decode(text, type=cls, strict=False)


if TYPE_CHECKING:
    # mypy then checks names and types of the fields, of records as of dataclasses.
    from dataclasses import replace as replace  # noqa: PLC0414 exported
else:

    def replace(value: object, /, **changes: object) -> object:
        """Return a record or a dataclass with other values of some fields.

        `copy.replace` of Python 3.13.
        """
        known = dataclasses.replace if dataclasses.is_dataclass(value) else msgspec.structs.replace
        return known(value, **changes)


def _number(scalar: SupportsFloat) -> object:
    """Return what is no number of Python's own as one: a scalar of NumPy, a metric's score."""
    return scalar.item() if isinstance(scalar, np.generic) else float(scalar)


def _escaped(match: re.Match[str]) -> str:
    """Return characters as JSON: printable ones as they are, lone surrogates spelled out."""
    spelled = match[0].encode("utf-8", "backslashreplace").decode().replace("\\", r"\\")
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in spelled)


class MadeUp(Record):
    """An input whose values look generated, not recorded.

    Attributes:
        input: Its name.
        kind: "normal" or "uniform" noise, or "constant".
        mean: Mean of the elements that were examined.
        deviation: Their standard deviation.
    """

    input: str
    kind: Literal["normal", "uniform", "constant"]
    mean: float
    deviation: float


NoteKind = Literal[
    "samples",
    "array",
    "layout",
    "first-sample",
    "ignored",
    "random",
    "dynamic",
    "preprocess",
    "mistyped",
    "stored",
    "ranks",
    "made-up",
    "split",
    "mixed-rows",
    "single",
    "copies",
    "linted",
    "unbuilt",
    "late",
    "static",
    "frozen",
    "aside",
    "branch",
    "unobserved",
    "draws",
    "left-out",
    "none-low",
    "folded",
    "quantised",
    "of-the-run",
    "refused",
    "recognised",
    "settled",
]
"""What a note says; the words are in `reporting.remarks`."""


Fact = str | int | tuple[str | int, ...]


class Note(Record):
    """An observation about a model or its inputs.

    Attributes:
        kind: What the note says.
        severity: "warning": the result may be worth less; "info": worth checking.
        of: Which set of samples the note is about, if there are two.
        facts: Its numbers and names; their keys depend on `kind`.
        made_up: The input that looks generated, if the note says so.
    """

    kind: NoteKind
    severity: Severity = "info"
    of: Literal["", "held out", "A", "B"] = ""
    facts: dict[str, Fact] = {}
    made_up: MadeUp | None = None


class Facts(Record):
    """The facts behind a sentence; the report has a template for each kind.

    Attributes:
        kind: What it says.
        names: Its names; their keys depend on `kind`.
        numbers: Its numbers; their keys depend on `kind`.
    """

    kind: str
    names: Mapping[str, str] = {}
    numbers: Mapping[str, int | float] = {}

    @property
    def facts(self) -> dict[str, str | float]:
        """Names and numbers together."""
        return {**self.names, **self.numbers}


FailureKind = Literal[
    "no-sample",
    "seen",
    "rate",
    "few",
    "run",
    "batch",
    "non-finite",
    "shape",
    "agreement",
    "tolerance",
    "metric",
    "part",
    "flip",
    "infinite",
    "worth",
    "worse",
    "not-real",
    "unjudged",
    "no-engine",
    "fp32-lost",
    "fp32-wrong",
    "not-run",
    "unfetched",
    "cause",
    "rung",
    "unmade",
    "other-graph",
    "other-aside",
    "mistyped",
    "interface",
    "unproven",
    "refused",
    "folded",
]
"""Why a verdict fails; the words are in `reporting.remarks`."""
UNSHOWN: frozenset[FailureKind] = frozenset(("no-sample", "seen", "few"))
"""Failures of the samples, which show nothing of the candidate."""


class Failure(Facts):
    """One reason why a verdict fails.

    Attributes:
        kind: The reason.
        names: What it concerns, such as the "output", and the "sample" that shows it.
        numbers: Its numbers, such as "rel_max", or the metric's values "before" and "after".
        under: Where it occurs if not in the judged run itself, outermost first: on "seen" samples,
            in the "file" as that runs it, in a "batch" of that size, at "shapes" at that
            end of the profile, on one "device" of several.
        text: The sentence itself if the facts are recorded elsewhere: what is not judged, causes,
            notes, rungs of a diagnosis, a figure compared with the baseline. "" otherwise.
    """

    kind: FailureKind
    under: Mapping[str, str | int] = {}
    text: str = ""


RemarkKind = Literal[
    "opset-raised",
    "opset-stays",
    "repair-unmade",
    "repair-useless",
    "repair-unproven",
    "repair-spare",
    "unrepaired",
    "int8-untried",
    "repair-outdone",
    "start",
    "start-int8",
    "seen-only",
    "low-io",
    "constant",
    "input",
    "other-engine",
    "emulated",
    "spared",
    "added",
    "built-price",
    "hopeless",
    "spent",
    "futile",
    "dearer",
    "passes",
    "measuring",
    "ranked",
    "chosen",
]
"""What a remark says; the words are in `reporting.remarks`.

"opset-raised", "opset-stays": to support the low format; "repair-…": why a repair is not made;
"unrepaired": engines refuted all repairs; "int8-untried": why no node is INT8;
"start", "start-int8": where the search started; "seen-only": only calibration samples need the
plan; "low-io", "constant", "input": ends of the model; "other-engine", "emulated", "spared",
"added": how the delivered engine differs from the emulation; "built-price": a target's builder
decided among the last plans; the rest: steps of a search.
"""
UNDONE: frozenset[RemarkKind] = frozenset(
    (
        *("repair-unmade", "repair-useless", "repair-unproven"),
        *("repair-spare", "repair-outdone"),
    )
)
"""Remarks about repairs that are not in the plan."""


class Remark(Facts):
    """A remark about a plan as a whole, its model, or the search for it.

    Attributes:
        kind: What the remark says.
    """

    kind: RemarkKind


StepKind = Literal[
    "said",
    "write",
    "deliver",
    "build",
    "prove",
    "engines",
    "verify-elsewhere",
    "export",
    "use-fp32",
    "lint",
    "choose-cost",
    "unfused",
    "fix",
    "fix-quantised",
    "compare",
    "diagnose",
    "reexport",
    "other-builds",
    "typing-strong",
    "accumulate-fp16",
    "no-tf32",
    "more-builds",
    "search-on",
    "ask-strict",
    "keep-less",
    "leave-lower",
    "more-samples",
    "enough-samples",
    "real-inputs",
    "untested",
    "check-tolerance",
    "batches",
    "best-model",
]
"""What a step does; the words are in `reporting.remarks`."""


class Step(Facts):
    """Something to do next.

    Attributes:
        kind: What it does.
        names: Files, formats and options that it concerns; their keys depend on `kind`, for
            "engines" they are the devices of the files.
        numbers: Its numbers; their keys depend on `kind`.
        items: What it lists: metrics, nodes, devices, groups of figures, or what a model has
            that is built.
        command: The words of the command that does it, not quoted; None if no single one does.
        text: The sentence itself for "said", which other records hold the facts of; the file for
            "deliver"; "" otherwise.
    """

    kind: StepKind
    items: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    text: str = ""


def said(*sentences: str) -> tuple[Step, ...]:
    """Return a step for each sentence of advice on what another record holds."""
    return tuple(Step(kind="said", text=text) for text in sentences)


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
        opset: Version of ONNX's operator set; None if the file cannot be read.
        nodes: Number of nodes, bodies included.
        target: What the model was checked for.
        version: Its version; None if only for TensorRT in general, without a parser.
        findings: Errors first, then warnings, then infos; within each by rule, in graph order.
        ignored: Ids of rules left out on request.
    """

    source: str
    producer: str
    opset: int | None
    nodes: int
    target: str
    version: str | None
    findings: tuple[Finding, ...]
    ignored: tuple[str, ...] = ()


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


Via = Literal["node", "output", "reader", ""]
"""How a name in a log leads to a node, see `LogNode`."""


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
    via: Via = ""


class LogReport(Record):
    """A log, explained.

    Attributes:
        source: Where the log came from.
        lines: Number of lines read.
        tensorrt: Version of TensorRT, if the log shows it.
        findings: Errors first, then warnings, then infos, each in the order of the log.
        nodes: What the names in `findings` refer to; None without a model.
        model_nodes: Number of nodes in the model, bodies included; None without a model.
    """

    source: str
    lines: int
    tensorrt: str | None
    findings: tuple[LogFinding, ...]
    nodes: tuple[LogNode, ...] | None = None
    model_nodes: int | None = None
