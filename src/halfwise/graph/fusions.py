"""Repeated parts of a model: compute nodes that stand for one another."""

from collections.abc import Hashable, Iterator

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
    nodes = [n for n in network.all_nodes() if roles[node_name(n)].role is not Role.BLIND]
    refinement = _Refinement(nodes, roles)
    for _ in range(RADIUS):
        refinement.widen()
    numbers: dict[int, int] = {}
    return {
        node_name(n): numbers.setdefault(refinement.labels[n], len(numbers))
        for n in nodes
        if roles[node_name(n)].role is Role.COMPUTE
    }


class _Refinement:
    """Labels of nodes, refined round by round. Each distinct structure has a number, its label."""

    def __init__(self, nodes: list[ir.Node], roles: Roles) -> None:
        self.nodes = nodes
        self.moves = {n for n in nodes if roles[node_name(n)].role is Role.MOVEMENT}
        self.known: dict[Hashable, int] = {}
        self.labels = {n: self._number(_signature(n)) for n in nodes}

    def widen(self) -> None:
        """Look one compute node further in each direction."""
        sources, sinks = self._sources(), self._sinks()
        self.labels |= {
            n: self._number(
                (
                    self.labels[n],
                    self._operands(n, sources),
                    tuple(sinks[v] for v in n.outputs),
                )
            )
            for n in self.nodes
            if n not in self.moves
        }

    def _sources(self) -> dict[ir.Value, int]:
        """Return the source of each value: a compute node, or one before data movement."""
        sources: dict[ir.Value, int] = {}
        for node in self.nodes:
            origin = self._operands(node, sources) if node in self.moves else ()
            for i, value in enumerate(node.outputs):
                sources[value] = self._number((self.labels[node], i, origin))
        return sources

    def _operands(self, node: ir.Node, sources: dict[ir.Value, int]) -> tuple[int, ...]:
        described = [
            sources[v] if v is not None and v in sources else self._number(_leaf(v))
            for v in node.inputs
        ]
        return tuple(sorted(described)) if node.op_type in _COMMUTATIVE else tuple(described)

    def _sinks(self) -> dict[ir.Value, int]:
        """Return the sinks of each value: compute nodes, or those after data movement."""
        sinks: dict[ir.Value, int] = {}
        for node in reversed(self.nodes):
            for value in node.outputs:
                sinks[value] = self._number(
                    (value.is_graph_output(), *sorted(self._uses(value, sinks)))
                )
        return sinks

    def _uses(self, value: ir.Value, sinks: dict[ir.Value, int]) -> Iterator[int]:
        for use in value.uses():
            node = use.node
            if node in self.labels:
                slot = 0 if node.op_type in _COMMUTATIVE else use.idx
                beyond = tuple(sinks[v] for v in node.outputs) if node in self.moves else ()
                yield self._number((self.labels[node], slot, beyond))

    def _number(self, structure: Hashable) -> int:
        return self.known.setdefault(structure, len(self.known))


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
