"""Make recorded repairs in a network."""

from collections.abc import Iterable
from dataclasses import replace

from halfwise.errors import CaseError
from halfwise.fixing.repair import rules
from halfwise.fixing.repair.metadata import mark
from halfwise.graph.model import REFUSALS, Network, normalise
from halfwise.records import Repair
from halfwise.wording import listed


def repaired(network: Network, repairs: Iterable[Repair]) -> Network:
    """Return `network` with repairs, made one after the other in this order; itself without any.

    What stays keeps its name, and the network its file, hash and the user's names; constants that
    no repair changes are shared, not copied. The metadata says what was made (see `metadata`).

    Raises:
        CaseError: a repair was not proposed for this network, no rule of this version makes it, or
            what it makes is refused by ONNX.
    """
    repairs = tuple(repairs)
    if not repairs:
        return network
    known = {rule.name: rule for rule in rules.RULES}
    model = network.copy()
    for repair in repairs:
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
