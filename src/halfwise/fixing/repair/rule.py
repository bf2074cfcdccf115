"""The contract of a repair."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.graph.model import is_standard
from halfwise.records import Repair, RepairRule


@dataclass(frozen=True)
class Identity:
    """What a rule rests on.

    Attributes:
        formula: The identity, such as "norm(x; eps) = norm(s·x; s²·eps)".
        holds: The inputs for which it holds in exact arithmetic.
        exact: Whether it is an identity at all; what is none is opt-in (`--allow approximate`).
    """

    formula: str
    holds: str
    exact: bool = True


class Rule(Protocol):
    """A rule: one file of `fixing.repair.rules`."""

    name: RepairRule
    identity: Identity

    def propose(self, evidence: Evidence) -> Iterable[Repair]:
        """Yield the repairs that `evidence` asks for, none of which overlaps another of this rule.

        Reads the network, changes nothing. Nothing is proposed where numbers show no need.
        """
        ...

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Make a repair in place.

        All that stays keeps its name; graph inputs and outputs keep name, type and shape. Needs
        nothing but the model and the record, so that a repair can be made again from a run.

        Raises:
            CaseError: the model is not the one that the repair was proposed for.
        """
        ...


def named(model: ir.Model, repair: Repair, *ops: str) -> list[ir.Node]:
    """Return the nodes of a repair, in its order; of operators `ops` where given.

    Raises:
        CaseError: the main graph lacks one, or it has another operator.
    """
    nodes = {node.name: node for node in model.graph}
    found = [nodes[name] for name in repair.nodes if name in nodes]
    if len(found) < len(repair.nodes) or not all(is_standard(n, *ops) for n in found):
        raise misfit(repair)
    return found


def misfit(repair: Repair) -> CaseError:
    """Return the error that a repair does not fit the model."""
    return CaseError(
        f"The repair '{repair.rule}' at {repair.nodes[0]} does not fit this model.",
        "Use the model that it was found on, or fix this one.",
    )
