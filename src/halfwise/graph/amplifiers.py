"""Operators that need a value to its own scale, and what hands errors of that kind on to them."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.graph.model import Network, constant_array, node_name
from halfwise.graph.patterns.reading import square_of
from halfwise.graph.roles import Role, Roles, is_float

SUMS = frozenset(
    (
        *("Add", "Sub", "Sum", "Conv", "ConvTranspose", "Gemm", "MatMul", "DFT", "STFT"),
        *("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"),
    )
)
"""Operators whose result may be far smaller than the terms that they add up."""
_FACTORS = frozenset(
    (
        *("Mul", "Div", "Neg", "Abs", "Pow", "Sqrt", "Reciprocal", "Clip", "Max", "Min"),
        *("ReduceL2", "ReduceMax", "ReduceMin", "ReduceSumSquare"),
    )
)
"""Operators that change the relative error of what they read by a small factor at most."""
_NON_NEGATIVE = frozenset(("Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax"))
"""Operators without negative results."""
_KEEPS_SIGN = frozenset(
    (
        *("Add", "Sum", "Mul", "Div", "Max", "Min", "Clip", "Reciprocal", "Sqrt"),
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "AveragePool", "GlobalAveragePool"),
    )
)
"""Operators without negative results where nothing that they read is negative."""
_LONGEST = 24
"""Nodes after which a chain ends: beyond, what is inherited is that of a whole network."""


def amplifiers(network: Network, roles: Roles) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield each node that may be low and needs an operand to its own scale, with that operand.

    A logarithm turns the relative error of what it reads into an absolute one; reciprocals,
    denominators and negative powers hand it on to results that are large where the operand is
    small. Constants and graph inputs are left out: nothing but their own rounding is in them. So
    are divisors that are sums of squares, exponentials and the like, as in norms and Softmax: such
    a sum does not cancel, and what is divided by a norm carries the errors of its squares itself.
    """
    for node in network.nodes():
        slot = {"Log": 0, "Reciprocal": 0, "Div": 1}.get(node.op_type)
        if node.op_type == "Pow" and _is_negative(node.inputs[1]):
            slot = 0
        if slot is None or not roles[node_name(node)].free:
            continue
        value = node.inputs[slot]
        if value is None or not is_float(value) or value.producer() is None:
            continue
        if node.op_type == "Log" or not _is_positive(value, roles):
            yield node, value


def chain(value: ir.Value, roles: Roles) -> list[ir.Node]:
    """Return the compute nodes that relative errors of `value` come from, nearest first.

    Through data movement, sums, and operators that hand relative errors on; at most 24 nodes. The
    last ones on the way, which do neither, are among them.
    """
    found: dict[ir.Node, None] = {}
    seen: set[ir.Node] = set()
    waiting = deque([value.producer()])
    while waiting and len(found) < _LONGEST:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        moves = roles[node_name(node)].role is Role.MOVEMENT
        if not moves:
            found[node] = None
        if moves or hands_on(node):
            waiting += [v.producer() for v in node.inputs if v is not None and is_float(v)]
    return list(found)


def hands_on(node: ir.Node) -> bool:
    """Return whether the relative error of its result follows from those of what it reads."""
    return node.op_type in SUMS or node.op_type in _FACTORS


def _is_positive(value: ir.Value, roles: Roles) -> bool:
    """Return whether operators alone tell that no element is negative."""
    seen: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        node = current.producer()
        if current in seen or not is_float(current):
            continue
        seen.add(current)
        if current.const_value is not None and current.is_initializer():
            if np.any(np.signbit(np.asarray(constant_array(current), np.float32))):
                return False
        elif node is None or len(seen) > _LONGEST:
            return False
        elif not (node.op_type in _NON_NEGATIVE or square_of(current)):
            if node.op_type not in _KEEPS_SIGN and roles[node_name(node)].role is not Role.MOVEMENT:
                return False
            waiting += [v for v in node.inputs if v is not None]
    return True


def _is_negative(exponent: ir.Value | None) -> bool:
    if exponent is None or exponent.const_value is None or not exponent.is_initializer():
        return False
    array = np.asarray(constant_array(exponent), np.float32)
    return bool(array.size and (array < 0).all())
