"""What every record is, and the names and words that records share."""

from typing import Literal, NewType

from pydantic import BaseModel, ConfigDict

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


class Record(BaseModel):
    """Base of every record: immutable, no unknown fields, non-finite numbers as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
