"""Make recorded repairs in a network."""

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.fixing.repair import rules
from halfwise.fixing.repair.metadata import mark
from halfwise.graph.conversion import raise_opset
from halfwise.graph.model import REFUSALS, Network, normalise
from halfwise.records import Repair
from halfwise.wording import listed


def repaired(network: Network, repairs: Iterable[Repair]) -> Network:
    """Return `network` with repairs made in this order; itself if there are none.

    Remaining nodes keep their names, and the network its file, hash and the user's names; constants
    that no repair changes are shared, not copied. The metadata records the repairs (see
    `metadata`).

    Raises:
        CaseError: a repair was not proposed for this network, no rule of this version makes it, or
            ONNX rejects the result.
    """
    repairs = tuple(repairs)
    if not repairs:
        return network
    known = {rule.name: rule for rule in rules.RULES}
    model, last = network.copy(), repairs[0].rule
    for repair in repairs:
        if repair.rule != last or not _are_typed(model, repair):
            model = normalise(model, path=network.path, sha256=network.sha256).model
        last = repair.rule
        if repair.rule not in known:
            raise CaseError(
                f"This version of halfwise does not know the repair '{repair.rule}'.",
                "Use the version that made the run, or fix the model again.",
            )
        try:
            known[repair.rule].apply(model, repair)
        except REFUSALS as error:
            raise CaseError(
                f"The repair '{repair.rule}' at {listed(repair.nodes)} cannot be made: {error}",
                f"Leave it out: --no-repair {repair.rule}.",
            ) from error
    mark(model, repairs)
    made = normalise(model, path=network.path, sha256=network.sha256)
    return replace(network, model=made.model)


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
        made = repaired(network, repairs)
        if made.opset >= opset:
            return network, made
    except CaseError:
        if network.opset >= opset:
            raise
    raised = raise_opset(network, opset)
    return raised, repaired(raised, repairs)


def _are_typed(model: ir.Model, repair: Repair) -> bool:
    """Return whether a repair's inputs and outputs have types; earlier repairs may leave none.

    Repairs of one rule that were found together concern different nodes, and types are inferred
    once.
    """
    named = (n for n in model.graph if n.name in repair.nodes)
    return all(v.type is not None for n in named for v in (*n.inputs, *n.outputs) if v is not None)
