"""Repeated parts of a model: compute nodes that stand for one another."""

from collections.abc import Callable, Container, Hashable

import onnx_ir as ir

from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, bodies
from halfwise.records import NodeName

RADIUS = 2
"""Compute nodes that a class covers in each direction; data movement on the path does not count.

At 1, the two residual Adds of a transformer block are one class. At 2, they differ (the MatMuls
behind them have weights of other shapes), q, k and v differ, and 12 of the 13 LayerNorms of a
six-block ViT are one class: the first follows the position embedding. At 3, the last one drops
out too, because no further block reads the same stream.
"""

_COMMUTATIVE = frozenset(("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"))


def repeated(network: Network, roles: Roles) -> dict[NodeName, int]:
    """Return the class of every compute node: equal numbers for equal roles in repeated blocks.

    Weisfeiler-Lehman refinement (Shervashidze et al. 2011): a node starts from its operator,
    attributes, and the element types and shapes of its constants; each of `RADIUS` rounds adds the
    neighbouring classes, in operand order unless the operator commutes. Names, constants' values,
    sizes of activations and nodes without float values (shape computations) do not count. Moving
    nodes are edge labels between compute nodes.

    Args:
        network: The model.
        roles: Roles of its nodes.

    Returns:
        Class by node name, for nodes with role COMPUTE, numbered from 0 in graph order.
        Time is linear in the number of edges.
    """
    nodes = [n for n in network.all_nodes() if roles.of(n).role is not Role.BLIND]
    moving = {n for n in nodes if roles.of(n).role is Role.MOVEMENT}
    known: dict[Hashable, int] = {}

    def number(structure: Hashable) -> int:
        return known.setdefault(structure, len(known))

    labels = {n: number(_signature(n)) for n in nodes}
    for _ in range(RADIUS):
        labels |= _widened(labels, moving, number)
    numbers: dict[int, int] = {}
    computing = (n for n in nodes if roles.of(n).role is Role.COMPUTE)
    return {node_name(n): numbers.setdefault(labels[n], len(numbers)) for n in computing}


def _widened(
    labels: dict[ir.Node, int],
    moving: Container[ir.Node],
    number: Callable[[Hashable], int],
) -> dict[ir.Node, int]:
    """Return the labels of compute nodes that look one compute node further in each direction.

    Args:
        labels: Of all nodes, in graph order.
        moving: Those that move data: what they read and who reads them is part of an edge.
        number: Gives each distinct structure its number.
    """
    sources: dict[ir.Value, int] = {}
    sinks: dict[ir.Value, int] = {}

    def read(node: ir.Node) -> tuple[int, ...]:
        described = [
            sources[v] if v is not None and v in sources else number(_leaf(v)) for v in node.inputs
        ]
        return tuple(sorted(described)) if node.op_type in _COMMUTATIVE else tuple(described)

    def used(node: ir.Node, slot: int) -> int:
        beyond = tuple(sinks[v] for v in node.outputs) if node in moving else ()
        return number((labels[node], 0 if node.op_type in _COMMUTATIVE else slot, beyond))

    for node, label in labels.items():
        origin = read(node) if node in moving else ()
        sources |= {v: number((label, i, origin)) for i, v in enumerate(node.outputs)}
    for node in reversed(labels):
        for value in node.outputs:
            uses = sorted(used(u.node, u.idx) for u in value.uses() if u.node in labels)
            sinks[value] = number((value.is_graph_output(), *uses))
    return {
        n: number((label, read(n), tuple(sinks[v] for v in n.outputs)))
        for n, label in labels.items()
        if n not in moving
    }


def _signature(node: ir.Node) -> Hashable:
    inner = tuple(n.op_type for body in bodies(node) for n in body)
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    plain = (a for a in node.attributes.values() if not a.is_ref() and a.type not in graphs)
    attributes = sorted((a.name, str(a.type), _content(a)) for a in plain)
    constants = tuple(_leaf(v) for v in node.inputs if v is not None and v.const_value is not None)
    if node.op_type in _COMMUTATIVE:
        constants = tuple(sorted(constants, key=str))
    return node.domain, node.op_type, tuple(attributes), constants, inner


def _content(attribute: ir.Attr) -> str:
    if attribute.type is ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype} {tensor.shape}"
    return str(attribute.value)


def _leaf(value: ir.Value | None) -> Hashable:
    """Describe an operand that is absent, constant, or not computed by a node with floats."""
    if value is None:
        return ("absent",)
    kind = "constant" if value.const_value is not None else "input"
    shape = str(value.shape) if value.const_value is not None else ""
    return kind, str(value.dtype), shape
