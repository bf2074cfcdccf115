"""State the kernel size of convolutions with computed weights, as TensorRT's parser needs.

ONNX infers a missing `kernel_shape` from the weights. If a node computes these, such as a
DequantizeLinear, onnx-tensorrt (`convMultiInput`, 8.6) compares the attribute with the weights'
shape, and refuses the model without it. The other attributes it reads there (strides, pads,
dilations, group) have ONNX's defaults, and ConvTranspose takes the size from the weights.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from halfwise.graph.model import is_standard


def without_kernel_shape(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the convolutions among `nodes` that lack it and whose computed weights define it."""
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
    """Add the missing attribute to each of `nodes`, in place."""
    for node in list(without_kernel_shape(nodes)):
        weights = node.inputs[1]
        assert weights is not None
        assert weights.shape is not None
        shape = [int(size) for size in weights.shape.numpy()[2:]]
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", shape)
