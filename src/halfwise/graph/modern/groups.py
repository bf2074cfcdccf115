"""Group normalisations: normalisations between a Reshape into groups and one that undoes it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.model import Network, constant_array, is_standard
from halfwise.graph.modern.reading import Normalisation, Unread


@dataclass(frozen=True, eq=False)
class GroupNorm:
    """A GroupNormalization that was read.

    Attributes:
        x: The input: [N, C, *sizes], C known.
        normal: The normalised tensor, still in groups.
        output: The result in the shape of x, weight and bias applied.
        groups: Number of groups.
        eps: Added to the variance.
        weight: f64[C].
        bias: f64[C].
    """

    x: ir.Value
    normal: ir.Value
    output: ir.Value
    groups: int
    eps: float
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]


def read_groups(network: Network, found: Iterable[Normalisation | Unread]) -> Iterator[GroupNorm]:
    """Yield the group normalisations among `found`, and those around InstanceNormalization."""
    for norm in found:
        if isinstance(norm, Normalisation) and norm.kind == "LayerNormalization":
            yield from _regrouped(norm)
    for node in network.nodes():
        native = _instance_norm(node) if is_standard(node, "InstanceNormalization") else None
        if native is not None:
            yield from _regrouped(native)


def _instance_norm(node: ir.Node) -> Normalisation | None:
    x, *affine = node.inputs
    if x is None or x.shape is None or any(v is None or v.const_value is None for v in affine):
        return None
    weight, bias = (np.asarray(constant_array(v), np.float64) for v in affine if v is not None)
    axes = tuple(range(2, x.shape.rank()))
    eps = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    shape = (-1, *(1 for _ in axes))
    output = node.outputs[0]
    return Normalisation(
        "LayerNormalization", x, output, axes, eps, weight.reshape(shape), bias.reshape(shape)
    )


def _regrouped(norm: Normalisation) -> Iterator[GroupNorm]:
    first = norm.x.producer()
    if first is None or not is_standard(first, "Reshape") or first.inputs[0] is None:
        return
    x, inner = first.inputs[0], norm.x.shape
    uses = tuple(norm.output.uses())
    if len(uses) != 1 or norm.output.is_graph_output() or not is_standard(uses[0].node, "Reshape"):
        return
    last = uses[0].node
    if x.shape is None or inner is None or not _undoes(last, x) or x.shape.rank() < 3:
        return
    channels, groups = x.shape[1], inner[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or channels % groups:
        return
    if norm.axes != tuple(range(2, inner.rank())) or not _keeps_first(first, x, inner):
        return
    weight, bias = (_each(a, groups) for a in (norm.weight, norm.bias))
    if weight is None or bias is None:
        return
    weight, bias = (np.repeat(a, channels // groups) for a in (weight, bias))
    yield _with_affine(
        GroupNorm(x, norm.output, last.outputs[0], groups, norm.eps, weight, bias), channels
    )


def _undoes(node: ir.Node, x: ir.Value) -> bool:
    """Return whether a Reshape restores the shape of `x`: by its Shape, or by known sizes."""
    target = node.inputs[1]
    maker = None if target is None else target.producer()
    if maker is not None and is_standard(maker, "Shape") and maker.inputs[0] is x:
        start = maker.attributes.get("start")
        return "end" not in maker.attributes and (start is None or start.as_int() == 0)
    shape = node.outputs[0].shape
    if shape is None or x.shape is None or shape.rank() != x.shape.rank():
        return False
    known = [i for i, size in enumerate(x.shape) if isinstance(size, int)]
    # One unknown size follows from the number of elements.
    return len(known) >= x.shape.rank() - 1 and all(shape[i] == x.shape[i] for i in known)


def _keeps_first(node: ir.Node, x: ir.Value, inner: ir.Shape) -> bool:
    """Return whether a Reshape keeps the first axis, so that it groups channels."""
    target = node.inputs[1]
    assert x.shape is not None
    if target is not None and target.const_value is not None:
        zero = node.attributes.get("allowzero")
        if constant_array(target).ravel()[0] == 0 and not (zero and zero.as_int()):
            return True
    if isinstance(x.shape[0], int):
        return inner[0] == x.shape[0]
    rests = [[size for size in shape[1:] if isinstance(size, int)] for shape in (x.shape, inner)]
    whole = all(len(r) == s.rank() - 1 for r, s in zip(rests, (x.shape, inner), strict=True))
    return whole and prod(rests[0]) == prod(rests[1])


def _each(array: NDArray[np.float64] | None, groups: int) -> NDArray[np.float64] | None:
    """Return one number per group; None if they differ within a group."""
    if array is None:
        return np.zeros(groups)
    if array.size == 1:
        return np.full(groups, array.reshape(-1)[0])
    return array.reshape(-1) if array.size == groups == array.shape[0] else None


def _with_affine(norm: GroupNorm, channels: int) -> GroupNorm:
    """Return the norm extended by the Mul and Add after it, if they are per channel."""
    for op in ("Mul", "Add"):
        uses = tuple(norm.output.uses())
        if len(uses) != 1 or norm.output.is_graph_output() or not is_standard(uses[0].node, op):
            break
        node = uses[0].node
        other = node.inputs[1 - uses[0].idx]
        array = None if other is None else _by_channel(other, channels, norm.x)
        if array is None:
            break
        if op == "Mul":
            norm = replace(norm, weight=norm.weight * array, bias=norm.bias * array)
        else:
            norm = replace(norm, bias=norm.bias + array)
        norm = replace(norm, output=node.outputs[0])
    return norm


def _by_channel(value: ir.Value, channels: int, x: ir.Value) -> NDArray[np.float64] | None:
    if value.const_value is None or value.const_value.size not in (1, channels):
        return None
    assert x.shape is not None
    array = np.asarray(constant_array(value), np.float64)
    # Right-aligned with x, only the channel axis may be longer than 1.
    axis = array.ndim - (x.shape.rank() - 1)
    if array.size > 1 and not (axis in (0, 1) and array.shape[axis] == channels):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,))
