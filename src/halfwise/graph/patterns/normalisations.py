"""Decomposed normalisations, found from the root of their variance.

All have one form: y = (x - m) / sqrt(mean((x - m)²) + eps) · weight + bias, where the variance may
also be E[x²] - E[x]², the mean m may be missing and the end may be x · inv + (bias - m · inv).
They are told apart as follows:

- LpNormalization (L2): no mean is subtracted and the squares are summed, not averaged.
- RMSNormalization: no mean is subtracted and the squares are averaged.
- BatchNormalization: the first axis is reduced too (batch statistics). With stored statistics, the
  decomposed form is only a Mul and an Add, which look like any others.
- GroupNormalization: x comes from a Reshape that another Reshape undoes before the weight; a native
  InstanceNormalization between such Reshapes counts, because PyTorch exports it so.
- InstanceNormalization: the weight varies along an axis that is not reduced; without a weight, in a
  tensor of rank 4 or more, all axes but the first and one other are reduced.
- LayerNormalization: all others, over the last axes or the channels of NCHW.

So a LayerNormalization without weight over the last two axes of a rank-4 tensor is mistaken for an
InstanceNormalization. One over the last axis, between two Reshapes that undo each other and with
the weight after them, is mistaken for a GroupNormalization. Only the name is wrong: both compute
the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.graph.patterns.reading import (
    NO_NODES,
    Nodes,
    Seen,
    axes_of,
    behind,
    chosen_branch,
    is_constant,
    maker,
    other_operand,
    readers,
    reduction,
    same,
    scalar,
    split_constant,
    square_of,
    way,
)

NORMALISATIONS = (
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "RMSNormalization",
)
"""The operators that `normalisations` finds."""

_JOINS = {
    ("scaled", "Add", 0): "shift",
    ("scaled", "Add", 1): "shift",
    ("shift", "Add", 0): "scaled",
    ("shift", "Add", 1): "scaled",
    ("scaled", "Sub", 0): "offset",
    ("offset", "Sub", 1): "scaled",
}
"""The kind of the other operand that a kind of value (see `_Closing`) needs at an operator's
slot."""


@dataclass(frozen=True)
class Spread:
    """A variance or sum of squares that was read.

    Attributes:
        x: The tensor.
        axes: Axes as written in the model; None for all.
        centred: Whether the mean is subtracted.
        mean: Whether the squares are averaged, not summed.
        nodes: The nodes that compute it.
    """

    x: ir.Value
    axes: tuple[int, ...] | None
    centred: bool
    mean: bool
    nodes: Nodes


@dataclass(frozen=True)
class _Ending:
    """The end of a normalisation: nodes, weight or bias, and the value they are applied to."""

    nodes: Nodes
    affine: ir.Value | None
    normal: ir.Value


def normalisations(network: Network) -> Iterator[tuple[str, Nodes]]:
    """Yield operator type and nodes of every decomposed normalisation."""
    for node in network.nodes():
        if node.op_type == "InstanceNormalization":
            nodes = _native_group_norm(node)
            if nodes:
                yield "GroupNormalization", nodes
            continue
        start = root_of(node)
        if start is None:
            continue
        spread, inverse = start
        ending = _Closing(spread).close(node.outputs[0], "inverse" if inverse else "sigma")
        if ending is not None:
            spread, found = ending
            yield _named(spread, found)


def root_of(node: ir.Node) -> tuple[Spread, bool] | None:
    """Return the spread whose root a node takes, and whether it outputs the root's reciprocal."""
    if node.op_type == "ReduceL2" and node.inputs[0] is not None:
        nodes = frozenset((node,))
        return Spread(node.inputs[0], axes_of(node), centred=False, mean=False, nodes=nodes), False
    power = 0.5 if node.op_type == "Sqrt" else None
    if node.op_type == "Pow":
        power = scalar(node.inputs[1])
    if power not in (0.5, -0.5) or node.inputs[0] is None:
        return None
    spread = _spread(node.inputs[0])
    if spread is None:
        return None
    return replace(spread, nodes=spread.nodes | {node}), power == -0.5


def _spread(value: ir.Value, wrappers: int = 3) -> Spread | None:
    """Return the variance or sum of squares that `value` holds, past eps and lower bounds."""
    inside: Seen | None = None
    if bounded := split_constant(value, "Add", "Max", "Clip"):
        inside = bounded[0]
    elif (node := maker(value, "Relu", "Abs")) and node.inputs[0] is not None:
        inside = Seen(node.inputs[0], way(value))
    elif (node := maker(value, "Where")) and (chosen := chosen_branch(node)) is not None:
        inside = Seen(chosen, way(value))
    if inside is not None:
        inner = _spread(inside.value, wrappers - 1) if wrappers else None
        return inner and replace(inner, nodes=inner.nodes | inside.nodes)
    if node := maker(value, "Sub"):
        return _difference_of_moments(node, way(value))
    total = reduction(value)
    if total is None or not total.squared:
        return None
    passed = behind(value).nodes | total.nodes
    if centre := _centred(total.base, total.axes):
        return Spread(centre[0], total.axes, True, total.mean, passed | centre[1])
    return Spread(total.base, total.axes, False, total.mean, passed)


def _difference_of_moments(node: ir.Node, nodes: Nodes) -> Spread | None:
    """Read E[x²] - E[x]²."""
    first, second = node.inputs
    if first is None or second is None:
        return None
    squares = reduction(first)
    root = square_of(second)
    mean = reduction(root.value) if root else None
    if squares is None or root is None or mean is None or not squares.squared or mean.squared:
        return None
    if not same(squares.base, mean.base):
        return None
    return Spread(
        squares.base, squares.axes, True, True, nodes | squares.nodes | root.nodes | mean.nodes
    )


def _centred(value: ir.Value, axes: tuple[int, ...] | None) -> tuple[ir.Value, Nodes] | None:
    """Return x and the nodes of `value = x - mean(x)`, a mean over `axes`, None for all."""
    node = maker(value, "Sub")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    mean = reduction(node.inputs[1])
    if mean is None or mean.squared or not mean.mean or not same(mean.base, node.inputs[0]):
        return None
    rank = None if value.shape is None else value.shape.rank()
    own, wanted = _positive(mean.axes, rank), _positive(axes, rank)
    if own is not None and wanted is not None and own != wanted:
        return None
    return node.inputs[0], way(value) | mean.nodes


class _Closing:
    """Follows the root of a variance to the normalised tensor, its weight and bias.

    Each value on the path is one of: sigma (the root), inverse (1/sigma, perhaps times the weight),
    scaled (x · inverse), offset (m · inverse), shift (bias - offset), normal (normalised).
    """

    def __init__(self, spread: Spread) -> None:
        self.spread = spread
        self.kinds: dict[ir.Value, str] = {}
        self.nodes: Nodes = spread.nodes
        self.affine: ir.Value | None = None
        self.normal: ir.Value | None = None

    def close(self, value: ir.Value, kind: str) -> tuple[Spread, _Ending] | None:
        """Return the end of the normalisation; None if there is no normalised tensor."""
        self.kinds[value] = kind
        waiting = [value]
        while waiting:
            current = waiting.pop(0)
            if self.kinds[current] == "normal":
                self._apply_affine(current)
                continue
            for node, slot, passed in readers(current):
                kind_after = self._step(self.kinds[current], node, slot)
                if kind_after and node.outputs[0] not in self.kinds:
                    self.nodes |= passed | {node}
                    self.kinds[node.outputs[0]] = kind_after
                    waiting.append(node.outputs[0])
        if self.normal is None:
            return None
        return self.spread, _Ending(self.nodes, self.affine, self.normal)

    def _step(self, kind: str, node: ir.Node, slot: int) -> str | None:
        """Return the kind that `node` turns a value into; None if it leaves the pattern."""
        op, other = node.op_type, other_operand(node, slot)
        if kind == "sigma":
            return self._after_sigma(op, other, node, slot)
        if op == "Mul" and kind != "shift" and self._is_weight(other):
            return kind
        if kind == "inverse":
            return self._times_inverse(other) if op == "Mul" else None
        if (kind, op, slot) == ("offset", "Sub", 1) and self._is_weight(other):
            return "shift"
        partner = _JOINS.get((kind, op, slot))
        return self._joined(other, partner) if partner else None

    def _after_sigma(self, op: str, other: ir.Value | None, node: ir.Node, slot: int) -> str | None:
        if op == "Reciprocal" or (op == "Pow" and scalar(other) == -1.0):
            return "inverse"
        if op == "Div" and slot == 1:
            return "inverse" if is_constant(other) else self._times_inverse(other)
        if op in ("Add", "Max", "Clip") and scalar(node.inputs[1 if slot == 0 else 0]) is not None:
            return "sigma"
        if op in ("Mul", "Div") and slot == 0 and scalar(other) is not None:
            self.spread = replace(self.spread, mean=True)
            return "sigma"
        return None

    def _times_inverse(self, other: ir.Value | None) -> str | None:
        if other is None:
            return None
        if (
            self.spread.centred
            and (centre := _centred(other, self.spread.axes))
            and same(centre[0], self.spread.x)
        ):
            self.nodes |= centre[1]
            return "normal"
        if same(other, self.spread.x):
            return "scaled" if self.spread.centred else "normal"
        mean = reduction(other)
        if mean and not mean.squared and same(mean.base, self.spread.x):
            self.nodes |= mean.nodes
            return "offset"
        return None

    def _joined(self, other: ir.Value | None, wanted: str) -> str | None:
        if other is None or self.kinds.get(behind(other).value) != wanted:
            return None
        self.nodes |= behind(other).nodes
        return "normal"

    def _is_weight(self, value: ir.Value | None) -> bool:
        if not is_constant(value):
            return False
        self.affine = value
        return True

    def _apply_affine(self, value: ir.Value) -> None:
        """Add the following Mul by the weight and Add of the bias, if any."""
        self.normal = value
        if not (self.spread.centred or self.spread.mean):
            return
        for op in ("Mul", "Add"):
            for node, slot, passed in readers(value):
                if node.op_type == op and is_constant(other := other_operand(node, slot)):
                    self.nodes |= passed | {node}
                    self.affine = other
                    value = node.outputs[0]
                    break


def _named(spread: Spread, ending: _Ending) -> tuple[str, Nodes]:
    if not spread.centred:
        return ("RMSNormalization" if spread.mean else "LpNormalization"), ending.nodes
    rank = None if spread.x.shape is None else spread.x.shape.rank()
    axes = _positive(spread.axes, rank)
    if axes is not None and rank is not None and 0 in axes and 1 < rank > len(axes):
        return "BatchNormalization", ending.nodes
    if regrouping := _undone_reshape(spread.x, ending.normal):
        return "GroupNormalization", ending.nodes | regrouping
    if axes is None or rank is None:
        return "LayerNormalization", ending.nodes
    varying = _varying_axes(ending.affine, rank)
    per_channel = bool(varying - axes) if varying else rank >= 4 and len(axes) == rank - 2
    return ("InstanceNormalization" if per_channel else "LayerNormalization"), ending.nodes


def _positive(axes: tuple[int, ...] | None, rank: int | None) -> frozenset[int] | None:
    if axes is None or rank is None:
        return None
    return frozenset(axis % rank for axis in axes)


def _varying_axes(affine: ir.Value | None, rank: int) -> frozenset[int]:
    if affine is None or affine.shape is None:
        return frozenset()
    sizes = list(affine.shape)
    offset = rank - len(sizes)
    return frozenset(i + offset for i, size in enumerate(sizes) if size != 1)


def _undone_reshape(x: ir.Value, normal: ir.Value) -> Nodes:
    """Return the Reshape before `x` and the one after `normal` that undoes it, else empty."""
    first = x.producer()
    if first is None or first.op_type != "Reshape" or first.inputs[0] is None:
        return NO_NODES
    before = first.inputs[0].shape
    for use in normal.uses():
        after = use.node.outputs[0].shape
        if use.node.op_type != "Reshape" or before is None or after is None or x.shape is None:
            continue
        regroups = list(before) != list(x.shape)
        if regroups and after.rank() == before.rank() and _may_equal(before, after):
            return frozenset((first, use.node))
    return NO_NODES


def _may_equal(one: ir.Shape, other: ir.Shape) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def _native_group_norm(node: ir.Node) -> Nodes:
    x = node.inputs[0]
    reshapes = NO_NODES if x is None else _undone_reshape(x, node.outputs[0])
    if x is None or not reshapes:
        return NO_NODES
    closing = _Closing(Spread(x, None, True, True, reshapes | {node}))
    closing.kinds[node.outputs[0]] = "normal"
    ending = closing.close(node.outputs[0], "normal")
    return NO_NODES if ending is None else ending[1].nodes
