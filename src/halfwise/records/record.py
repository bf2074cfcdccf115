"""What every record is, and the names and words that records share."""

import json
import re
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
        """Return the record as JSON; bytes of file names that are no UTF-8 are escaped in it.

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


def _readable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_readable(key): _readable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_readable, value))
    return value
