"""INT8 in the options."""

from collections.abc import Iterator, Mapping
from typing import Any

from halfwise.declarations import default
from halfwise.formats import FP16

INT8 = "int8"
"""The value of `to` for INT8."""


def low_of(given: Mapping[str, Any]) -> str:
    """Return the low format; for INT8, the format next to it."""
    lowest = str(given.get("to", default("to")))
    return FP16.name if lowest == INT8 else lowest


def refused_int8(given: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield possible contradictions: whether they occur, the message, the hint."""
    int8 = given.get("to") == INT8
    yield (
        "ranges" in given and not int8,
        "--ranges is for INT8, so it does not apply without --to int8.",
        "Add --to int8, or leave --ranges out.",
    )
    yield (
        "keep_above" in given and int8,
        "--keep-above does not search, but --to int8 must: only trials show which nodes can be "
        "INT8.",
        "Leave out one of the two.",
    )
    workers = given.get("trt_worker")
    yield (
        int8 and not isinstance(workers, str | None) and len(workers) > 1,
        "--to int8 plans for one worker, and several are given.",
        "Give one --trt-worker.",
    )
