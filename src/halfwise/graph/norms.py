"""Read a decomposed normalisation, however it is written: its axes, eps, weight and bias.

As an activation (`graph.reading`), it is recognised by its values: what follows from the tensor x
whose variance or mean square is under a root is computed in FP64 for a few x. However it is
written, a norm is w·n + b with n = (x - mean) / √(variance + eps), or n = x / √(mean square + eps).
Two x of opposite sign give w and b, and another one shows that it is so for every x. What small x
and zeros show in addition is eps, and whether the formula is exact there, too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isclose, prod
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.formats import ROUNDINGS
from halfwise.graph.dataflow import nodes_between
from halfwise.graph.model import Network, is_standard
from halfwise.graph.reading import (
    Nodes,
    axes_of,
    chosen_branch,
    elementwise,
    follow,
    maker,
    scalar,
    split_constant,
    square_of,
)
from halfwise.graph.weights import FLOATS

Array = NDArray[np.float64]

_FEW = 5
"""Size of axes along which nothing is known to vary: all that are in no constant's shape."""
_LARGE, _SMALL, _TINY = 1e3, 1e-2, 1e-6
"""Sizes of x beside which an eps is nothing, and beside which usual and tiny ones show."""
_NOTHING = 1e-10
"""Share of a norm's largest value below which a bias is the rounding of its sum."""

NORMALISATIONS = (
    "BatchNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "RMSNormalization",
)
"""The operators that `normalisations` finds."""

Kind = Literal["LayerNormalization", "RMSNormalization"]


class Normalisation(Struct, frozen=True, eq=False):
    """A normalisation that was read.

    Attributes:
        kind: Its operator, if it is over the last axes and its weight varies along them alone.
        x: Its input.
        normal: The normalised tensor before a separate weight and bias.
        output: The normalised tensor, weight and bias applied.
        axes: The reduced axes, not negative, ascending.
        eps: Added to the variance or mean square (≥ 0).
        weight: f64, broadcasts to x; as exact as FP32.
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
        return _varying(self.weight, self.bias)

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


def _varying(*arrays: Array | None) -> frozenset[int]:
    shapes = [array.shape for array in arrays if array is not None]
    return frozenset(axis for shape in shapes for axis, size in enumerate(shape) if size != 1)


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
    order = {node: place for place, node in enumerate(network.all_nodes())}
    read: set[tuple[ir.Value, tuple[int, ...]]] = set()
    for root in order:
        for x, axes in _sources(root):
            reader = _Reader(x, axes, order)  # as large as some tensors, so none is kept
            if (spread := reader.spread(root)) is not None:
                if (x, axes) not in read:
                    yield from reader.read(*spread)
                read.add((x, axes))
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


class _Reader:
    """Computes the values that depend on `x` alone, and reads norms from them.

    Attributes:
        sizes: Of the axes of the given x: only where constants vary, they are those of `x`.
        given: Some x: large ones (the second is the first one's opposite, the third another), a
            small and a tiny one, zeros.
        known: What each value is for these.
    """

    def __init__(self, x: ir.Value, axes: tuple[int, ...], order: Mapping[ir.Node, int]) -> None:
        assert x.shape is not None
        self.x, self.axes, self.shape = x, axes, list(x.shape)
        following = (v.producer() for v in follow(x, [np.zeros(())], order, _passed))
        read = (v for node in following if node is not None for v in node.inputs)
        shapes = (v.shape for v in read if v is not None and v.const_value is not None)
        stored = {place for s in shapes if s is not None for place in enumerate(reversed([*s]))}
        places = [*enumerate(reversed(self.shape))][::-1]
        # A constant may belong to a tensor that lacks some axes of x.
        moved = {size for _, size in stored} - {size for _, size in stored.intersection(places)}
        self.sizes = [
            _size(size, varies=(back, size) in stored or size in moved) for back, size in places
        ]
        random = np.random.default_rng(0)
        one, other, third = (
            random.choice((-1.0, 1.0), self.sizes) * random.uniform(1, 2, self.sizes)
            for _ in range(3)
        )
        large = one * _LARGE, -one * _LARGE, other * _LARGE
        self.given = *large, third * _SMALL, third * _TINY, one * 0
        self.known = follow(x, self.given, order, self._computed)

    def _computed(self, node: ir.Node, operands: Sequence[Array | None]) -> Array | None:
        first = operands[0]
        if is_standard(node, "Where"):
            chosen = chosen_branch(node)
            return None if chosen is None else operands[node.inputs.index(chosen)]
        if is_standard(node, "Cast"):
            return first if node.outputs[0].dtype in FLOATS else None
        if first is not None and is_standard(node, *_REDUCTIONS):
            return self._reduced(node, first)
        if first is not None and is_standard(node, *_MOVES):
            return self._moved(node, first)
        return elementwise(node, operands)

    def _reduced(self, node: ir.Node, operand: Array) -> Array | None:
        count = self._count() if node.op_type in _SUMS else 1
        whole = operand.shape == self.given[0].shape
        if not whole or count is None or _reduced_axes(node, self.x) != self.axes:
            return None
        squares = node.op_type in ("ReduceSumSquare", "ReduceL2")
        keep = bool(node.attributes.get_int("keepdims", 1))
        total = count * (operand**2 if squares else operand).mean(self.axes, keepdims=keep)
        return np.asarray(np.sqrt(total) if node.op_type == "ReduceL2" else total)

    def _moved(self, node: ir.Node, operand: Array) -> Array | None:
        """Return a statistic after data movement."""
        shape = node.outputs[0].shape
        if shape is None or operand.size != self._statistic(self.given[0]).size:
            return None
        same_rank = len(shape) == len(self.shape)
        left = iter([size for size in operand.shape if size != 1])
        own = self.sizes if same_rank else (1 if size == 1 else next(left, 1) for size in shape)
        sizes = [1 if size == 1 else each for size, each in zip(shape, own, strict=True)]
        expands = prod(sizes) != operand.size
        return np.broadcast_to(operand, sizes) if expands else operand.reshape(sizes)

    def _statistic(self, array: Array) -> Array:
        return np.asarray(array.mean(self.axes, keepdims=True))

    def _count(self) -> int | None:
        """Return the number of elements that are reduced to one; None if a size is dynamic."""
        sizes = [self.shape[axis] for axis in self.axes]
        whole = [size for size in sizes if isinstance(size, int)]
        return prod(whole) if len(whole) == len(sizes) else None

    def spread(self, root: ir.Node) -> tuple[Kind, float] | None:
        """Return of what `root` is the root, up to a factor, and the eps; None of anything else."""
        squared = root.op_type == "ReduceL2"
        value = root.outputs[0] if squared else root.inputs[0]
        if value not in self.known:
            return None
        inside = [(a**2 if squared else a).ravel() for a in self.known[value]]
        for kind in KINDS:
            squares = [self._statistic(self._centred(kind, a) ** 2).ravel() for a in self.given]
            if inside[0].size != squares[0].size or not squares[0].all():
                continue
            factors = np.concatenate([(inside[i] - inside[-1]) / squares[i] for i in (0, 2)])
            alike = np.allclose(factors, factors[0], rtol=ROUNDINGS, atol=0)
            if alike and factors[0] > 0 and inside[-1][0] >= 0:
                return kind, float(inside[-1][0] / factors[0])
        return None

    def _centred(self, kind: Kind, array: Array) -> Array:
        return array - self._statistic(array) if kind == "LayerNormalization" else array

    def _normal(self, kind: Kind, eps: float, array: Array) -> Array:
        """Return n of one x; NaN where it is 0 / 0."""
        centred = self._centred(kind, array)
        with np.errstate(invalid="ignore"):
            return np.asarray(centred / np.sqrt(self._statistic(centred**2) + eps))

    def read(self, kind: Kind, eps: float) -> Iterator[Normalisation]:
        """Yield the normalisations of `x`, by their kind and eps."""
        normal = [self._normal(kind, eps, array) for array in self.given]
        affine = {value: _affine(normal, values) for value, values in self.known.items()}
        biased = kind == "LayerNormalization"
        norms = {
            v: a for v, a in affine.items() if a and (biased or a[1] is None) and self._fit(*a)
        }
        ends: dict[ir.Value, ir.Value] = {}
        for value in norms:
            node = value.producer()
            if node is not None and norms.keys().isdisjoint(node.inputs):
                ends.setdefault(_end(value, norms), value)
        for output, first in ends.items():
            weight, bias = norms[output]
            count, scale = self._count(), norms[first][0]
            summed = kind == "RMSNormalization" and bool(count and count > 1 and scale.size == 1)
            yield Normalisation(
                kind,
                self.x,
                first,
                output,
                self.axes,
                eps,
                weight,
                bias,
                exact=self._exact(normal, output, weight, bias),
                summed=summed and isclose(scale.item(), (count or 1) ** -0.5, rel_tol=ROUNDINGS),
            )

    def _exact(
        self, normal: list[Array], output: ir.Value, weight: Array, bias: Array | None
    ) -> bool:
        """Return whether an output is its formula for small x and zeros, and FP32 throughout."""
        nodes = nodes_between(self.x, output)
        read = chain.from_iterable((*n.inputs, *n.outputs) for n in nodes)
        types = {v.dtype for v in read if v is not None and v.dtype in FLOATS}
        return types == {ir.DataType.FLOAT} and all(
            np.allclose(
                self.known[output][i],
                weight * normal[i] + (0.0 if bias is None else bias),
                rtol=ROUNDINGS,
                atol=ROUNDINGS * np.abs(weight).max(),
                equal_nan=True,
            )
            for i in (-3, -2, -1)
        )

    def _fit(self, weight: Array, bias: Array | None) -> bool:
        """Return whether weight and bias vary along the reduced axes alone, or by channel alone.

        Channels are the only axis that is not reduced, but for the batch. In a tensor of rank 3
        without statistics of the batch they may as well be positions.
        """
        rank, varying = len(self.shape), _varying(weight, bias)
        rest = frozenset(range(1, rank)).difference(self.axes)
        by_channel = len(rest) == 1 and (rank >= 4 or 0 in self.axes) and varying <= rest
        return varying.issubset(self.axes) or by_channel


KINDS: tuple[Kind, ...] = ("LayerNormalization", "RMSNormalization")
_SUMS = ("ReduceSum", "ReduceSumSquare", "ReduceL2")
_REDUCTIONS = ("ReduceMean", "GlobalAveragePool", *_SUMS)
_MOVES = ("Expand", "Reshape", "Squeeze", "Unsqueeze")


def _size(size: int | ir.SymbolicDim, *, varies: bool) -> int:
    """Return the size that stands for that of an axis; not 0, which shows nothing."""
    if not isinstance(size, int) or size == 0:
        return _FEW
    return size if varies else min(size, _FEW)


def _passed(node: ir.Node, operands: Sequence[Array | None]) -> Array | None:
    """Return a number if a node may make something of its operands."""
    moves = is_standard(node, *_REDUCTIONS, *_MOVES)
    known = all(array is not None for array in (operands[:1] if moves else operands))
    return np.zeros(()) if known else None


def _affine(normal: list[Array], values: Sequence[Array]) -> tuple[Array, Array | None] | None:
    """Return w and b of w·n + b; None if values are something else of large x."""
    first, opposite, other, *_ = values
    if first.shape != normal[0].shape:
        return None
    with np.errstate(all="ignore"):
        weight, bias = (first - opposite) / (2 * normal[0]), (first + opposite) / 2
    bias = np.where(np.abs(bias) < _NOTHING * np.abs(first).max(), 0, bias)
    largest = ROUNDINGS * np.abs(other).max()
    if not np.allclose(weight * normal[2] + bias, other, rtol=0, atol=largest):
        return None
    return _shrunk(weight), _shrunk(bias) if bias.any() else None


def _shrunk(array: Array) -> Array:
    """Return an array as exact as FP32, with one element along axes where all are the same."""
    for axis in range(array.ndim):
        one = array.take([0], axis)
        if np.allclose(array, one, rtol=ROUNDINGS, atol=0):
            array = one
    return array.astype(np.float32).astype(np.float64)


def _end(value: ir.Value, norms: Mapping[ir.Value, Any]) -> ir.Value:
    """Return the value after a separate weight and bias that nothing else reads."""
    for op in ("Mul", "Add"):
        uses = tuple(value.uses())
        if len(uses) == 1 and is_standard(uses[0].node, op) and not value.is_graph_output():
            following = uses[0].node.outputs[0]
            if following in norms:
                value = following
    return value
