"""Read a decomposed normalisation, however it is written: its axes, eps, weight and bias.

Starting at the normalised tensor x, every node is computed as a polynomial (`algebra`). An output
equal to (x - mean) / sqrt(variance + eps) · weight + bias is a LayerNorm; one equal to
x / sqrt(mean square + eps) · weight is an RMSNorm.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.model import Network, constant_array, is_standard
from halfwise.graph.modern.algebra import (
    INVERSE,
    MEAN_SQUARED,
    OFFSET,
    ONE,
    ROUNDING,
    SCALED,
    SQUARES,
    Polynomial,
    X,
    constant,
)
from halfwise.graph.patterns.normalisations import root_of
from halfwise.graph.patterns.reading import axes_of, chosen_branch, scalar

Kind = Literal["LayerNormalization", "RMSNormalization"]

_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "GlobalAveragePool")
_MOVES = ("Expand", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True, eq=False)
class Normalisation:
    """A normalisation that was read.

    Attributes:
        kind: Its operator.
        x: Its input.
        output: The normalised tensor, weight and bias applied.
        axes: The reduced axes, not negative, ascending.
        eps: Added to the variance or mean square (≥ 0).
        weight: f64, broadcasts to x.
        bias: f64, broadcasts to x; None if there is none.
    """

    kind: Kind
    x: ir.Value
    output: ir.Value
    axes: tuple[int, ...]
    eps: float
    weight: NDArray[np.float64]
    bias: NDArray[np.float64] | None


@dataclass(frozen=True)
class Unread:
    """The root of a variance from which no normalisation could be read.

    Attributes:
        root: The node that takes the root.
        x: The tensor whose variance it is.
        axes: The reduced axes, not negative, ascending; None if unknown.
    """

    root: ir.Node
    x: ir.Value
    axes: tuple[int, ...] | None


def read_normalisations(network: Network) -> Iterator[Normalisation | Unread]:
    """Yield what each root of a variance or mean square is part of, in graph order."""
    done: set[tuple[ir.Value, tuple[int, ...]]] = set()
    for node in network.nodes():
        found = root_of(node)
        if found is None or not is_standard(node):
            continue
        spread = found[0]
        axes = _positive(spread.axes, spread.x)
        if axes is None:
            yield Unread(node, spread.x, axes)
        elif (spread.x, axes) not in done:
            done.add((spread.x, axes))
            read = tuple(_Reader(spread.x, axes, network.graph).read())
            yield from read or (Unread(node, spread.x, axes),)


def _positive(axes: tuple[int, ...] | None, x: ir.Value) -> tuple[int, ...] | None:
    if x.shape is None:
        return None
    rank = x.shape.rank()
    return tuple(range(rank)) if axes is None else tuple(sorted({a % rank for a in axes}))


@dataclass(frozen=True)
class _Affine:
    weight: NDArray[np.float64]
    bias: NDArray[np.float64] | None


@dataclass
class _Reader:
    """Computes the values that depend on `x` as polynomials, as far as possible."""

    x: ir.Value
    axes: tuple[int, ...]
    graph: ir.Graph
    kind: Kind | None = None
    eps: float = 0.0
    known: dict[ir.Value, Polynomial] = field(default_factory=dict)

    def read(self) -> Iterator[Normalisation]:
        """Yield the normalisations of `x`."""
        self.known[self.x] = Polynomial({X: np.array(1.0)})
        waiting = [self.x]
        while waiting:
            for use in waiting.pop(0).uses():
                node = use.node
                if node.graph is not self.graph or node.outputs[0] in self.known:
                    continue
                found = self._compute(node)
                if found is not None:
                    self.known[node.outputs[0]] = found
                    waiting.append(node.outputs[0])
        ends = (self._end(v) for v in self._first_normal())
        for output in dict.fromkeys(ends):
            affine = self._affine(output)
            assert self.kind is not None
            assert affine is not None
            yield Normalisation(
                self.kind, self.x, output, self.axes, self.eps, affine.weight, affine.bias
            )

    def _first_normal(self) -> Iterator[ir.Value]:
        for value in self.known:
            node = value.producer()
            if self._affine(value) is not None and node is not None:
                before = [v for v in node.inputs if v is not None and v in self.known]
                if all(self._affine(v) is None for v in before):
                    yield value

    def _end(self, value: ir.Value) -> ir.Value:
        """Return the last value reached through weight and bias alone, without branches."""
        while len(uses := tuple(value.uses())) == 1 and not value.is_graph_output():
            following = uses[0].node.outputs[0]
            if following not in self.known or self._affine(following) is None:
                break
            value = following
        return value

    def _affine(self, value: ir.Value) -> _Affine | None:
        """Return weight and bias of a normalised value; None if it is not one."""
        terms = self.known[value].terms
        bias = terms.get(ONE)
        if self.kind == "LayerNormalization" and terms.keys() - {ONE} == {SCALED, OFFSET}:
            weight, offset = np.broadcast_arrays(terms[SCALED], -terms[OFFSET])
            if not np.allclose(weight, offset, rtol=ROUNDING, atol=0):
                return None
        elif self.kind == "RMSNormalization" and terms.keys() == {SCALED}:
            weight = terms[SCALED]
        else:
            return None
        return _Affine(weight, bias) if self._fits(weight) and self._fits(bias) else None

    def _fits(self, array: NDArray[np.float64] | None) -> bool:
        """Return whether a weight or bias varies only along the reduced axes, and is no larger."""
        if array is None:
            return True
        assert self.x.shape is not None
        first = self.x.shape.rank() - array.ndim
        return first >= 0 and all(
            size == 1 or (first + axis in self.axes and size == self.x.shape[first + axis])
            for axis, size in enumerate(array.shape)
        )

    def _compute(self, node: ir.Node) -> Polynomial | None:
        operands = [None if v is None else self._operand(v) for v in node.inputs]
        if is_standard(node, "Where") and (chosen := chosen_branch(node)) is not None:
            return self._operand(chosen)
        if not is_standard(node) or not operands or operands[0] is None:
            return None
        if node.op_type in ("Add", "Sub", "Mul", "Div"):
            second = operands[1]
            return None if second is None else _arithmetic(node.op_type, operands[0], second)
        if node.op_type in ("Abs", "Clip", "Max", "Relu"):
            return _bounded(node, operands)
        return _UNARY.get(node.op_type, _unread)(self, node, operands[0])

    def _operand(self, value: ir.Value) -> Polynomial | None:
        if value in self.known:
            return self.known[value]
        if value.const_value is None or value.dtype != ir.DataType.FLOAT:
            return None
        return constant(constant_array(value)) if value.const_value.size <= 1 << 20 else None

    def power(self, node: ir.Node, operand: Polynomial) -> Polynomial | None:
        """Return the result of a Pow or Sqrt."""
        power = 0.5 if node.op_type == "Sqrt" else scalar(node.inputs[1])
        if power in (0.5, -0.5):
            inverse = self._inverse_root(operand)
            return inverse and (inverse if power == -0.5 else inverse.reciprocal())
        if power == 2:
            return operand * operand
        return operand.reciprocal() if power == -1 else None

    def _inverse_root(self, inside: Polynomial) -> Polynomial | None:
        """Return 1 / sqrt(inside) if `inside` is a variance or mean square plus eps."""
        found = _spread_of(inside)
        if found is None:
            return None
        kind, factor, eps = found
        if self.kind is not None and (kind, eps / factor) != (self.kind, self.eps):
            return None
        self.kind, self.eps = kind, eps / factor
        return Polynomial({INVERSE: np.array(factor**-0.5)}, inside.flat)

    def reduced(self, node: ir.Node, operand: Polynomial) -> Polynomial | None:
        """Return the result of a reduction over the axes."""
        if operand.flat or not _has_known_axes(node):
            return None
        if _positive(axes_of(node), self.x) != self.axes:
            return None
        squared = operand * operand if node.op_type == "ReduceSumSquare" else operand
        mean = squared and squared.mean()
        if mean is None:
            return None
        keep = node.attributes.get("keepdims")
        flat = keep is not None and keep.as_int() == 0
        factor = 1.0
        if node.op_type.startswith("ReduceSum"):
            assert self.x.shape is not None
            sizes = [self.x.shape[axis] for axis in self.axes]
            if not all(isinstance(size, int) for size in sizes):
                return None
            factor = float(prod(size for size in sizes if isinstance(size, int)))
        return Polynomial(mean.scaled(factor).terms, flat)

    def moved(self, node: ir.Node, operand: Polynomial) -> Polynomial | None:
        """Return a statistic after data movement; None if it no longer broadcasts to x."""
        shape, whole = node.outputs[0].shape, self.x.shape
        if not operand.is_statistic or whole is None or shape is None:
            return None
        if shape.rank() == whole.rank():
            fits = all(
                (axis in self.axes and size == 1) or _may_fit(size, own)
                for axis, (size, own) in enumerate(zip(shape, whole, strict=True))
            )
            return Polynomial(operand.terms) if fits else None
        rest = [size for axis, size in enumerate(whole) if axis not in self.axes]
        fits = len(rest) == shape.rank() and all(map(_may_fit, shape, rest))
        return Polynomial(operand.terms, flat=True) if fits else None


_UNARY: Mapping[str, Callable[[_Reader, ir.Node, Polynomial], Polynomial | None]] = {
    "Cast": lambda _, node, p: p if node.outputs[0].dtype == ir.DataType.FLOAT else None,
    "Identity": lambda _, __, p: p,
    "Neg": lambda _, __, p: p.scaled(-1),
    "Reciprocal": lambda _, __, p: p.reciprocal(),
    **dict.fromkeys(("Pow", "Sqrt"), _Reader.power),
    **dict.fromkeys(_REDUCTIONS, _Reader.reduced),
    **dict.fromkeys(_MOVES, _Reader.moved),
}


def _unread(_: _Reader, __: ir.Node, ___: Polynomial) -> None:
    """Return None: nothing is known about such a node."""


def _bounded(node: ir.Node, operands: list[Polynomial | None]) -> Polynomial | None:
    """Return the variance itself if it is clamped at zero or below, to absorb rounding errors."""
    inside = [p for p in operands if p is not None and not p.is_number]
    bounds = [p.number(ONE) for p in operands if p is not None and p.is_number]
    most = 2 if node.op_type in ("Clip", "Max") else 1
    if len(inside) != 1 or len(operands) > most or len(operands) != 1 + len(bounds):
        return None
    if any(bound is None or bound > 0 for bound in bounds) or node.attributes:
        return None
    return inside[0] if _spread_of(inside[0]) and ONE not in inside[0].terms else None


def _spread_of(inside: Polynomial) -> tuple[Kind, float, float] | None:
    """Return kind, factor and addend of a variance or mean square; None for others."""
    factor, added = inside.number(SQUARES), inside.number(ONE)
    centre = inside.number(MEAN_SQUARED)
    if not inside.terms.keys() <= {SQUARES, MEAN_SQUARED, ONE}:
        return None
    if not factor or factor < 0 or added is None or added < 0 or centre is None:
        return None
    if not centre:
        return "RMSNormalization", factor, added
    exact = abs(centre + factor) <= ROUNDING * factor
    return ("LayerNormalization", factor, added) if exact else None


def _arithmetic(op: str, first: Polynomial, second: Polynomial) -> Polynomial | None:
    if op == "Add":
        return first + second
    if op == "Sub":
        return first + second.scaled(-1)
    factor = second if op == "Mul" else second.reciprocal()
    return None if factor is None else first * factor


def _has_known_axes(node: ir.Node) -> bool:
    """Return whether a reduction's axes are constant, or omitted to mean all."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    noop = node.attributes.get("noop_with_empty_axes")
    return given.const_value is not None if given else not (noop and noop.as_int())


def _may_fit(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    """Return whether both are the same number, or both dynamic.

    Inference often gives one dynamic size two names, so names need not be equal. Comparing results
    at several sizes later shows whether two dynamic sizes are the same.
    """
    return one == other or (isinstance(one, ir.SymbolicDim) and isinstance(other, ir.SymbolicDim))
