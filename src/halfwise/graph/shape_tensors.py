"""Graph inputs whose elements decide about shapes: TensorRT's shape tensors.

A builder has to know their range as it has to know that of sizes, so an optimization profile names
their smallest, usual and largest values.
"""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.graph.model import Network, is_standard, tensor_name
from halfwise.records import TensorName

_SHAPE_SLOTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(["ConstantOfShape", "Loop"], (0,)),
    **dict.fromkeys(["AffineGrid", "CenterCropPad", "Col2Im", "Expand", "OneHot"], (1,)),
    **dict.fromkeys(["Pad", "Reshape", "Split", "Squeeze", "Tile", "TopK"], (1,)),
    **dict.fromkeys(["Unsqueeze", "Upsample"], (1,)),
    "MaxUnpool": (2,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""Inputs whose elements set the shape of the result, by ONNX's operator reference; of a Loop, its
trip count, which sets the size of what it collects."""
_FORGETS_ELEMENTS = ("Shape", "Size")
"""Operators whose result depends on shapes alone."""
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


def shape_inputs(network: Network) -> frozenset[TensorName]:
    """Return the integer graph inputs of rank 0 or 1 whose elements reach a shape operand.

    Through any operators but Shape and Size, as long as values have rank 0 or 1: no tensor of a
    higher rank takes part in arithmetic on shapes (TensorRT holds to that too). What goes through
    the states of a Loop or the outputs of an If is not followed.
    """
    inputs = set(network.graph.inputs)
    waiting = [v for n in network.model.graph.all_nodes() for v in _operands(n)]
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen or not _may_be_a_shape(value):
            continue
        seen.add(value)
        node = value.producer()
        if node is not None and not is_standard(node, *_FORGETS_ELEMENTS):
            waiting += [v for v in node.inputs if v is not None]
    return frozenset(tensor_name(v) for v in seen & inputs if v.dtype in _INTEGERS)


def _operands(node: ir.Node) -> Iterator[ir.Value]:
    if not is_standard(node):
        return
    for slot in _SHAPE_SLOTS.get(node.op_type, ()):
        if slot < len(node.inputs) and (value := node.inputs[slot]) is not None:
            yield value


def _may_be_a_shape(value: ir.Value) -> bool:
    return value.shape is None or len(value.shape) <= 1
