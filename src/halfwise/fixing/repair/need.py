"""Which suspicions are about what lies within some nodes, and is gone where they are."""

from collections.abc import Iterable

import onnx_ir as ir

from halfwise.graph.model import node_name
from halfwise.records import Guard


def answered(guards: Iterable[Guard], nodes: Iterable[ir.Node]) -> tuple[str, ...]:
    """Return kind and node of the guards on what only `nodes` see.

    That is what they hand each other, their constants, what happens inside of them, and where what
    they hand each other cancels: not what comes from outside, nor what others read.
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
    return tuple(map(label, found))


def label(guard: Guard) -> str:
    """Return what `Repair.guards` calls a guard."""
    return f"{guard.kind} at {guard.node}"
