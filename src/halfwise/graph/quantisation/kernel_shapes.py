"""State the kernel size of convolutions whose weights are no constants, as TensorRT's parser needs.

ONNX infers a missing `kernel_shape` from the weights. Where these come out of a node, such as a
DequantizeLinear, onnx-tensorrt (`convMultiInput`, 8.6) compares what the attribute says with the
weights' shape, and refuses the model without it. All else that it reads there from attributes
(strides, pads, dilations, group) has ONNX's defaults, and ConvTranspose takes it from the weights.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from halfwise.graph.model import is_standard


def without_kernel_shape(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield the convolutions among `nodes` that lack it, where computed weights tell it."""
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
    """Give each of `nodes` the attribute that it lacks, in place."""
    for node in list(without_kernel_shape(nodes)):
        weights = node.inputs[1]
        assert weights is not None
        assert weights.shape is not None
        shape = [int(size) for size in weights.shape.numpy()[2:]]
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", shape)
