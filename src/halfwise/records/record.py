"""What every record is, and the names and words that records share."""

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
"""The worst first. An error is a thing that cannot work; a warning breaks some models; an info is
worth knowing where something else is wrong."""
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
        """Return the record as JSON; bytes of file names that are not UTF-8 are escaped in it.

        Python has them as lone surrogates (PEP 383), which JSON readers refuse. So are characters
        that a terminal would act on, such as a name's that turns the direction of what follows.
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
    """An input whose values look made up instead of recorded.

    Attributes:
        input: Its name.
        kind: "normal" or "uniform" noise, or "constant".
        mean: Mean of the elements that were looked at.
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
    "single",
    "copies",
    "linted",
    "lint-failed",
    "left-out",
    "none-low",
    "quantised",
    "of-the-run",
    "refused",
    "recognised",
    "repairs-unread",
]
"""What a note says; `reporting.notes` has the words."""


Fact = str | int | tuple[str, ...] | tuple[int, ...]


class Note(Record):
    """One thing that was understood of a model or its inputs, or that is wrong with them.

    Attributes:
        kind: What it is.
        severity: "warning": it may make the result worth less; "info": it is there to be checked.
        of: Which samples it is about, where there are two sets.
        facts: Its numbers and names; which, goes by the kind.
        made_up: The input that looks made up, where that is what it says.
    """

    kind: NoteKind
    severity: Severity = "info"
    of: Literal["", "held out", "A", "B"] = ""
    facts: dict[str, Fact] = {}
    made_up: MadeUp | None = None


class Facts(Record):
    """What a sentence tells of: the report has a template for each kind of record.

    Attributes:
        kind: What it says.
        names: Its names; which, goes by the kind.
        numbers: Its numbers, likewise.
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
"""Why a verdict fails; `reporting.reasons` has the words."""


class Failure(Facts):
    """One reason why a verdict fails.

    Attributes:
        kind: What it is.
        names: What it is about, such as the "output", and the "sample" that shows it.
        numbers: Its numbers, such as "rel_max" or, of a metric, the values "before" and "after".
        under: Where it shows if that is not what the verdict judges, outermost first: "seen"
            samples, the "file" as ONNX Runtime runs it, a "batch" of so many, "shapes" of such an
            end of the profile, "checked" by the worker before it was lost, on one "device" of
            several.
        text: Its words where the facts are on record elsewhere: what is not judged, causes, notes,
            rungs of a diagnosis, a figure beside the baseline's. "" for the others.
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
"""What a remark says; `reporting.plan` has the words.

"opset-raised", "opset-stays": for the low format; "repair-…": why a repair that was tried is
undone; "unrepaired": engines refuted all that were made; "unscaled": what keeps a tensor from being
stored times a power of two; "unranged", "int8-untried": why nodes have no INT8; "start",
"start-int8": what the search started from; "seen-only": calibration samples alone need the plan;
"tolerance": what would accept everything that no guard explains; "first-look": elements were looked
at on few samples; "low-io", "constant", "input": ends of the model; "other-engine", "emulated",
"spared", "added": how the delivered engine is beside the emulation; the others: steps of a search.
"""
UNDONE: frozenset[RemarkKind] = frozenset(
    (
        *("repair-unmade", "repair-useless", "repair-dearer", "repair-unproven"),
        *("repair-spare", "repair-outdone", "repair-failing"),
    )
)
"""What remarks tell of repairs that are not in the plan."""


class Remark(Facts):
    """One thing to know of a plan as a whole, of its model, or of how it was found.

    Attributes:
        kind: What it is.
        severity: "warning" where it may be a mistake.
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
