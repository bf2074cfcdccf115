"""The base of all records, and the names and types that they share."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NewType

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError

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
    "floor",
    "constant-range",
    "constant-subnormal",
    "integer",
    "grid",
    "angle",
    "residual",
    "mask",
    "margin",
    "infinite",
    "decision",
]


_NOT_ASCII = re.compile(r"[^\n -~]+")


class Record(BaseModel):
    """Base of every record: immutable, no unknown fields, non-finite numbers as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    # Any: what pydantic takes.
    def model_dump_json(self, **options: Any) -> str:
        """Return the record as JSON, with characters escaped that other programs would trip over.

        Bytes of file names that are not UTF-8 are lone surrogates in Python (PEP 383), which JSON
        readers refuse. Terminals act on control characters, such as marks that reverse the
        direction of text.
        """
        try:
            text = super().model_dump_json(**options)
        except PydanticSerializationError:
            readable = type(self).model_validate(_readable(self.model_dump()))
            text = BaseModel.model_dump_json(readable, **options)
        return _NOT_ASCII.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in found[0])


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
    "paired",
    "random",
    "dynamic",
    "preprocess",
    "no-decoder",
    "repaired",
    "stored",
    "ranks",
    "made-up",
    "split",
    "mixed-rows",
    "single",
    "copies",
    "linted",
    "lint-failed",
    "left-out",
    "none-low",
    "folded",
    "quantised",
    "of-the-run",
    "refused",
    "recognised",
    "repairs-unread",
    "settled",
]
"""What a note says; the words are in `reporting.notes`."""


Fact = str | int | tuple[str, ...] | tuple[int, ...]


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
    "device-lost",
    "cause",
    "rung",
    "unmade",
    "other-graph",
    "unproven",
]
"""Why a verdict fails; the words are in `reporting.reasons`."""


class Failure(Facts):
    """One reason why a verdict fails.

    Attributes:
        kind: The reason.
        names: What it concerns, such as the "output", and the "sample" that shows it.
        numbers: Its numbers, such as "rel_max", or the metric's values "before" and "after".
        under: Where it occurs if not in the judged run itself, outermost first: on "seen" samples,
            in the "file" as ONNX Runtime runs it, in a "batch" of that size, at "shapes" at that
            end of the profile, "checked" by the worker before the connection was lost, on one
            "device" of several.
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
    "repair-dearer",
    "repair-unproven",
    "repair-spare",
    "unrepaired",
    "unscaled",
    "unranged",
    "int8-untried",
    "repair-untried",
    "repair-left",
    "scale-limited",
    "repair-outdone",
    "repair-failing",
    "start",
    "start-int8",
    "seen-only",
    "tolerance",
    "first-look",
    "low-io",
    "constant",
    "input",
    "other-engine",
    "emulated",
    "spared",
    "added",
    "hopeless",
    "spent",
    "futile",
    "served",
    "dearer",
    "sounder",
    "summing",
    "rationed",
    "another-sample",
    "passes",
    "larger",
    "extended",
    "measuring",
    "ranked",
    "grouped",
    "by-range",
    "chosen",
    "refused",
]
"""What a remark says; the words are in `reporting.remarks`.

"opset-raised", "opset-stays": to support the low format; "repair-…": why a repair was tried and
undone; "unrepaired": engines refuted all repairs; "unscaled": why a tensor cannot be stored times a
power of two; "unranged", "int8-untried": why nodes are not INT8; "start", "start-int8": where the
search started; "seen-only": only calibration samples need the plan; "tolerance": the tolerance that
would accept everything no guard explains; "first-look": element statistics come from few samples;
"low-io", "constant", "input": inputs and outputs of the model; "other-engine", "emulated",
"spared", "added": how the delivered engine differs from the emulation; the rest: steps of a search.
"""
UNDONE: frozenset[RemarkKind] = frozenset(
    (
        *("repair-unmade", "repair-useless", "repair-dearer", "repair-unproven"),
        *("repair-spare", "repair-outdone", "repair-failing"),
    )
)
"""Remarks about repairs that are not in the plan."""


class Remark(Facts):
    """A remark about a plan as a whole, its model, or the search for it.

    Attributes:
        kind: What the remark says.
        severity: "warning" if it may point to a mistake.
    """

    kind: RemarkKind
    severity: Severity = "info"


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_readable(key): _readable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_readable, value))
    return value
