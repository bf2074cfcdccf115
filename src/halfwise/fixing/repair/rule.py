"""The contract of a repair, and which guards one answers."""

from collections.abc import Iterable
from typing import Protocol

import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.graph.model import is_standard, node_name
from halfwise.records import (
    Guard,
    Place,
    Repair,
    RepairRule,
)


class Rule(Protocol):
    """A rule of `fixing.repair.making`.

    Attributes:
        name: Its name.
        identity: What it rests on, such as "norm(x; eps) = norm(s·x; s²·eps)".
    """

    name: RepairRule
    identity: str

    def propose(self, evidence: Evidence) -> Iterable[Repair]:
        """Yield the repairs that `evidence` asks for; repairs of one rule do not overlap.

        Reads the network without changing it. Proposes nothing unless numbers show a need.
        """
        ...

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        """Make repairs in place, one after the other.

        Everything that remains keeps its name; graph inputs and outputs keep name, type and shape.
        Needs only the model and the records, so that a repair can be made again from a run.

        Raises:
            CaseError: the repair was proposed for another model.
        """
        ...


def named(model: ir.Model, repair: Repair, *ops: str) -> list[ir.Node]:
    """Return the nodes of a repair, in its order; only of operators `ops` if given.

    Raises:
        CaseError: the model lacks one, or it has another operator.
    """
    nodes = {node.name: node for node in model.graph.all_nodes()}
    present = [nodes[name] for name in repair.nodes if name in nodes]
    if len(present) < len(repair.nodes) or not all(is_standard(n, *ops) for n in present):
        raise misfit(repair)
    return present


def misfit(repair: Repair) -> CaseError:
    """Return the error for a repair that does not fit the model."""
    return CaseError(
        f"The repair '{repair.rule}' at {repair.nodes[0]} does not fit this model.",
        "Use the model that it was proposed for, or run `halfwise fix` on this one.",
    )


def answered(guards: Iterable[Guard], nodes: Iterable[ir.Node]) -> tuple[Place, ...]:
    """Return kind and node of the guards on what only `nodes` see.

    This covers values passed between them, their constants, what happens inside them, and
    cancellation in values passed between them: not inputs from outside, nor outputs that others
    read.
    """
    inner = dict.fromkeys(nodes)
    outputs = {v for n in inner for v in n.outputs}
    read = {v for n in inner for v in n.inputs if v is not None}
    constants = {v for v in read if v.const_value is not None}
    outside = {
        v for v in outputs if v.is_graph_output() or any(u.node not in inner for u in v.uses())
    }
    tensors = {v.name for v in (outputs - outside) | constants}
    names = {node_name(n) for n in inner}
    fed = {node_name(n) for n in inner if outputs.issuperset(v for v in n.inputs if v is not None)}
    answering = (
        g
        for g in guards
        if g.tensor in tensors
        or (g.tensor is None and g.node in names)
        or (g.kind == "cancellation" and g.node in fed)
    )
    return tuple(map(place, answering))


def place(guard: Guard) -> Place:
    """Return kind and node of a guard, as in `Repair.guards`."""
    return Place(kind=guard.kind, node=guard.node)
