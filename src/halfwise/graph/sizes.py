"""Sizes of axes: declared, set by elements of inputs, or baked into constants by the export."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.errors import CaseError
from halfwise.graph.dataflow import reached
from halfwise.graph.loading import numbers
from halfwise.graph.model import (
    Network,
    constant_array,
    is_standard,
    node_name,
    tensor_name,
)
from halfwise.records import NodeName, TensorName

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
"""Inputs whose elements set the result's shape (ONNX's operator reference); for a Loop, its trip
count, which sets the size of its scan outputs."""
_FORGETS_ELEMENTS = ("Shape", "Size")
"""Operators whose result depends only on shapes."""
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Operands of shape [directions, batch, hidden] (ONNX's operator reference)."""


def declared_axes(value: ir.Value) -> tuple[int | str | None, ...]:
    """Return the axes of a value: each a size, a symbol, or None for neither.

    Raises:
        CaseError: its rank is unknown.
    """
    if value.shape is None:
        raise CaseError(
            f"The model declares no rank for {value.name!r}, and no data shows what it is.",
            "Give inputs if the command takes them, or a model whose inputs have a shape.",
        )
    return tuple(axis if isinstance(axis, int) else axis.value for axis in value.shape)


def sizes_read(node: ir.Node) -> Sequence[int | ir.SymbolicDim] | None:
    """Return the sizes that determine a node's outputs; None if unknown, or if it reads values.

    This follows Gather: one size of a shape may be fixed while others are not.
    """
    value = node.inputs[0] if node.inputs else None
    if node.op_type == "Gather" and value is not None and node.inputs[1] is not None:
        shape, picked = value.producer(), node.inputs[1]
        sizes = sizes_read(shape) if shape is not None and shape.op_type == "Shape" else None
        if sizes is None or picked.const_value is None:
            return None
        chosen = np.ravel(constant_array(picked)).tolist()
        inside = all(-len(sizes) <= index < len(sizes) for index in chosen)
        return [sizes[index] for index in chosen] if inside else None
    if not is_standard(node, *_FORGETS_ELEMENTS) or value is None or value.shape is None:
        return None
    first, last = (node.attributes.get(name) for name in ("start", "end"))
    return value.shape.dims[first.as_int() if first else None : last.as_int() if last else None]


def shape_inputs(network: Network) -> frozenset[TensorName]:
    """Return the integer graph inputs whose elements reach a shape operand; see `size_inputs`."""
    return frozenset(tensor_name(v) for v in size_inputs(network) if v.dtype in _INTEGERS)


def size_inputs(network: Network) -> frozenset[ir.Value]:
    """Return the graph inputs of rank 0 or 1 whose elements reach a shape operand.

    Floats may, through a Range or the scales of a Resize. The walk passes any operators but Shape
    and Size while values have rank 0 or 1: tensors of higher rank take no part in shape arithmetic
    (in TensorRT too). It does not pass states of a Loop or outputs of an If.
    """
    inputs = set(network.graph.inputs)

    def makes(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or is_standard(node, *_FORGETS_ELEMENTS):
            return []
        return [v for v in node.inputs if v is not None and _may_be_a_shape(v)]

    wanted = (v for n in network.model.graph.all_nodes() for v in _operands(n))
    seen = reached(filter(_may_be_a_shape, wanted), makes)
    return frozenset(seen.keys() & inputs)


def _operands(node: ir.Node) -> Iterator[ir.Value]:
    if not is_standard(node):
        return
    for slot in _SHAPE_SLOTS.get(node.op_type, ()):
        if slot < len(node.inputs) and (value := node.inputs[slot]) is not None:
            yield value


def _may_be_a_shape(value: ir.Value) -> bool:
    return value.shape is None or len(value.shape) <= 1


class Frozen(Struct, frozen=True):
    """A size that the export fixed in a constant operand of a node.

    Attributes:
        node: The node, of the main graph.
        slot: Index of the constant operand.
        axis: The axis of the node's input that has this size.
    """

    node: ir.Node
    slot: int
    axis: int

    @property
    def constant(self) -> ir.Value:
        """The constant."""
        value = self.node.inputs[self.slot]
        assert value is not None
        return value


def frozen_nodes(network: Network) -> tuple[NodeName, ...]:
    """Return nodes that may have a batch size from the export baked into a constant.

    These are Reshape, Expand and Concat nodes whose input has a dynamic first axis, which their
    constant fixes. Some of them are intended.
    """
    return tuple(node_name(each.node) for each in frozen_axes(network, batch=True))


def frozen_axes(network: Network, *, batch: bool) -> Iterator[Frozen]:
    """Yield the dynamic axes that constants of Reshape, Expand and Concat fix, in graph order.

    Args:
        network: The model.
        batch: Whether those of the first axis; else the others, which a Reshape to fixed sizes
            only fixes, or an Expand to a fixed size.
    """
    for node in network.nodes():
        frozen: Iterator[Frozen] = iter(())
        if is_standard(node, "Concat"):
            frozen = _frozen_by_concat(node)
        elif is_standard(node, "Reshape", "Expand") and len(node.inputs) > 1:
            frozen = _frozen_by_target(node)
        yield from (each for each in frozen if (each.axis == 0) is batch)


def _frozen_by_concat(node: ir.Node) -> Iterator[Frozen]:
    """Yield the batch axis that a joined constant fixes."""
    slots = [i for i, v in enumerate(node.inputs) if v is not None and v.is_initializer()]
    values = [v for v in node.inputs if v is not None]
    ranked = all(v.shape is not None and len(v.shape) > 1 for v in values)
    # The first version of Concat has a default.
    joins = slots and ranked and node.attributes.get_int("axis", 1) != 0
    if joins and not all(isinstance(declared_axes(value)[0], int) for value in values):
        yield Frozen(node, slots[-1], 0)


def _frozen_by_target(node: ir.Node) -> Iterator[Frozen]:
    """Yield the axes that a Reshape or Expand to a constant shape fixes."""
    value, target = node.inputs[0], numbers(node.inputs[1])
    if value is None or value.shape is None or target is None:
        return
    dynamic = [i for i, size in enumerate(declared_axes(value)) if not isinstance(size, int)]
    sizes = [int(n) for n in np.ravel(target)]
    rank, expands = len(value.shape), node.op_type == "Expand"
    # An Expand to 1 keeps the axis; a vector's is no batch axis: it may become any of the new ones.
    if 0 in dynamic and sizes and sizes[0] > expands and (expands or rank > 1):
        yield Frozen(node, 1, 0)
    later = [i for i in dynamic if i > 0]
    by = _frozen_by_expand(later, sizes, rank) if expands else _frozen_by_reshape(later, sizes)
    if later and by:
        yield Frozen(node, 1, later[0])


def frozen_states(network: Network) -> Iterator[Frozen]:
    """Yield the constant initial states of recurrent nodes whose batch may vary."""
    for node in network.nodes():
        for slot in STATES.get(node.op_type, ()):
            state = node.inputs[slot] if slot < len(node.inputs) else None
            place = _varying_batch(node, state)
            if place is not None:
                yield Frozen(node, slot, place)


def _varying_batch(node: ir.Node, state: ir.Value | None) -> int | None:
    """Return the batch axis of a recurrent node's input; None unless only the state fixes it."""
    x = node.inputs[0]
    if state is None or state.const_value is None or x is None or x.shape is None:
        return None
    layout = node.attributes.get("layout")
    place = 0 if layout is not None and layout.as_int() else 1
    axes = declared_axes(x)
    return place if len(axes) > place and not isinstance(axes[place], int) else None


def _frozen_by_reshape(axes: list[int], sizes: list[int]) -> bool:
    """Return whether no size is left open, and no 0 copies a dynamic axis."""
    kept = [i for i in axes if i < len(sizes) and sizes[i] == 0]
    return bool(sizes) and -1 not in sizes and len(kept) < len(axes)


def _frozen_by_expand(axes: list[int], sizes: list[int], rank: int) -> bool:
    """Return whether a dynamic axis meets a size above 1, aligned at the last axis."""
    offset = len(sizes) - rank
    return any(i + offset >= 0 and sizes[i + offset] > 1 for i in axes)
