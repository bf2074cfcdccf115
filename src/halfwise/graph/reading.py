"""Functions of one tensor, written out and recognised by their values.

Every value that depends only on x and scalars is computed in FP64 at 65 points. If it equals a
known function there, it is taken for that function: an expression of a few nodes that agrees with
another to 1e-6 at all points, but not elsewhere, is not to be expected.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.formats import ROUNDINGS
from halfwise.graph.dataflow import LONGEST_WAY, nodes_between
from halfwise.graph.model import (
    SMALL_BYTES,
    Network,
    constant_array,
    is_standard,
    small_constant,
)

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


class Seen(Struct, frozen=True):
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
    if root is None or root.const_value is None or root.const_value.nbytes > SMALL_BYTES:
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
    if product is None or product.inputs[0] is None or product.inputs[0] is not product.inputs[1]:
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
    source = node.inputs[1] if len(node.inputs) > 1 else None
    if source is None or source.const_value is None:
        return None
    return tuple(int(axis) for axis in constant_array(source).ravel())


def from_integer(node: ir.Node) -> bool:
    """Return whether a node is a Cast from an integer type."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source is not None and source.dtype is not None and source.dtype.is_integer()


Array = NDArray[np.float64]

_POINTS: Array = np.linspace(-7.3, 8.1, 65)
"""Points with small to large exponentials; none is an integer."""
_MOST = 100
"""Most values that are computed from one."""
_CANCELLED = 1e-7
"""Absolute tolerance of activations: 1 + tanh(…) and the like cancel for negative x."""

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _hard_sigmoid(node: ir.Node, x: Array) -> Array:
    alpha, beta = (node.attributes.get_float(k, d) for k, d in (("alpha", 0.2), ("beta", 0.5)))
    return np.clip(alpha * x + beta, 0, 1)


def _clip(node: ir.Node, x: Array, *bounds: Array) -> Array:
    ends = zip(("min", "max"), (-np.inf, np.inf), strict=True)
    held = [node.attributes.get_float(name, end) for name, end in ends]
    low, high = (bounds[i] if i < len(bounds) else np.asarray(held[i]) for i in (0, 1))
    return np.clip(x, low, high)


def _plain(compute: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function of operands as one of a node and its operands."""
    return lambda _, *operands: compute(*operands)


_COMPUTED: Mapping[str, Callable[..., Array]] = {
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "Abs": _plain(np.abs),
    "Add": _plain(np.add),
    "Div": _plain(np.divide),
    "Erf": _plain(_erf),
    "Exp": _plain(np.exp),
    "Identity": _plain(np.positive),
    "Log": _plain(np.log),
    "Max": _plain(lambda *values: np.max(np.broadcast_arrays(*values), axis=0)),
    "Min": _plain(lambda *values: np.min(np.broadcast_arrays(*values), axis=0)),
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "Pow": _plain(np.power),
    "Reciprocal": _plain(np.reciprocal),
    "Relu": _plain(lambda x: np.maximum(x, 0)),
    "Sigmoid": _plain(lambda x: 1 / (1 + np.exp(-x))),
    "Softplus": _plain(lambda x: np.log1p(np.exp(x))),
    "Sqrt": _plain(np.sqrt),
    "Sub": _plain(np.subtract),
    "Tanh": _plain(np.tanh),
}

_softplus = np.log1p(np.exp(_POINTS))


def _is(truth: Array) -> Callable[[Array], bool]:
    return lambda values: np.allclose(values, truth, rtol=ROUNDINGS, atol=_CANCELLED)


def _is_swish(values: Array) -> bool:
    """Return whether values are x · sigmoid(βx), with any β (ONNX's Swish)."""
    with np.errstate(all="ignore"):
        gate = values / _POINTS
        slopes = np.log(gate / (1 - gate)) / _POINTS
        slope = slopes[np.argmin(np.abs(_POINTS))]
        return _is(_POINTS / (1 + np.exp(-slope * _POINTS)))(values)


GELU, TANH_GELU = (
    _POINTS * (1 + part) / 2
    for part in (
        _erf(_POINTS / np.sqrt(2)),
        np.tanh(np.sqrt(2 / np.pi) * (_POINTS + 0.044715 * _POINTS**3)),
    )
)
ACTIVATIONS: Mapping[str, tuple[tuple[str, ...], Callable[[Array], bool]]] = {
    "Gelu": (("Erf", "Tanh"), lambda values: _is(GELU)(values) or _is(TANH_GELU)(values)),
    "HardSwish": (("HardSigmoid", "Clip", "Min"), _is(_POINTS * np.clip(_POINTS / 6 + 0.5, 0, 1))),
    "Mish": (("Tanh",), _is(_POINTS * np.tanh(_softplus))),
    "Softplus": (("Exp",), _is(_softplus)),
    "Swish": (("Sigmoid", "Exp"), _is_swish),
}
"""Operators that contain one of these in every written form, and their values. Sources: Hendrycks
and Gimpel 2016, "Gaussian Error Linear Units"; Howard et al. 2019, "Searching for MobileNetV3";
Misra 2019, "Mish"."""


class Function(Struct, frozen=True, eq=False):
    """A recognised function.

    Attributes:
        x: Its argument.
        output: Its result.
        nodes: The nodes between the two.
    """

    x: ir.Value
    output: ir.Value
    nodes: Nodes


def activations(network: Network, op: str) -> Iterator[Function]:
    """Yield every written-out activation `op`, a key of `ACTIVATIONS`, in graph order."""
    gates, matches = ACTIVATIONS[op]
    order = {node: place for place, node in enumerate(network.all_nodes())}
    for gate in order:
        if is_standard(gate, *gates):
            yield from _around(gate, order, matches)


def _around(
    gate: ir.Node, order: Mapping[ir.Node, int], matches: Callable[[Array], bool]
) -> Iterator[Function]:
    """Yield the function that `gate` is part of, of the value farthest before it, if any."""
    for x in _arguments(gate):
        for value, (values,) in follow(x, [_POINTS], order, _of_same_shape).items():
            if matches(values) and gate in (nodes := nodes_between(x, value)):
                yield Function(x, value, nodes)
                return


def _of_same_shape(node: ir.Node, operands: Sequence[Array | None]) -> Array | None:
    """Return what a node makes of each element of x alone."""
    shapes = [
        v.shape for v in (*node.inputs, *node.outputs) if v is not None and v.const_value is None
    ]
    if len(set(map(str, shapes))) > 1:
        return None
    numbers = [
        scalar(v) if v is not None and v.const_value is not None else None for v in node.inputs
    ]
    pairs = zip(operands, numbers, strict=True)
    return elementwise(node, [a if n is None else np.asarray(n) for a, n in pairs])


def _arguments(gate: ir.Node) -> list[ir.Value]:
    """Return the values from which scalars alone lead to `gate`, farthest first."""
    before: list[ir.Value] = []
    waiting = [v for v in gate.inputs[:2] if v is not None]
    while waiting and len(before) < LONGEST_WAY:
        value = waiting.pop(0)
        if value.const_value is None and value not in before:
            before.append(value)
            node = value.producer()
            if node is not None and node.op_type in _COMPUTED:
                waiting += [v for v in node.inputs if v is not None]
    return before[::-1]


def follow(
    x: ir.Value,
    given: Sequence[Array],
    order: Mapping[ir.Node, int],
    compute: Callable[[ir.Node, Sequence[Array | None]], Array | None],
) -> dict[ir.Value, list[Array]]:
    """Return the values that depend only on x and small constants, in graph order.

    Args:
        x: The value.
        given: Some arrays that it may be.
        order: The nodes to follow it through, and their places.
        compute: Returns what a node makes of its operands in FP64, each None if unknown; None, or a
            ValueError, if that is unknown.

    Returns:
        What each value is for each of the given arrays, x included.
    """
    known = {x: list(given)}
    after = {u.node for u in x.uses()} & order.keys()
    while after and len(known) <= _MOST:
        node = min(after, key=order.__getitem__)
        after.remove(node)
        operands = zip(*(_operand(v, known, len(given)) for v in node.inputs), strict=True)
        with suppress(ValueError), np.errstate(all="ignore"):
            results = [compute(node, each) for each in operands]
            made = [array for array in results if array is not None]
            if len(made) == len(given):
                known[node.outputs[0]] = made
                after |= {u.node for u in node.outputs[0].uses()} & order.keys()
    return known


def _operand(
    value: ir.Value | None, known: Mapping[ir.Value, list[Array]], count: int
) -> Sequence[Array | None]:
    if value is not None and value in known:
        return known[value]
    constant = small_constant(value)
    return [None if constant is None else constant.astype(np.float64)] * count


def elementwise(node: ir.Node, operands: Sequence[Array | None]) -> Array | None:
    """Return what an operator of single elements makes of operands; None for others."""
    compute = _COMPUTED.get(node.op_type) if is_standard(node) else None
    present = [a for a in operands if a is not None]
    if compute is None or len(present) < len(operands):
        return None
    return np.asarray(compute(node, *present), np.float64)
