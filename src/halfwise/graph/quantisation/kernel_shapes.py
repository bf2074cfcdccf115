"""State the kernel size of convolutions with computed weights, which TensorRT's parser needs.

ONNX infers a missing `kernel_shape` from the weights. If a node computes the weights, for example a
DequantizeLinear, onnx-tensorrt (`convMultiInput`, 8.6) compares the attribute with their shape, and
refuses the model if it is missing. For the other attributes that it reads there (strides, pads,
dilations, group) it has ONNX's defaults, and for ConvTranspose it takes the size from the weights.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from halfwise.graph.model import is_standard


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
