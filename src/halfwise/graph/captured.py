"""What nodes read: their operands, and what their bodies (If, Loop, Scan) take from outside."""

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from halfwise.graph.roles import bodies

CAPTURED = -1
"""Stands for the slot of what a body reads."""
Uses = Mapping[ir.Value, list[tuple[ir.Node, int]]]


def operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return what a node reads at its slots, then what its bodies capture, each once."""
    own = (v for v in node.inputs if v is not None and v.name)
    return tuple(dict.fromkeys((*own, *captured(node))))


def captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the values that the bodies of a node read or give out, but are from outside."""
    return tuple(dict.fromkeys(v for body in bodies(node) for v in _from_outside(body)))


def uses_in(nodes: Iterable[ir.Node]) -> Uses:
    """Return where `nodes` read each value: node and slot.

    A body is part of its node: what it captures, the node reads (at `CAPTURED`).
    """
    found: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in nodes:
        slots = [(v, i) for i, v in enumerate(node.inputs) if v is not None]
        for value, slot in (*slots, *((v, CAPTURED) for v in captured(node))):
            found.setdefault(value, []).append((node, slot))
    return found


def _from_outside(body: ir.Graph) -> list[ir.Value]:
    made = (v for n in body for v in n.outputs)
    inside = {*body.inputs, *body.initializers.values(), *made}
    read = [v for n in body for v in operands(n)]
    return [v for v in (*read, *body.outputs) if v.name and v not in inside]
