"""Make recorded repairs in a network, and record them in its own metadata.

So anybody can make and prove them again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from math import isfinite

import onnx_ir as ir
from pydantic import Field, ValidationError

from halfwise.errors import CaseError
from halfwise.fixing.repair.mask import Mask
from halfwise.fixing.repair.one_node import OneNode
from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.repair.scale import Scale
from halfwise.fixing.repair.shift import Shift
from halfwise.fixing.repair.split import Split
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import REFUSALS, normalise
from halfwise.graph.model import Network
from halfwise.records import Record, Repair
from halfwise.wording import listed

RULES: tuple[Rule, ...] = (Mask(), Scale(), Shift(), OneNode(), Split())
"""In the order in which they are made: exact ones, with powers of two, come first."""
KEY = "halfwise.repairs"
VERSION = 1
MOST_EXPONENT = 252
"""Maximum exponent of two; FP32 has no more between its smallest and largest normal numbers."""


class _Entry(Record):
    version: int
    repairs: tuple[Repair, ...] = Field(max_length=10_000)


def mark(model: ir.Model, repairs: Sequence[Repair]) -> None:
    """Append repairs to the metadata of a model, in place.

    Other entries stay. The gain from repairs is in the record of the run.

    Raises:
        CaseError: the model's existing entry cannot be read.
    """
    plain = {"before": None, "after": None, "proof": None}
    repaired_by = (*marked(model), *(repair.model_copy(update=plain) for repair in repairs))
    model.metadata_props[KEY] = _Entry(version=VERSION, repairs=repaired_by).model_dump_json(
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
        CaseError: the entry was not written by halfwise, or is of a later version.
    """
    text = model.metadata_props.get(KEY)
    if text is None:
        return ()
    hint = f"Remove the entry {KEY} from the model's metadata, or give the file as it was written."
    try:
        entry = _Entry.model_validate_json(text)
    except ValidationError as error:
        raise CaseError(f"The metadata's {KEY} is not a list of repairs.", hint) from error
    if entry.version != VERSION:
        raise CaseError(
            f"The metadata's {KEY} has version {entry.version}; this halfwise knows {VERSION}.",
            "Use the version of halfwise that wrote the model.",
        )
    exponents = (e for repair in entry.repairs for e in repair.exponents.values())
    numbers = (n for repair in entry.repairs for n in repair.numbers.values())
    if any(abs(e) > MOST_EXPONENT for e in exponents) or not all(map(isfinite, numbers)):
        raise CaseError(f"The metadata's {KEY} holds numbers that FP32 cannot represent.", hint)
    return entry.repairs


def further(candidate: ir.Model, original: ir.Model) -> tuple[Repair, ...]:
    """Return the repairs that a candidate names beyond those that the original names first.

    Raises:
        CaseError: as `marked`.
    """
    named, before = marked(candidate), marked(original)
    return named[len(before) :] if named[: len(before)] == before else named


def repaired(network: Network, repairs: Iterable[Repair]) -> Network:
    """Return `network` with repairs made in this order; itself if there are none.

    Remaining nodes keep their names, and the network its file, hash and the user's names; constants
    that no repair changes are shared, not copied. The metadata records the repairs (see
    `mark`).

    Raises:
        CaseError: a repair was not proposed for this network, no rule of this version makes it, or
            ONNX rejects the result.
    """
    repairs = tuple(repairs)
    if not repairs:
        return network
    rules, model = {rule.name: rule for rule in RULES}, network.copy()
    for name, group in groupby(repairs, key=lambda repair: repair.rule):
        if name != repairs[0].rule:
            model = normalise(model, path=network.path, sha256=network.sha256).model
        if name not in rules:
            raise CaseError(
                f"This version of halfwise does not know the repair '{name}'.",
                "Use the version that made the run, or fix the model again.",
            )
        alike = tuple(group)
        try:
            rules[name].apply(model, *alike)
        except REFUSALS as error:
            nodes = [node for repair in alike for node in repair.nodes]
            raise CaseError(
                f"The repair '{name}' at {listed(nodes)} cannot be made: {error}",
                f"Leave it out: --no-repair {name}.",
            ) from error
    mark(model, repairs)
    typed = normalise(model, path=network.path, sha256=network.sha256)
    return replace(network, model=typed.model)


def repaired_at(
    network: Network, repairs: tuple[Repair, ...], opset: int
) -> tuple[Network, Network]:
    """Return a network and what repairs make of it, both at a later opset where they need that.

    Args:
        network: The original.
        repairs: Those that a file names.
        opset: That file's.

    Raises:
        CaseError: as `repaired`, or the opset cannot be raised.
    """
    try:
        changed = repaired(network, repairs)
        if changed.opset >= opset:
            return network, changed
    except CaseError:
        if network.opset >= opset:
            raise
    raised = raise_opset(network, opset)
    return raised, repaired(raised, repairs)
