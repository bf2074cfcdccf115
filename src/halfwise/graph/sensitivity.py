"""Where small errors become large, and which values cannot become larger.

- amplifiers: operators sensitive to a value's relative error, and operators that pass it on;
- decisions: nodes where floats become discrete, and the nodes that lead there;
- selected constants: tensors whose extremes do not depend on the data.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from halfwise.graph.dataflow import FARTHEST, ancestors, moves, operands, reached, uses_in
from halfwise.graph.model import Network, constant_array, is_standard, node_name, tensor_name
from halfwise.graph.reading import square_of
from halfwise.graph.roles import TYPE_BLIND, Role, Roles, is_float
from halfwise.records import NodeName, Observation, TensorName

SUMS = frozenset(
    (
        *("Add", "Sub", "Sum", "Conv", "ConvTranspose", "Gemm", "MatMul", "DFT", "STFT"),
        *("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"),
    )
)
"""Operators whose result may be far smaller than the terms they add up."""
_FACTORS = frozenset(
    (
        *("Mul", "Div", "Neg", "Abs", "Pow", "Sqrt", "Reciprocal", "Clip", "Max", "Min"),
        *("ReduceL2", "ReduceMax", "ReduceMin", "ReduceSumSquare"),
    )
)
"""Operators that change the relative error of their input by a small factor at most."""
_NON_NEGATIVE = frozenset(("Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax"))
"""Operators without negative results."""
_KEEPS_SIGN = frozenset(
    (
        *("Add", "Sum", "Mul", "Div", "Max", "Min", "Clip", "Reciprocal", "Sqrt"),
        *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "AveragePool", "GlobalAveragePool"),
    )
)
"""Operators without negative results if no input is negative."""
_PICKING = ("Abs", "Max", "Min", "Neg", "ReduceMax", "ReduceMin")
"""Operators whose results are as large as elements of their input."""
_STEPS = frozenset(("Ceil", "Floor", "Round", "Sign"))
"""Operators that give whole numbers as floats."""


def amplifiers(network: Network, roles: Roles) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield each node that may be low and amplifies an operand's relative error, with the operand.

    A logarithm turns its input's relative error into an absolute one; reciprocals, denominators
    and negative powers pass it on to results that are large where the operand is small. Constants
    and graph inputs are left out: they carry only their own rounding. So are divisors that are
    sums of squares, exponentials and the like, as in norms and Softmax: such a sum does not cancel,
    and the dividend of a norm carries the errors of its squares itself.
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
    """Return the compute nodes that cause relative errors of `value`, nearest first.

    The walk continues through data movement, sums, and operators that pass relative errors on. At
    most `FARTHEST` nodes, including the last on each path, which does none of this.
    """

    def before(node: ir.Node) -> list[ir.Node | None]:
        return _makers(node.inputs) if moves(node, roles) or hands_on(node) else []

    return ancestors([value.producer()], before, lambda node: not moves(node, roles))


def _makers(values: Iterable[ir.Value | None]) -> list[ir.Node | None]:
    return [v.producer() for v in values if v is not None and is_float(v)]


def hands_on(node: ir.Node) -> bool:
    """Return whether the relative error of a node's result follows from those of its inputs."""
    return node.op_type in SUMS or node.op_type in _FACTORS


def _is_positive(value: ir.Value, roles: Roles) -> bool:
    """Return whether the operators alone rule out negative elements."""
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
        elif node is None or len(seen) > FARTHEST:
            return False
        elif not (node.op_type in _NON_NEGATIVE or square_of(current)):
            if node.op_type not in _KEEPS_SIGN and not moves(node, roles):
                return False
            waiting += [v for v in node.inputs if v is not None]
    return True


def _is_negative(exponent: ir.Value | None) -> bool:
    if exponent is None or exponent.const_value is None or not exponent.is_initializer():
        return False
    array = np.asarray(constant_array(exponent), np.float32)
    return bool(array.size and (array < 0).all())


def decisions(network: Network) -> Iterator[ir.Node]:
    """Yield the main graph's nodes that turn computed floats into whole numbers or Booleans."""
    for node in network.nodes():
        floats = [v for v in operands(node) if is_float(v) and not v.is_initializer()]
        if floats and not is_standard(node, *TYPE_BLIND) and _decided(node):
            yield node


def decided(node: ir.Node) -> tuple[TensorName, ...]:
    """Return the discrete outputs of a decision that are read or are model outputs."""
    used = (v for v in _decided(node) if v.uses() or v.is_graph_output())
    return tuple(TensorName(v.name) for v in used if v.name)


def _decided(node: ir.Node) -> list[ir.Value]:
    if is_standard(node, *_STEPS):
        return list(node.outputs)
    return [
        v
        for v in node.outputs
        if v.dtype is not None and (v.dtype.is_integer() or v.dtype == ir.DataType.BOOL)
    ]


def first_of(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes among `nodes`, all of one graph, that do not depend on others of them."""
    every = list(nodes)
    uses = uses_in(every[0].graph or ()) if every else {}

    def readers(node: ir.Node) -> list[ir.Node]:
        return [reader for value in node.outputs for reader, _ in uses.get(value, ())]

    behind = reached([reader for node in every for reader in readers(node)], readers)
    return [node for node in every if node not in behind]


def leading_to(decision: ir.Node, roles: Roles) -> list[NodeName]:
    """Return the compute nodes behind a decision, itself included, nearest first.

    The walk follows only floats, through data movement, up to integers, constants and inputs; at
    most `FARTHEST` nodes.
    """
    computing = ancestors(
        [decision],
        lambda node: _makers(operands(node)),
        lambda node: roles[node_name(node)].role is Role.COMPUTE,
    )
    return [node_name(node) for node in computing]


def selects_constants(
    value: ir.Value, roles: Roles, seen: Mapping[TensorName, Observation], limit: float
) -> bool:
    """Return whether all elements of `value` that reach `limit` come from constants.

    They do so through data movement (Where, Concat and the like), maxima and minima, sums and
    differences of such tensors, and products with a 0/1 mask: a tensor with only 0 and 1 on the
    samples. Attention masks are such tensors: -65504 at twice the data is still -65504.

    Args:
        value: A tensor of the main graph.
        roles: Roles of the nodes.
        seen: Observations by tensor; without details, no tensor counts as a mask.
        limit: A magnitude (≥ 0).
    """
    waiting, visited = [(value, limit)], set[tuple[ir.Value, float]]()
    while waiting:
        current, least = waiting.pop()
        known = (current, least) in visited or current.is_initializer()
        if known or _reaches_less(current, seen, least):
            continue
        visited.add((current, least))
        node = current.producer()
        if node is None:
            return False
        floats = [v for v in node.inputs if v is not None and is_float(v)]
        masked = [v for v in floats if not _is_mask(v, seen)]
        if moves(node, roles) or is_standard(node, *_PICKING):
            if node.op_type == "Cast" and not floats and not _is_mask(current, seen):
                return False  # of positions, say
            waiting += [(v, least) for v in floats]
        elif is_standard(node, "Add", "Sub"):
            # A small term would move the sum with the data.
            waiting += [(v, 0.0) for v in floats]
        elif node.op_type == "Mul" and len(masked) < len(floats):
            waiting += [(v, least) for v in masked]
        else:
            return False
    return True


def _reaches_less(value: ir.Value, seen: Mapping[TensorName, Observation], limit: float) -> bool:
    observation = seen.get(tensor_name(value))
    return observation is not None and observation.absmax < limit


def _is_mask(value: ir.Value, seen: Mapping[TensorName, Observation]) -> bool:
    observation = seen.get(tensor_name(value))
    if observation is None or observation.detail is None:
        return False
    return observation.absmax == 1 == observation.detail.smallest_nonzero
