"""Repairs in a model's own metadata, so that anybody can make and prove them again."""

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

import onnx_ir as ir
from pydantic import Field, ValidationError

from halfwise.errors import CaseError
from halfwise.graph.model import Network
from halfwise.records import Record, Repair

KEY = "halfwise.repairs"
VERSION = 1
MOST_BYTES = 1 << 24
"""Maximum size of the text: a repair of each of 10,000 nodes with names of 1,000 characters."""
MOST_EXPONENT = 252
"""Maximum exponent of two; FP32 has no more between its smallest and largest normal numbers."""


class _Made(Record):
    version: int
    repairs: tuple[Repair, ...] = Field(max_length=10_000)


def mark(model: ir.Model, repairs: Sequence[Repair]) -> None:
    """Append repairs to the metadata of a model, in place.

    Other entries stay. The gain from repairs is in the record of the run.

    Raises:
        CaseError: the model's existing entry cannot be read.
    """
    plain = {"before": None, "after": None, "proof": None}
    made = (*marked(model), *(repair.model_copy(update=plain) for repair in repairs))
    model.metadata_props[KEY] = _Made(version=VERSION, repairs=made).model_dump_json(
        exclude_defaults=True
    )


def with_readable(network: Network) -> tuple[Network, str]:
    """Return a network without its entry if unreadable, and why; else itself, and ""."""
    try:
        marked(network.model)
    except CaseError as error:
        model = network.copy()
        del model.metadata_props[KEY]
        return replace(network, model=model), error.message
    return network, ""


def marked(model: ir.Model) -> tuple[Repair, ...]:
    """Return the repairs recorded in a model's metadata, in order; none without an entry.

    Raises:
        CaseError: the entry is too long, was not written by halfwise, or is of a later version.
    """
    text = model.metadata_props.get(KEY)
    if text is None:
        return ()
    hint = f"Remove the entry {KEY} from the model's metadata, or give the file as it was written."
    if len(text) > MOST_BYTES:
        raise CaseError(f"The metadata's {KEY} has {len(text):,} characters; too many.", hint)
    try:
        made = _Made.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        where = error.errors()[0] if isinstance(error, ValidationError) else None
        at = ".".join(map(str, where["loc"])) if where else ""
        why = f"{at and f' at {at}'}: {where['msg']}" if where else ""
        raise CaseError(
            f"The metadata's {KEY} is not a list of repairs{why[:200]}.", hint
        ) from error
    if made.version != VERSION:
        raise CaseError(
            f"The metadata's {KEY} has version {made.version}; this halfwise knows {VERSION}.",
            "Use the version of halfwise that wrote the model.",
        )
    exponents = (e for repair in made.repairs for e in repair.exponents.values())
    numbers = (n for repair in made.repairs for n in repair.numbers.values())
    if any(abs(e) > MOST_EXPONENT for e in exponents) or not all(map(isfinite, numbers)):
        raise CaseError(f"The metadata's {KEY} holds numbers that FP32 cannot represent.", hint)
    return made.repairs


def further(candidate: ir.Model, original: ir.Model) -> tuple[Repair, ...]:
    """Return the repairs that a candidate names beyond those that the original names first.

    Raises:
        CaseError: as `marked`.
    """
    named, before = marked(candidate), marked(original)
    return named[len(before) :] if named[: len(before)] == before else named
