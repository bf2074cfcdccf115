"""Read what a value is, past data movement: a constant, a scaled value, a square."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from halfwise.graph.model import constant_array, is_standard

Nodes = frozenset[ir.Node]
"""The nodes of a match."""

NO_NODES: Nodes = frozenset()

_MOVES = frozenset(
    (
        *("Cast", "Dropout", "Expand", "Flatten", "Identity"),
        *("Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators whose first output holds only elements of their first input."""

CLOSED = frozenset(("Abs", "Add", "Concat", "Max", "Min", "Mod", "Mul", "Neg", "Sub"))
"""Operators that give whole numbers for whole numbers, as they do for integers."""
_LARGEST_SCALAR = 4096
"""Most elements of a constant that may be a scalar: larger ones are weights."""


@dataclass(frozen=True)
class Seen:
    """A value and the nodes between it and the place where the search began."""

    value: ir.Value
    nodes: Nodes = NO_NODES


def moves(node: ir.Node) -> bool:
    """Return whether a node only moves elements, or changes their type."""
    return is_standard(node, *_MOVES)


def is_constant(value: ir.Value | None) -> bool:
    """Return whether `value` is a constant or moved from one."""
    return value is not None and behind(value).value.const_value is not None


def scalar(value: ir.Value | None) -> float | None:
    """Return the number that all elements of a constant equal; None for others and for NaN."""
    root = None if value is None else behind(value).value
    if root is None or root.const_value is None or root.const_value.size > _LARGEST_SCALAR:
        return None
    array = constant_array(root)
    if array.size == 0 or not np.issubdtype(array.dtype, np.number):
        return None
    first = float(array.flat[0])
    return first if bool((array == array.flat[0]).all()) else None


def behind(value: ir.Value) -> Seen:
    """Return the value whose elements `value` holds, from before all data movement."""
    passed: list[ir.Node] = []
    while (node := value.producer()) is not None and moves(node):
        source = node.inputs[0]
        if source is None or value.index() != 0:
            break
        passed.append(node)
        value = source
    return Seen(value, frozenset(passed))


def same(one: ir.Value | None, other: ir.Value | None) -> bool:
    """Return whether both hold the same elements, up to data movement."""
    return one is not None and other is not None and behind(one).value is behind(other).value


def maker(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node before `value`'s data movement if it is one of `ops`, else None."""
    node = None if value is None else behind(value).value.producer()
    return node if node is not None and is_standard(node, *ops) else None


def way(value: ir.Value) -> Nodes:
    """Return the node that computes `value`, and the data movement in between."""
    seen = behind(value)
    node = seen.value.producer()
    return seen.nodes if node is None else seen.nodes | {node}


def readers(value: ir.Value) -> Iterator[tuple[ir.Node, int, Nodes]]:
    """Yield consumer, input slot and the data movement in between, for every consumer."""
    waiting: list[tuple[ir.Value, Nodes]] = [(value, NO_NODES)]
    while waiting:
        current, passed = waiting.pop(0)
        for use in current.uses():
            if moves(use.node) and use.idx == 0:
                waiting.append((use.node.outputs[0], passed | {use.node}))
            else:
                yield use.node, use.idx, passed


def other_operand(node: ir.Node, slot: int) -> ir.Value | None:
    """Return the operand of a two-operand node that is not at `slot`."""
    return node.inputs[1 - slot] if len(node.inputs) == 2 else None


def split_constant(value: ir.Value | None, *ops: str) -> tuple[Seen, float] | None:
    """Return the variable operand and the scalar of `value = op(variable, scalar)`, else None.

    `Div`, `Sub` and `Pow` take the scalar second; `Clip` takes it as its lower bound.
    """
    node = maker(value, *ops)
    if node is None or value is None:
        return None
    slots = (1, 0) if node.op_type in ("Add", "Mul", "Max", "Min", "Sum") else (1,)
    for slot in slots:
        number = scalar(node.inputs[slot]) if slot < len(node.inputs) else None
        variable = node.inputs[0 if slot else 1]
        if number is not None and variable is not None and not is_constant(variable):
            return Seen(variable, way(value)), number
    return None


def chosen_branch(node: ir.Node) -> ir.Value | None:
    """Return the operand selected by a Where with a single constant condition, else None."""
    condition = node.inputs[0]
    if condition is None or condition.const_value is None or condition.const_value.size != 1:
        return None
    return node.inputs[1 if constant_array(condition).all() else 2]


def square_of(value: ir.Value) -> Seen | None:
    """Return the value that `value` is the square of: `Pow(x, 2)` or `Mul(x, x)`."""
    if (power := split_constant(value, "Pow")) and power[1] == 2.0:
        return power[0]
    product = maker(value, "Mul")
    if product is None or not same(*product.inputs) or product.inputs[0] is None:
        return None
    return Seen(product.inputs[0], way(value))


def axes_of(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a reduction (attribute or constant input); None for all or unknown."""
    if node.op_type == "GlobalAveragePool":
        value = node.inputs[0]
        rank = 4 if value is None or value.shape is None else value.shape.rank()
        return tuple(range(2, rank))
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return tuple(attribute.as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None or given.const_value is None:
        return None
    return tuple(int(axis) for axis in constant_array(given).ravel())


def from_integer(node: ir.Node) -> bool:
    """Return whether a node is a Cast from an integer type."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source is not None and source.dtype is not None and source.dtype.is_integer()
