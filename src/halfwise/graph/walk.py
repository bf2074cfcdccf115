"""Walks from a tensor to the compute nodes that make it and use it, through data movement."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from halfwise.graph.roles import Role, Roles, is_float

FARTHEST = 24
"""Nodes after which a walk upstream ends: a guard is a local suspicion, and where a whole network
computes with tiny values, guards that each name all of it would say nothing and take O(n²)."""


def moves(node: ir.Node, roles: Roles) -> bool:
    """Return whether `node` only moves data."""
    return roles.part(node).role.role is Role.MOVEMENT


def producers(value: ir.Value | None, roles: Roles) -> list[ir.Node]:
    """Return the nodes that compute the elements of `value` (several behind a Concat)."""
    found: dict[ir.Node, None] = {}
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        node = current.producer()
        if node is None:
            continue
        if moves(node, roles):
            waiting += [v for v in node.inputs if is_float(v)]
        else:
            found[node] = None
    return list(found)


def consumers(value: ir.Value, roles: Roles) -> Iterator[tuple[ir.Node, int]]:
    """Yield node and input slot wherever elements of `value` are computed with.

    What a body does is yielded as its own nodes, also where they only hand elements out of it.
    """
    seen = {value}
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses():
            if not moves(use.node, roles):
                yield use.node, use.idx
                continue
            for output in use.node.outputs:
                if output.is_graph_output() and roles.part(use.node).decider != use.node.name:
                    yield use.node, use.idx
                if output not in seen:
                    seen.add(output)
                    waiting.append(output)


def low_consumers(value: ir.Value, roles: Roles) -> list[ir.Node]:
    """Return the consumers that would read `value` in the low format."""
    nodes = (n for n, slot in consumers(value, roles) if reads_low(n, slot, roles))
    return list(dict.fromkeys(nodes))


def reads_low(node: ir.Node, slot: int, roles: Roles) -> bool:
    """Return whether `node` may be low and then reads the input `slot` in the low format."""
    return roles.part(node).reads_low(slot)


def constant_behind(value: ir.Value | None, roles: Roles) -> ir.Value | None:
    """Return the one constant whose elements `value` holds, None where it holds others."""
    while value is not None and value.const_value is None:
        node = value.producer()
        if node is None or not moves(node, roles):
            return None
        sources = [v for v in node.inputs if is_float(v)]
        value = sources[0] if len(sources) == 1 else None
    return value


def upstream(
    start: ir.Value | None, roles: Roles, follow: Callable[[ir.Node], Iterable[ir.Value | None]]
) -> list[ir.Node]:
    """Return the producers of `start`, of the values that `follow` names for these, and so on.

    Nearest first, and at most `FARTHEST` of them.
    """
    found: dict[ir.Node, None] = {}
    waiting = deque(producers(start, roles))
    while waiting and len(found) < FARTHEST:
        node = waiting.popleft()
        if node in found:
            continue
        found[node] = None
        for value in follow(node):
            if is_float(value):
                waiting += producers(value, roles)
    return list(found)
