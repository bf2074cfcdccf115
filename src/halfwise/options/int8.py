"""What the options ask for of INT8."""

from collections.abc import Iterator, Mapping
from typing import Any

from halfwise.declarations import default
from halfwise.formats import FP16

INT8 = "int8"
"""The value of `to` that asks for it."""


def low_of(given: Mapping[str, Any]) -> str:
    """Return the low format: that beside which INT8 is."""
    lowest = str(given.get("to", default("to")))
    return FP16.name if lowest == INT8 else lowest


def refused_int8(given: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield what contradicts itself: whether it does, the message, the hint."""
    int8 = given.get("to") == INT8
    yield (
        "ranges" in given and not int8,
        "--ranges is about INT8, and does not apply without --to int8.",
        "Give --to int8 too, or leave it out.",
    )
    yield (
        "keep_above" in given and int8,
        "--keep-above searches nothing, and --to int8 has to: which nodes INT8 is enough for "
        "follows from trials.",
        "Leave out one of the two.",
    )
    workers = given.get("trt_worker")
    yield (
        int8 and not isinstance(workers, str | None) and len(workers) > 1,
        "--to int8 finds no plan for several workers.",
        "Name one --trt-worker.",
    )
