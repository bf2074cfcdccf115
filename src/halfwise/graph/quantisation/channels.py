"""The weights of a product: their magnitudes per output channel, and the kernel size they define.

TensorRT's parser needs the kernel size of convolutions with computed weights. ONNX infers a missing
`kernel_shape` from the weights. If a node computes the weights, for example a DequantizeLinear,
onnx-tensorrt (`convMultiInput`, 8.6) compares the attribute with their shape, and refuses the model
if it is missing. For the other attributes that it reads there (strides, pads, dilations, group) it
has ONNX's defaults, and for ConvTranspose it takes the size from the weights.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.model import constant_array, is_standard
from halfwise.graph.quantisation.pairs import QUANTISABLE, Pair, moves_before

FAR = 100.0
"""How many times smaller a channel's weights are than another's if a scale shared by both leaves
them one level: 127 / 100."""
_WEIGHTS = 1
"""The slot of the weights."""


def output_axis(node: ir.Node, rank: int) -> int | None:
    """Return the axis of a product's weights along which scales vary; None if it takes one scale.

    These are the axes that TensorRT supports: the output channels of a convolution, and the columns
    of a product's second matrix.

    Args:
        node: One of `QUANTISABLE`.
        rank: Rank of its input at slot 1.
    """
    if node.op_type == "ConvTranspose":
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if node.op_type == "Conv" or node.attributes.get_int("transB", 0) != 0:
        return 0
    return 1 if node.op_type == "Gemm" or rank == 2 else None


def small_channels(pair: Pair, node: ir.Node, slot: int) -> NDArray[np.float32] | None:
    """Return how many times smaller each channel is than the largest, if any is by more than `FAR`.

    Args:
        pair: The pair that the node reads at the slot.
        node: Any node.
        slot: One of its input slots.

    Returns:
        f32[channels], for every output channel: at most `FAR` if it is large enough, and 0 for
        channels of zeros, which lose nothing or are lost already. None if this is not a product's
        weight with one scale, if it cannot have more scales (`output_axis`), or if no channel is
        that small.
    """
    weights = _weights(pair, node, slot) if pair.axis is None else None
    axis = None if weights is None else output_axis(node, weights.ndim)
    if weights is None or axis is None or not weights.size:
        return None
    largest = np.abs(weights).max(tuple(i for i in range(weights.ndim) if i != axis))
    times = np.divide(largest.max(), largest, out=np.zeros_like(largest), where=largest > 0)
    return times if (times > FAR).any() else None


def _weights(pair: Pair, node: ir.Node, slot: int) -> NDArray[np.float32] | None:
    """Return weights as a product reads them (in steps if stored quantised), else None."""
    moves = moves_before(node, slot)
    value = pair.dequantise.inputs[0] if pair.source is None else pair.source
    if slot != _WEIGHTS or not is_standard(node, *QUANTISABLE) or value is None:
        return None
    if value.const_value is None or any(move.op_type != "Transpose" for move in moves):
        return None
    array = constant_array(value).astype(np.float32)
    if pair.source is None:
        array -= pair.zero_point
    for move in reversed(moves):
        given = move.attributes.get("perm")
        array = array.transpose(None if given is None else given.as_ints())
    return array


def without_kernel_shape(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the Convs among `nodes` without `kernel_shape` whose computed weights define it."""
    for node in nodes:
        if (
            is_standard(node, "Conv")
            and "kernel_shape" not in node.attributes
            and (weights := node.inputs[1]) is not None
            and weights.const_value is None
            and weights.shape is not None
            and weights.shape.is_static()
        ):
            yield node


def give_kernel_shapes(nodes: Iterable[ir.Node]) -> None:
    """Add `kernel_shape` to the Convs among `nodes` that lack it, in place."""
    for node in list(without_kernel_shape(nodes)):
        weights = node.inputs[1]
        assert weights is not None
        assert weights.shape is not None
        shape = [int(size) for size in weights.shape.numpy()[2:]]
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", shape)
