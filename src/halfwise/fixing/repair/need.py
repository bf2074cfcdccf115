"""Which guards concern only what lies within given nodes, and disappear with them."""

from collections.abc import Iterable

import onnx_ir as ir

from halfwise.graph.model import node_name
from halfwise.records import Guard, Place


def answered(guards: Iterable[Guard], nodes: Iterable[ir.Node]) -> tuple[Place, ...]:
    """Return kind and node of the guards on what only `nodes` see.

    This covers values passed between them, their constants, what happens inside them, and
    cancellation in values passed between them: not inputs from outside, nor outputs that others
    read.
    """
    own = dict.fromkeys(nodes)
    made = {v for n in own for v in n.outputs}
    read = {v for n in own for v in n.inputs if v is not None}
    constants = {v for v in read if v.const_value is not None}
    outside = {v for v in made if v.is_graph_output() or any(u.node not in own for u in v.uses())}
    tensors = {v.name for v in (made - outside) | constants}
    names = {node_name(n) for n in own}
    given = {node_name(n) for n in own if made.issuperset(v for v in n.inputs if v is not None)}
    found = (
        g
        for g in guards
        if g.tensor in tensors
        or (g.tensor is None and g.node in names)
        or (g.kind == "cancellation" and g.node in given)
    )
    return tuple(map(place, found))


def place(guard: Guard) -> Place:
    """Return kind and node of a guard, as in `Repair.guards`."""
    return Place(kind=guard.kind, node=guard.node)
