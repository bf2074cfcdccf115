"""Walks from a tensor to the compute nodes that make it and use it, through data movement."""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from halfwise.graph.model import node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import NodeName


def moves(node: ir.Node, roles: Roles) -> bool:
    """Return whether `node` only moves data."""
    role = roles.get(node_name(node))
    return role is not None and role.role is Role.MOVEMENT


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
    """Yield node and input slot wherever elements of `value` are computed with."""
    seen = {value}
    waiting = [value]
    while waiting:
        for use in waiting.pop().uses():
            if not moves(use.node, roles):
                yield use.node, use.idx
                continue
            for output in use.node.outputs:
                if output not in seen:
                    seen.add(output)
                    waiting.append(output)


def low_consumers(value: ir.Value, roles: Roles) -> list[ir.Node]:
    """Return the consumers that would read `value` in the low format."""
    nodes = (n for n, slot in consumers(value, roles) if reads_low(n, slot, roles))
    return list(dict.fromkeys(nodes))


def reads_low(node: ir.Node, slot: int, roles: Roles) -> bool:
    """Return whether `node` may be low and then reads the input `slot` in the low format."""
    role = roles.get(node_name(node))
    return role is not None and role.free and role.inputs[slot]


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
    start: ir.Value | None, roles: Roles, passes: Callable[[ir.Node], bool]
) -> list[ir.Node]:
    """Return the producers of `start`, and those of every producer that `passes`, and so on."""
    found: dict[ir.Node, None] = {}
    waiting = producers(start, roles)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = None
        if passes(node):
            for value in node.inputs:
                if is_float(value):
                    waiting += producers(value, roles)
    return list(found)


def names(nodes: list[ir.Node]) -> list[NodeName]:
    """Return the names of `nodes`."""
    return [node_name(n) for n in nodes]
