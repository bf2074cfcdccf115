"""Cuts a graph into stretches: nodes that are switched together if they share a precision."""

from collections.abc import Container, Iterable, Iterator, Sequence

import onnx_ir as ir

from halfwise.graph.model import node_name
from halfwise.graph.roles import Role, Roles, bodies, is_float
from halfwise.records import NodeName

SIZE = 24
"""Approximate nodes per stretch. Longer ones have fewer borders, but more often mix precisions."""

LONG = 64
"""The same if no stretch mixes precisions. A run then has fewer borders; ONNX Runtime needs up to
three times as long to load a body of a thousand nodes."""

_END = 1 << 62


def stretches(
    nodes: Sequence[ir.Node],
    roles: Roles,
    size: int = SIZE,
    apart: Container[NodeName] = frozenset(),
) -> list[list[ir.Node]]:
    """Return the nodes in order, cut where few values cross; nodes that cannot join are alone.

    Args:
        nodes: The nodes of the main graph, in topological order.
        roles: Their roles.
        size: Approximate nodes per stretch; the actual number is 0.5 to 1.5 times that.
        apart: Nodes likely to differ in precision from their neighbours.
    """
    last = _last_readers(nodes, roles)
    found: list[list[ir.Node]] = []
    for first, end in _joinable(nodes, roles, apart):
        start = first
        while start < end:
            cut = _best_cut(nodes, last, start, end, size)
            part = list(nodes[start:cut])
            several = sum(roles[node_name(n)].free for n in part) > 1
            found += [part] if several else [[n] for n in part]
            start = cut
    return found


def _joinable(
    nodes: Sequence[ir.Node], roles: Roles, apart: Container[NodeName]
) -> Iterator[tuple[int, int]]:
    """Yield maximal ranges of nodes that an If may hold and that likely share a precision."""
    start, side = 0, False
    for i, node in enumerate(nodes):
        free, joins = roles[node_name(node)].free, _may_join(node, roles)
        here = node_name(node) in apart if free else side
        if start < i and (not joins or here != side):
            yield start, i
            start = i
        side = here
        if not joins:
            yield i, i + 1
            start = i + 1
    if start < len(nodes):
        yield start, len(nodes)


def _may_join(node: ir.Node, roles: Roles) -> bool:
    role = roles[node_name(node)]
    if bodies(node) or role.role is Role.PINNED:
        return False
    return role.free or all(can_leave_if(v) for v in node.outputs if v.name)


def can_leave_if(value: ir.Value) -> bool:
    """Return whether ONNX Runtime's If can output `value`: no sequences, no packed types."""
    if not isinstance(value.type, ir.TensorType) or value.dtype is None:
        return False
    return value.dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL) or is_float(
        value
    )


def _last_readers(nodes: Sequence[ir.Node], roles: Roles) -> dict[ir.Value, int]:
    """Return where each value is read last; `_END` for graph outputs, unread values left out."""
    place = {node_name(n): i for i, n in enumerate(nodes)}
    last: dict[ir.Value, int] = {}
    for node in nodes:
        for value in node.outputs:
            readers = [place[roles.part(use.node).decider] for use in value.uses()]
            if readers or value.is_graph_output():
                last[value] = _END if value.is_graph_output() else max(readers)
    return last


def _best_cut(
    nodes: Sequence[ir.Node], last: dict[ir.Value, int], start: int, end: int, size: int
) -> int:
    """Return where a stretch from `start` ends: the latest place that the fewest values cross."""
    if end - start <= size * 3 // 2:
        return end
    cuts = range(start + max(1, size // 2), start + max(1, size * 3 // 2) + 1)
    return min(cuts, key=lambda cut: (_crossing(nodes[start:cut], last, cut), -cut))


def _crossing(part: Iterable[ir.Node], last: dict[ir.Value, int], cut: int) -> int:
    return sum(is_float(v) and last.get(v, -1) >= cut for n in part for v in n.outputs)
