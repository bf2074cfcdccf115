"""Functions of one tensor, written out with exponentials and recognised by their values.

Every value that depends only on x and scalars is computed in FP64 at 65 points. If it equals a
known function there, it is taken for that function: an expression of a few nodes that agrees with
another to 1e-6 at all points, but not elsewhere, is not to be expected.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.dataflow import reached
from halfwise.graph.model import Network, is_standard
from halfwise.graph.reading import scalar
from halfwise.graph.writing import Writer

Array = NDArray[np.float64]

_POINTS: Array = np.linspace(-7.3, 8.1, 65)
"""Points with small to large exponentials; none is an integer."""
_CLOSE = 1e-6
"""Relative tolerance: numbers in models are FP32, off by up to 6e-8, and a few are combined."""
_MOST = 24
"""Most nodes of one expression."""

_COMPUTED: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Exp": np.exp,
    "Log": np.log,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sub": np.subtract,
}


@dataclass(frozen=True, eq=False)
class Function:
    """A recognised function.

    Attributes:
        x: Its argument.
        output: Its result.
        nodes: The nodes between the two, in graph order.
        write: Makes the nodes of its short form from x.
    """

    x: ir.Value
    output: ir.Value
    nodes: tuple[ir.Node, ...]
    write: Callable[[Writer, ir.Value], ir.Value]


def read_functions(network: Network) -> Iterator[Function]:
    """Yield sigmoids, SiLUs, tanhs, softpluses and Mishes: for each Exp, the first found."""
    order = {node: place for place, node in enumerate(network.nodes())}
    for node in order:
        if not is_standard(node, "Exp") or node.inputs[0] is None:
            continue
        x = node.inputs[0]
        minus = x.producer()
        if minus is not None and is_standard(minus, "Neg") and minus.inputs[0] is not None:
            x = minus.inputs[0]
        known = _follow(x, order)
        for value, values in known.items():
            write = _form(values)
            if write is not None:
                yield Function(x, value, _between(value, known, order), write)
                break


def _follow(x: ir.Value, order: Mapping[ir.Node, int]) -> dict[ir.Value, Array]:
    """Return the values that depend only on x and scalars, as arrays, in graph order."""
    known = {x: _POINTS}
    after = {u.node for u in x.uses()} & order.keys()
    while after and len(known) <= _MOST:
        node = min(after, key=order.__getitem__)
        after.remove(node)
        operands = [_values(v, known) for v in node.inputs]
        if node.op_type not in _COMPUTED or not is_standard(node):
            continue
        given = [a for a in operands if a is not None]
        if len(given) < len(operands) or node.outputs[0].shape != x.shape:
            continue
        with np.errstate(all="ignore"):
            known[node.outputs[0]] = np.asarray(_COMPUTED[node.op_type](*given))
        after |= {u.node for u in node.outputs[0].uses()} & order.keys()
    return known


def _values(value: ir.Value | None, known: Mapping[ir.Value, Array]) -> Array | None:
    if value is None or value in known:
        return None if value is None else known[value]
    number = scalar(value) if value.const_value is not None else None
    return None if number is None else np.full(_POINTS.shape, number)


def _between(
    output: ir.Value, known: Mapping[ir.Value, Array], order: Mapping[ir.Node, int]
) -> tuple[ir.Node, ...]:
    """Return the nodes on paths from x to `output`."""
    made = {v: node for v in list(known)[1:] if (node := v.producer()) is not None}
    back = reached([made[output]], lambda n: (made[v] for v in n.inputs if v in made))
    return tuple(sorted(back, key=order.__getitem__))


def _form(values: Array) -> Callable[[Writer, ir.Value], ir.Value] | None:
    for truth, write in _FORMS:
        if np.allclose(values, truth, rtol=_CLOSE, atol=0):
            return write
    return None


def _half(w: Writer) -> ir.Value:
    return w.constant("half", np.array(0.5, np.float32))


_sigmoid = 1 / (1 + np.exp(-_POINTS))
_softplus = np.log1p(np.exp(_POINTS))
_softplus_of_minus = np.log1p(np.exp(-_POINTS))

_FORMS: tuple[tuple[Array, Callable[[Writer, ir.Value], ir.Value]], ...] = (
    (_sigmoid, lambda w, x: w.op("Sigmoid", x)),
    (1 - _sigmoid, lambda w, x: w.op("Sigmoid", w.op("Neg", x))),
    (_POINTS * _sigmoid, lambda w, x: w.op("Mul", x, w.op("Sigmoid", x))),
    (np.tanh(_POINTS), lambda w, x: w.op("Tanh", x)),
    (np.tanh(_POINTS / 2), lambda w, x: w.op("Tanh", w.op("Mul", x, _half(w)))),
    (_softplus, lambda w, x: w.op("Softplus", x)),
    (_softplus_of_minus, lambda w, x: w.op("Softplus", w.op("Neg", x))),
    (-_softplus_of_minus, lambda w, x: w.op("Neg", w.op("Softplus", w.op("Neg", x)))),
    (np.tanh(_softplus), lambda w, x: w.op("Tanh", w.op("Softplus", x))),
    (
        _POINTS * np.tanh(_softplus),
        lambda w, x: w.op("Mul", x, w.op("Tanh", w.op("Softplus", x))),
    ),
)
"""Values at the points, and the short form, whose exponentials are inside operators."""
