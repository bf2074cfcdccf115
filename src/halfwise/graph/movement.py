"""Precision of data-movement nodes: FP32 between kept nodes, low elsewhere.

Rounding commutes with moving data. So between an FP32 source and a kept consumer, a moving node
must be FP32: otherwise it would round what the consumer needs. Everywhere else its precision
changes no value, and low moves half the bytes.
"""

from functools import cached_property
from typing import NamedTuple

import onnx_ir as ir

from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import Role, Roles, is_float, roles_of
from halfwise.records import NodeName, TensorName


def carried(
    network: Network,
    roles: Roles,
    kept: frozenset[NodeName],
    *,
    low_io: frozenset[TensorName] = frozenset(),
) -> frozenset[NodeName]:
    """Return the moving nodes that must be FP32 so that no value between kept nodes is rounded.

    Args:
        network: The model.
        roles: Roles of its nodes.
        kept: The kept compute nodes.
        low_io: Float graph inputs and outputs that have the low type.

    Returns:
        Names of moving nodes with an FP32 source upstream (a kept or pinned node, an FP32 graph
        input, a constant) and an FP32 consumer downstream (a kept or pinned node, an FP32 graph
        output), both reached only through moving nodes.
    """
    return Carrying(network, roles, low_io)(kept)


class _Moving(NamedTuple):
    """What determines the precision of a moving node.

    Attributes:
        name: Its name.
        is_fed: Whether it always has an FP32 source.
        sources: The nodes whose outputs it reads.
        is_needed: Whether it always has an FP32 consumer.
        consumers: The nodes that read its outputs.
    """

    name: NodeName
    is_fed: bool
    sources: tuple[NodeName, ...]
    is_needed: bool
    consumers: tuple[NodeName, ...]


class Carrying:
    """`carried` for many sets of kept nodes of one network, which is read only once."""

    def __init__(
        self, network: Network, roles: Roles, low_io: frozenset[TensorName] = frozenset()
    ) -> None:
        """Read the graph; arguments as for `carried`."""
        nodes = list(network.all_nodes())
        self._pinned = {node_name(n) for n in nodes if roles[node_name(n)].role is Role.PINNED}
        moving = (n for n in nodes if roles[node_name(n)].role is Role.MOVEMENT)
        self._moving = [_moving(node, roles, low_io) for node in moving]

    def __call__(self, kept: frozenset[NodeName]) -> frozenset[NodeName]:
        """Return the moving nodes that must be FP32 with the compute nodes `kept`."""
        fp32 = self._pinned | kept
        fed: set[NodeName] = set()
        for node in self._moving:
            if node.is_fed or any(n in fp32 or n in fed for n in node.sources):
                fed.add(node.name)
        needed: set[NodeName] = set()
        for node in reversed(self._moving):
            if node.is_needed or any(n in fp32 or n in needed for n in node.consumers):
                needed.add(node.name)
        return frozenset(fed & needed) - kept


def _moving(node: ir.Node, roles: Roles, low_io: frozenset[TensorName]) -> _Moving:
    floats = [v for v in node.inputs if v is not None and is_float(v)]
    producers = [v.producer() for v in floats]
    # Constants are FP32, and so are graph inputs unless low.
    sources = (v for v in floats if v.producer() is None)
    outside = any(not v.is_graph_input() or tensor_name(v) not in low_io for v in sources)
    given_out = any(v.is_graph_output() and tensor_name(v) not in low_io for v in node.outputs)
    uses = (use for v in node.outputs for use in v.uses())
    readers = [use for use in uses if roles.of(use.node).role is not Role.BLIND]
    return _Moving(
        node_name(node),
        not floats or outside,
        tuple(node_name(p) for p in producers if p is not None),
        given_out or any(not roles.reads_low(*use) for use in readers),
        tuple(node_name(use.node) for use in readers),
    )


class Following:
    """The nodes that only move data and are BF16 because the nodes before them are."""

    def __init__(self, network: Network, roles: Roles) -> None:
        """Store the model and the roles of its nodes, which are read when needed."""
        self._network, self._roles = network, roles

    @cached_property
    def _moving(self) -> list[tuple[NodeName, set[NodeName | None]]]:
        may, roles = may_have_bf16(self._network, self._roles), self._roles
        may = frozenset(name for name in may if roles[name].role is Role.MOVEMENT)
        return [
            (node_name(n), _makers(n)) for n in self._network.all_nodes() if node_name(n) in may
        ]

    def __call__(self, fp32: frozenset[NodeName], bf16: frozenset[NodeName]) -> frozenset[NodeName]:
        """Return `bf16` and the nodes that only move data from these.

        Args:
            fp32: All nodes outside the low format.
            bf16: Compute nodes among them.
        """
        if not bf16:
            return bf16  # the opset may have no BF16
        moving = set(bf16)
        for name, makers in self._moving:
            if name in fp32 and makers <= moving:
                moving.add(name)
        return frozenset(moving)


def _makers(node: ir.Node) -> set[NodeName | None]:
    made_by = [v.producer() for v in node.inputs if v is not None and is_float(v)]
    return {None if maker is None else node_name(maker) for maker in made_by} or {None}


def may_have_bf16(network: Network, roles: Roles) -> frozenset[NodeName]:
    """Return the nodes that take BF16 in the same slots as FP16.

    Raises:
        CaseError: the opset has no BF16.
    """
    other = roles_of(network, ir.DataType.BFLOAT16)
    return frozenset(n for n, r in roles.items() if r.free and r == other[n])
