"""Read a decomposed normalisation, however it is written: its axes, eps, weight and bias.

Starting at the tensor x whose variance or mean square is taken, every node is computed as a
polynomial in x, its mean, the mean of its squares, and a reciprocal root. However a normalisation
is written, it is such a polynomial, and always the same one: an output equal to
(x - mean) / sqrt(variance + eps) · weight + bias is a LayerNorm; one equal to
x / sqrt(mean square + eps) · weight is an RMSNorm.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isclose, prod
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.formats import ROUNDINGS
from halfwise.graph.dataflow import nodes_between
from halfwise.graph.model import Network, constant_array, is_standard
from halfwise.graph.reading import (
    Nodes,
    axes_of,
    chosen_branch,
    maker,
    scalar,
    split_constant,
    square_of,
)
from halfwise.graph.weights import FLOATS

Array = NDArray[np.float64]
Powers = tuple[int, int, int, int]
"""Exponents of x, mean(x), mean(x²), and 1/sqrt(variance or mean square + eps)."""

ONE: Powers = (0, 0, 0, 0)
X: Powers = (1, 0, 0, 0)
MEAN: Powers = (0, 1, 0, 0)
MEAN_SQUARED: Powers = (0, 2, 0, 0)
SQUARES: Powers = (0, 0, 1, 0)
INVERSE: Powers = (0, 0, 0, 1)
ROOT: Powers = (0, 0, 0, -1)
SCALED: Powers = (1, 0, 0, 1)
OFFSET: Powers = (0, 1, 0, 1)

_HIGHEST = 4
"""Highest power; no normalisation has a term of a higher one."""
_LARGEST = 1 << 20
"""Most elements of a coefficient; weights of normalisations are far smaller."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of terms; zero if there are none.

    Attributes:
        terms: Coefficient by powers: f64, any shape that broadcasts to x.
        flat: Whether the reduced axes are dropped, rather than kept with size 1.
    """

    terms: Mapping[Powers, Array]
    flat: bool = False

    def __add__(self, other: "Polynomial") -> "Polynomial | None":
        """Return the sum; None if only one of the two has the reduced axes, or it is too large."""
        terms = dict(self.terms)
        for powers, coefficient in other.terms.items():
            terms[powers] = terms[powers] + coefficient if powers in terms else coefficient
        return _joined(self, other, terms)

    def __mul__(self, other: "Polynomial") -> "Polynomial | None":
        """Return the product; None as for sums, or if a power is too high."""
        terms: dict[Powers, Array] = {}
        for ours, a in self.terms.items():
            for theirs, b in other.terms.items():
                x, mean, squares, inverse = (i + j for i, j in zip(ours, theirs, strict=True))
                powers = (x, mean, squares, inverse)
                if max(map(abs, powers)) > _HIGHEST:
                    return None
                terms[powers] = terms[powers] + a * b if powers in terms else a * b
        return _joined(self, other, terms)

    def scaled(self, factor: float) -> "Polynomial":
        """Return the polynomial times a number."""
        return Polynomial({p: factor * c for p, c in self.terms.items()}, self.flat)

    def reciprocal(self) -> "Polynomial | None":
        """Return 1 / self; None unless that is a polynomial."""
        if len(self.terms) != 1:
            return None
        ((powers, coefficient),) = self.terms.items()
        if powers[:3] != ONE[:3] or not coefficient.all():
            return None
        return Polynomial({(0, 0, 0, -powers[3]): 1 / coefficient}, self.flat)

    def mean(self) -> "Polynomial | None":
        """Return the mean over the reduced axes, which are kept; None if not a polynomial."""
        terms: dict[Powers, Array] = {}
        for (x, mean, squares, inverse), coefficient in self.terms.items():
            if x > 2 or coefficient.size > 1:
                return None
            powers = (0, mean + (x == 1), squares + (x == 2), inverse)
            terms[powers] = terms.get(powers, np.float64(0)) + coefficient
        return _cleaned(terms, flat=self.flat)

    def number(self, powers: Powers) -> float | None:
        """Return a coefficient that is a single number (0 for an absent term), else None."""
        coefficient = self.terms.get(powers)
        if coefficient is None:
            return 0.0
        return float(coefficient.reshape(-1)[0]) if coefficient.size == 1 else None

    @property
    def is_statistic(self) -> bool:
        """Whether it is constant along the reduced axes: no x, and only numbers as coefficients."""
        return all(p[0] == 0 and c.size == 1 for p, c in self.terms.items())

    @property
    def is_number(self) -> bool:
        """Whether it is a single number."""
        return self.terms.keys() <= {ONE} and self.is_statistic


def constant(array: NDArray[Any]) -> Polynomial | None:
    """Return a constant tensor as a polynomial; None if too large for a weight."""
    if array.size > _LARGEST:
        return None
    return _cleaned({ONE: np.asarray(array, np.float64)}, flat=False)


def _joined(one: Polynomial, other: Polynomial, terms: Mapping[Powers, Array]) -> Polynomial | None:
    if one.flat != other.flat and not (one.is_number or other.is_number):
        return None
    flat = (one.flat and not one.is_number) or (other.flat and not other.is_number)
    if flat and any(c.size > 1 for c in terms.values()):
        return None
    return _cleaned(terms, flat=flat)


def _cleaned(terms: Mapping[Powers, Array], *, flat: bool) -> Polynomial | None:
    if any(c.size > _LARGEST for c in terms.values()):
        return None
    return Polynomial({p: np.asarray(c) for p, c in terms.items() if np.any(c)}, flat)


NORMALISATIONS = (
    "BatchNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "RMSNormalization",
)
"""The operators that `normalisations` finds."""

Kind = Literal["LayerNormalization", "RMSNormalization"]


@dataclass(frozen=True, eq=False)
class Normalisation:
    """A normalisation that was read.

    Attributes:
        kind: Its operator, if it is over the last axes and its weight varies along them alone.
        x: Its input.
        normal: The normalised tensor before a separate weight and bias.
        output: The normalised tensor, weight and bias applied.
        axes: The reduced axes, not negative, ascending.
        eps: Added to the variance or mean square (≥ 0).
        weight: f64, broadcasts to x.
        bias: f64, broadcasts to x; None if there is none.
        exact: Whether it equals its formula. Not so with a bound above zero, something added to
            the root, or nodes in lower precision.
        summed: Whether it divides by the root of a sum of squares rather than of their mean.
    """

    kind: Kind
    x: ir.Value
    normal: ir.Value
    output: ir.Value
    axes: tuple[int, ...]
    eps: float
    weight: Array
    bias: Array | None
    exact: bool = True
    summed: bool = False

    @property
    def rank(self) -> int:
        """Number of axes of x."""
        assert self.x.shape is not None
        return self.x.shape.rank()

    @property
    def varying(self) -> frozenset[int]:
        """The axes along which weight or bias vary."""
        return _varying(self.weight, self.rank) | _varying(self.bias, self.rank)

    @property
    def op(self) -> str:
        """The operator of `NORMALISATIONS` that it writes out.

        A LayerNormalization without weight over the last two axes of a tensor of rank 4 is taken
        for an InstanceNormalization. Only the name is wrong: both compute the same.
        """
        if self.kind == "RMSNormalization":
            return "LpNormalization" if self.summed else self.kind
        if 0 in self.axes and 1 < self.rank > len(self.axes):
            return "BatchNormalization"
        unweighted = self.rank >= 4 and len(self.axes) == self.rank - 2 and not self.varying
        per_channel = unweighted or self.varying - set(self.axes)
        return "InstanceNormalization" if per_channel else self.kind


def normalisations(network: Network) -> Iterator[tuple[str, Nodes]]:
    """Yield operator (one of `NORMALISATIONS`) and nodes of every decomposed normalisation.

    Batch normalisations are those with statistics of the batch: with stored ones, the decomposed
    form is only a Mul and an Add, which look like any others.
    """
    for norm in read_normalisations(network):
        end = norm.normal if norm.summed else norm.output
        yield norm.op, nodes_between(norm.x, end)


def read_normalisations(network: Network) -> Iterator[Normalisation]:
    """Yield the norms that roots of variances or mean squares are part of, in graph order."""
    readers: dict[tuple[ir.Value, tuple[int, ...]], _Reader] = {}
    for root in network.all_nodes():
        for x, axes in _sources(root):
            fresh = (x, axes) not in readers
            if fresh:
                readers[x, axes] = _Reader(x, axes, root.graph)
                readers[x, axes].follow()
            if root.outputs[0] in readers[x, axes].known:
                if fresh:
                    yield from readers[x, axes].read()
                break


def _sources(root: ir.Node) -> Iterator[tuple[ir.Value, tuple[int, ...]]]:
    """Yield the tensors of whose variance or mean square `root` may be the root, with the axes."""
    totals: Iterable[ir.Node] = ()
    if is_standard(root, "ReduceL2"):
        totals = [root]
    elif is_standard(root, "Sqrt") or (
        is_standard(root, "Pow") and scalar(root.inputs[1]) in (0.5, -0.5)
    ):
        totals = _totals(root.inputs[0])
    for total in totals:
        base = total.inputs[0]
        if base is not None and total.op_type not in ("ReduceSumSquare", "ReduceL2"):
            square = square_of(base)
            base = None if square is None else square.value
        centred = maker(base, "Sub")
        for value in (centred.inputs[0] if centred else None, base):
            axes = None if value is None else _reduced_axes(total, value)
            if value is not None and axes is not None:
                yield value, axes


def _totals(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yield the reductions that lead to `value` past differences, constants and lower bounds."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if node := maker(value, *_REDUCTIONS):
            yield node
        elif part := split_constant(value, "Add", "Mul", "Div", "Max", "Clip"):
            waiting.append(part[0].value)
        elif node := maker(value, "Abs", "Relu", "Sub", "Where"):
            waiting += [chosen_branch(node)] if node.op_type == "Where" else node.inputs


def _reduced_axes(node: ir.Node, x: ir.Value) -> tuple[int, ...] | None:
    """Return the axes of x that a reduction is over, not negative, ascending; None if unknown."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if x.shape is None or (axes is not None and axes.const_value is None):
        return None
    if axes is None and node.attributes.get_int("noop_with_empty_axes", default=False):
        return None
    rank, over = x.shape.rank(), axes_of(node)
    return tuple(range(rank)) if over is None else tuple(sorted({a % rank for a in over}))


def _varying(array: Array | None, rank: int) -> frozenset[int]:
    sizes = () if array is None else array.shape
    return frozenset(rank - len(sizes) + axis for axis, size in enumerate(sizes) if size != 1)


@dataclass
class _Reader:
    """Computes the values that depend on `x` as polynomials, as far as possible."""

    x: ir.Value
    axes: tuple[int, ...]
    graph: ir.Graph | ir.Function | None
    kind: Kind | None = None
    eps: float = 0.0
    exact: bool = True
    known: dict[ir.Value, Polynomial] = field(default_factory=dict)

    def follow(self) -> None:
        """Compute the polynomials."""
        self.known[self.x] = Polynomial({X: np.array(1.0)})
        waiting = [self.x]
        while waiting:
            for use in waiting.pop(0).uses():
                node = use.node
                if node.graph is not self.graph or node.outputs[0] in self.known:
                    continue
                result = self._compute(node)
                if result is not None:
                    self.known[node.outputs[0]] = result
                    waiting.append(node.outputs[0])

    def read(self) -> Iterator[Normalisation]:
        """Yield the normalisations of `x`."""
        ends: dict[ir.Value, ir.Value] = {}
        for normal in self._first_normal():
            ends.setdefault(self._end(normal), normal)
        for output, normal in ends.items():
            affine, scale = self._affine(output), self.known[normal].number(SCALED)
            assert self.kind is not None
            assert affine is not None
            count = self._count() if self.kind == "RMSNormalization" else None
            summed = bool(count and scale and count > 1 and isclose(scale, count**-0.5))
            yield Normalisation(
                self.kind,
                self.x,
                normal,
                output,
                self.axes,
                self.eps,
                *affine,
                exact=self.exact,
                summed=summed,
            )

    def _first_normal(self) -> Iterator[ir.Value]:
        for value in self.known:
            node = value.producer()
            if self._affine(value) is not None and node is not None:
                before = [v for v in node.inputs if v is not None and v in self.known]
                if all(self._affine(v) is None for v in before):
                    yield value

    def _end(self, value: ir.Value) -> ir.Value:
        """Return the value after a separate weight and bias that nothing else reads."""
        for op in ("Mul", "Add"):
            uses = tuple(value.uses())
            if len(uses) == 1 and is_standard(uses[0].node, op) and not value.is_graph_output():
                following = uses[0].node.outputs[0]
                if following in self.known and self._affine(following) is not None:
                    value = following
        return value

    def _affine(self, value: ir.Value) -> tuple[Array, Array | None] | None:
        """Return weight and bias of a normalised value; None if it is not one."""
        terms = self.known[value].terms
        bias = terms.get(ONE)
        if self.kind == "LayerNormalization" and terms.keys() - {ONE} == {SCALED, OFFSET}:
            weight, offset = np.broadcast_arrays(terms[SCALED], -terms[OFFSET])
            if not np.allclose(weight, offset, rtol=ROUNDINGS, atol=0):
                return None
        elif self.kind == "RMSNormalization" and terms.keys() == {SCALED}:
            weight = terms[SCALED]
        else:
            return None
        return (weight, bias) if self._fit(weight, bias) else None

    def _fit(self, weight: Array, bias: Array | None) -> bool:
        """Return whether weight and bias vary along the reduced axes alone, or by channel alone.

        Channels are the only axis that is not reduced, but for the batch. In a tensor of rank 3
        without statistics of the batch they may as well be positions.
        """
        assert self.x.shape is not None
        rank, shape = self.x.shape.rank(), self.x.shape
        varying = _varying(weight, rank) | _varying(bias, rank)
        rest = frozenset(range(1, rank)).difference(self.axes)
        by_channel = len(rest) == 1 and (rank >= 4 or 0 in self.axes) and varying <= rest
        return (varying.issubset(self.axes) or by_channel) and all(
            array is None
            or (
                array.ndim <= rank
                and all(
                    size in (1, length)
                    for size, length in zip(array.shape, shape[rank - array.ndim :], strict=True)
                )
            )
            for array in (weight, bias)
        )

    def _count(self) -> int | None:
        """Return the number of elements that are reduced to one; None if a size is dynamic."""
        assert self.x.shape is not None
        sizes = [self.x.shape[axis] for axis in self.axes]
        whole = [size for size in sizes if isinstance(size, int)]
        return prod(whole) if len(whole) == len(sizes) else None

    def _compute(self, node: ir.Node) -> Polynomial | None:
        operands = [None if v is None else self._operand(v) for v in node.inputs]
        if is_standard(node, "Where") and (chosen := chosen_branch(node)) is not None:
            return self._operand(chosen)
        if not is_standard(node) or not operands or operands[0] is None:
            return None
        if node.op_type in ("Add", "Sub", "Mul", "Div"):
            second = operands[1]
            if second is None:
                return None
            return self._after_root(node, operands) or _arithmetic(
                node.op_type, operands[0], second
            )
        if node.op_type in ("Abs", "Clip", "Max", "Relu"):
            return self._after_root(node, operands) or self._bounded(node, operands)
        return _UNARY.get(node.op_type, _unread)(self, node, operands[0])

    def _operand(self, value: ir.Value) -> Polynomial | None:
        if value in self.known:
            return self.known[value]
        if value.const_value is None or value.dtype not in FLOATS:
            return None
        self.exact &= value.dtype == ir.DataType.FLOAT
        return constant(constant_array(value))

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
        spread = _spread_of(inside)
        if spread is None:
            return None
        kind, factor, eps = spread
        if self.kind is not None and (kind, eps / factor) != (self.kind, self.eps):
            return None
        self.kind, self.eps = kind, eps / factor
        return Polynomial({INVERSE: np.array(factor**-0.5)}, inside.flat)

    def reduced(self, node: ir.Node, operand: Polynomial) -> Polynomial | None:
        """Return the result of a reduction over the axes."""
        if operand.flat or _reduced_axes(node, self.x) != self.axes:
            return None
        squares = node.op_type in ("ReduceSumSquare", "ReduceL2")
        inside = operand * operand if squares else operand
        mean = inside and inside.mean()
        factor = self._count() if node.op_type in _SUMS else 1
        if mean is None or factor is None:
            return None
        flat = not node.attributes.get_int("keepdims", 1)
        total = Polynomial(mean.scaled(factor).terms, flat)
        inverse = self._inverse_root(total) if node.op_type == "ReduceL2" else None
        return total if node.op_type != "ReduceL2" else inverse and inverse.reciprocal()

    def moved(self, node: ir.Node, operand: Polynomial) -> Polynomial | None:
        """Return a statistic after data movement; None if it no longer broadcasts to x."""
        shape, whole = node.outputs[0].shape, self.x.shape
        if not operand.is_statistic or whole is None or shape is None:
            return None
        if shape.rank() == whole.rank():
            fits = all(
                (axis in self.axes and size == 1) or _may_fit(size, length)
                for axis, (size, length) in enumerate(zip(shape, whole, strict=True))
            )
            return Polynomial(operand.terms) if fits else None
        rest = [size for axis, size in enumerate(whole) if axis not in self.axes]
        fits = len(rest) == shape.rank() and all(map(_may_fit, shape, rest))
        return Polynomial(operand.terms, flat=True) if fits else None

    def cast(self, node: ir.Node, operand: Polynomial) -> Polynomial | None:
        """Return the operand of a Cast to a float type."""
        self.exact &= node.outputs[0].dtype == ir.DataType.FLOAT
        return operand if node.outputs[0].dtype in FLOATS else None

    def _after_root(self, node: ir.Node, operands: list[Polynomial | None]) -> Polynomial | None:
        """Return a root that a small constant was added to, or that is bounded by one."""
        roots = [p for p in operands if p is not None and p.terms.keys() == {ROOT}]
        others = [p for p in operands if p is not None and p.is_number]
        if node.op_type not in ("Add", "Clip", "Max") or len(roots) != 1 or len(others) != 1:
            return None
        self.exact = False
        return roots[0]

    def _bounded(self, node: ir.Node, operands: list[Polynomial | None]) -> Polynomial | None:
        """Return the variance itself if it is bounded below, as at zero for rounding errors."""
        inside = [p for p in operands if p is not None and not p.is_number]
        bounds = [p.number(ONE) for p in operands if p is not None and p.is_number]
        most = 2 if node.op_type in ("Clip", "Max") else 1
        if len(inside) != 1 or len(operands) > most or len(operands) != 1 + len(bounds):
            return None
        if node.attributes or _spread_of(inside[0]) is None or ONE in inside[0].terms:
            return None
        self.exact &= all(bound is not None and bound <= 0 for bound in bounds)
        return inside[0]


_SUMS = ("ReduceSum", "ReduceSumSquare", "ReduceL2")
_REDUCTIONS = ("ReduceMean", "GlobalAveragePool", *_SUMS)
_MOVES = ("Expand", "Reshape", "Squeeze", "Unsqueeze")
_UNARY: Mapping[str, Callable[[_Reader, ir.Node, Polynomial], Polynomial | None]] = {
    "Cast": _Reader.cast,
    "Identity": lambda _, __, p: p,
    "Neg": lambda _, __, p: p.scaled(-1),
    "Reciprocal": lambda _, __, p: p.reciprocal(),
    **dict.fromkeys(("Pow", "Sqrt"), _Reader.power),
    **dict.fromkeys(_REDUCTIONS, _Reader.reduced),
    **dict.fromkeys(_MOVES, _Reader.moved),
}


def _unread(_: _Reader, __: ir.Node, ___: Polynomial) -> None:
    """Return None: nothing is known about such a node."""


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
    exact = abs(centre + factor) <= ROUNDINGS * factor
    return ("LayerNormalization", factor, added) if exact else None


def _arithmetic(op: str, first: Polynomial, second: Polynomial) -> Polynomial | None:
    if op == "Add":
        return first + second
    if op == "Sub":
        return first + second.scaled(-1)
    factor = second if op == "Mul" else second.reciprocal()
    return None if factor is None else first * factor


def _may_fit(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    """Return whether both are the same number, or both dynamic.

    Inference often gives one dynamic size two names, so names need not be equal. Comparing results
    at several sizes later shows whether two dynamic sizes are the same.
    """
    return one == other or (isinstance(one, ir.SymbolicDim) and isinstance(other, ir.SymbolicDim))
