"""Precision of nodes that only move data: FP32 between kept nodes, else whatever saves Casts.

Rounding commutes with moving data. So between an FP32 source and a kept consumer a moving node
must be FP32 (it would round what the consumer needs), and everywhere else its precision changes no
value at all: there it is free, and is chosen to save Casts.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from halfwise.formats import Format
from halfwise.graph.casts import adjusted_elements, fill_of
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import NodeName, TensorName


def carried(
    network: Network,
    roles: Roles,
    kept: frozenset[NodeName],
    *,
    low_io: frozenset[TensorName] = frozenset(),
) -> frozenset[NodeName]:
    """Return the moving nodes that must be FP32 so that nothing between kept nodes is rounded.

    Args:
        network: The model.
        roles: Roles of its nodes.
        kept: The kept compute nodes.
        low_io: Float graph inputs and outputs that have the low type.

    Returns:
        Names of moving nodes with an FP32 source upstream (a kept or pinned node, an FP32 graph
        input, a constant) and an FP32 consumer downstream (a kept or pinned node, an FP32 graph
        output), both reached through moving nodes only.
    """
    return Carrying(network, roles, low_io)(kept)


class _Moving(NamedTuple):
    """What decides on a moving node.

    Attributes:
        name: Its name.
        is_fed: Whether it always has an FP32 source.
        sources: The nodes that make what it reads.
        is_needed: Whether it always has an FP32 consumer.
        consumers: The nodes of the main graph that read what it gives, low where they are low.
    """

    name: NodeName
    is_fed: bool
    sources: tuple[NodeName, ...]
    is_needed: bool
    consumers: tuple[NodeName, ...]


class Carrying:
    """`carried` of one network for many sets of kept nodes: the graph is read once."""

    def __init__(
        self, network: Network, roles: Roles, low_io: frozenset[TensorName] = frozenset()
    ) -> None:
        """Read the graph; the arguments are those of `carried`."""
        nodes = list(network.nodes())
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
    # Constants are FP32, and so are graph inputs that are not low.
    own = (v for v in floats if v.producer() is None)
    outside = any(not v.is_graph_input() or tensor_name(v) not in low_io for v in own)
    given_out = any(v.is_graph_output() and tensor_name(v) not in low_io for v in node.outputs)
    uses = [(roles.part(use.node), use.idx) for v in node.outputs for use in v.uses()]
    readers = [(part, slot) for part, slot in uses if part.role.role is not Role.BLIND]
    return _Moving(
        node_name(node),
        not floats or outside,
        tuple(node_name(p) for p in producers if p is not None),
        given_out or any(not part.reads_low(slot) for part, slot in readers),
        tuple(part.decider for part, _ in readers),
    )


def fewest_casts(
    network: Network,
    roles: Roles,
    assignment: frozenset[NodeName],
    fmt: Format,
    *,
    fixed: Iterable[NodeName] = (),
    low_io: frozenset[TensorName] = frozenset(),
) -> frozenset[NodeName]:
    """Return `assignment` with its numerically free moving nodes placed so that Casts are fewest.

    A value costs one Cast for each direction in which some consumer differs from its producer. The
    choice is a minimum cut, solved exactly as an integer program (HiGHS through SciPy).

    Args:
        network: The model.
        roles: Roles of its nodes.
        assignment: All FP32 nodes, as `kept | carried(...)`.
        fmt: The low format.
        fixed: Moving nodes whose state must stay as it is (user rules).
        low_io: Float graph inputs and outputs that have the low type.
    """
    computing = frozenset(n for n in assignment if roles[n].role is not Role.MOVEMENT)
    settled = carried(network, roles, computing, low_io=low_io).union(fixed)
    settled |= _move_adjusted(network, roles, fmt)
    free = [
        name for name, role in roles.items() if role.role is Role.MOVEMENT and name not in settled
    ]
    if not free:
        return assignment
    program = _CastProgram(free, roles, assignment, low_io)
    for node in network.nodes():
        for value in node.outputs:
            program.add_value(value)
    for value in network.graph.inputs:
        program.add_value(value)
    chosen = program.solve()
    return (assignment - frozenset(free)) | chosen


def _move_adjusted(network: Network, roles: Roles, fmt: Format) -> frozenset[NodeName]:
    """Return the moving nodes that constants pass through which are not merely rounded.

    A constant saturates where a Cast overflows, and stays where a Cast would make it zero, so for
    these it matters where they become low.
    """
    adjusted: set[ir.Value] = {
        v
        for v in network.graph.initializers.values()
        if is_float(v) and _is_adjusted(v.const_value, fmt)
    }
    moving = [n for n in network.nodes() if roles[node_name(n)].role is Role.MOVEMENT]
    for node in moving:
        fill = fill_of(node) if is_standard(node, "ConstantOfShape") else None
        if _is_adjusted(fill, fmt) or any(v in adjusted for v in node.inputs):
            adjusted.update(node.outputs)
    return frozenset(node_name(n) for n in moving if any(v in adjusted for v in n.outputs))


def _is_adjusted(tensor: ir.TensorProtocol | None, fmt: Format) -> bool:
    if tensor is None or tensor.dtype != ir.DataType.FLOAT:
        return False
    return adjusted_elements(np.asarray(tensor.numpy()), fmt) > 0


class _CastProgram:
    """Minimise Casts over x ∈ {0, 1} per free node, 1 for FP32."""

    def __init__(
        self,
        free: list[NodeName],
        roles: Roles,
        assignment: frozenset[NodeName],
        low_io: frozenset[TensorName],
    ) -> None:
        self.index = {name: i for i, name in enumerate(free)}
        self.roles = roles
        self.assignment = assignment
        self.low_io = low_io
        # All together below one Cast: among equal numbers of Casts, fewer FP32 nodes win.
        self.costs = [0.5 / len(free)] * len(free)
        self.rows: list[tuple[list[tuple[int, float]], float]] = []

    def state(self, name: NodeName) -> NodeName | float:
        """Return the name of a free node, or the fixed state of another: 0 or 1."""
        if name in self.index:
            return name
        return 1.0 if not self.roles[name].free or name in self.assignment else 0.0

    def add_value(self, value: ir.Value) -> None:
        """Add the Casts that `value` may need."""
        if not is_float(value):
            return
        producer = value.producer()
        io = float(tensor_name(value) not in self.low_io)
        source: NodeName | float = io if producer is None else self.state(node_name(producer))
        sinks: set[NodeName | float] = {io} if value.is_graph_output() else set()
        for use in value.uses():
            part = self.roles.part(use.node)
            if part.role.role is not Role.BLIND:
                sinks.add(self.state(part.decider) if part.reads_low(use.idx) else 1.0)
        if any(isinstance(s, str) for s in (source, *sinks)):
            self._add_cut(source, sinks, 1.0)
            self._add_cut(source, sinks, -1.0)

    def _add_cut(self, source: NodeName | float, sinks: set[NodeName | float], sign: float) -> None:
        cast = len(self.costs)
        self.costs.append(1.0)
        for sink in sinks:
            terms, bound = [(cast, 1.0)], 0.0
            for state, factor in ((source, -sign), (sink, sign)):
                if isinstance(state, str):
                    terms.append((self.index[state], factor))
                else:
                    bound -= factor * state
            self.rows.append((terms, bound))

    def solve(self) -> frozenset[NodeName]:
        """Return the free nodes that are FP32 in an optimal solution."""
        # Here: a third of a second to import, and many a model moves nothing.
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
        from scipy.sparse import coo_array  # noqa: PLC0415

        entries = [(r, c, f) for r, (terms, _) in enumerate(self.rows) for c, f in terms]
        row, column, factor = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = coo_array((factor, (row, column)), shape=(len(self.rows), len(self.costs)))
        result = milp(
            np.asarray(self.costs),
            constraints=LinearConstraint(matrix.tocsr(), lb=np.array([b for _, b in self.rows])),
            integrality=np.ones(len(self.costs)),
            bounds=Bounds(0, 1),
        )
        if result.x is None:
            return frozenset(n for n in self.index if n in self.assignment)
        return frozenset(name for name, i in self.index.items() if result.x[i] > 0.5)
