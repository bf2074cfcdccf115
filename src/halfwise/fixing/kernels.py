"""What each node computes, reads and writes: the basis of its cost.

QuantizeLinear and DequantizeLinear are looked through: a node reads the tensor in front of them,
with a mark on those it reads through them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from halfwise.emulation.rounding import POINTWISE
from halfwise.graph.model import is_standard, node_name, tensor_name
from halfwise.graph.quantised import QUANTISABLE, Pair
from halfwise.graph.roles import NodeRole, Role, is_float
from halfwise.records import NodeName, TensorName

QUANTISING = ("QuantizeLinear", "DequantizeLinear")
_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Dropout")
_RECURRENT = ("GRU", "LSTM", "RNN")

Shapes = Mapping[TensorName, tuple[int, ...]]


@dataclass(frozen=True)
class Read:
    """A float input that is not constant.

    Attributes:
        name: The tensor, in front of any quantisation.
        elements: Number of elements read.
        takes_low: Whether a low node reads it low.
        quantised: Whether an INT8 node reads it in INT8.
    """

    name: TensorName
    elements: int
    takes_low: bool
    quantised: bool


@dataclass(frozen=True)
class Kernel:
    """What a node's cost depends on.

    Attributes:
        name: Its name.
        flops: Floating-point operations of its products.
        stored: Elements of the constants it reads.
        weights: Those elements that an INT8 node reads in INT8.
        inputs: Its float inputs that are not constant.
        outputs: Per float output: name, elements, and whether a low node gives it low.
        is_free: Whether it moves no data.
        times: Runs per inference.
    """

    name: NodeName
    flops: float
    stored: int
    weights: int
    inputs: tuple[Read, ...]
    outputs: tuple[tuple[TensorName, int, bool], ...]
    is_free: bool
    times: float


def described(
    node: ir.Node,
    role: NodeRole,
    shapes: Shapes,
    pairs: Mapping[int, Pair],
    *,
    residual: int | None = None,
    has_bodies: bool,
    times: float,
) -> Kernel:
    """Return what a node that runs `times` times and reads these pairs consists of.

    One that reads no pairs is assumed to read in INT8 through pairs: both factors of a product, and
    the slot `residual` of a sum that a convolution's kernel computes.
    """
    written = [
        (tensor_name(v), elements(v, shapes), _at(role.outputs, i))
        for i, v in enumerate(node.outputs)
        if v.name and is_float(v)
    ]
    most = sum(count for _, count, _ in written)
    read, stored, weights = [], 0, 0
    floats = [(slot, v) for slot, v in enumerate(node.inputs) if v is not None and is_float(v)]
    factors = {0, 1} if is_standard(node, *QUANTISABLE) else {residual}
    through = set(pairs) or factors
    for slot, value in floats:
        raw = _raw(value, pairs.get(slot))
        if raw.const_value is not None:
            size = _read(raw.const_value.size, most, role)
            stored += size
            weights += size if slot in through else 0
            continue
        size = _read(elements(raw, shapes), most, role)
        read.append(Read(tensor_name(raw), size, _at(role.inputs, slot), slot in through))
    flops, free = _flops(node, shapes, most), has_bodies or is_standard(node, *_VIEWS)
    return Kernel(node_name(node), flops, stored, weights, tuple(read), tuple(written), free, times)


def elements(value: ir.Value, shapes: Shapes) -> int:
    """Return the number of elements of a tensor; 0 if its shape is unknown."""
    return prod(shapes.get(tensor_name(value), (0,)))


def fused(node: ir.Node) -> Iterator[tuple[ir.Value, NodeName]]:
    """Yield the outputs that the kernel of `node` passes to its only reader."""
    if not is_standard(node, *QUANTISABLE, *POINTWISE, "BatchNormalization"):
        return
    for value in node.outputs:
        readers = set(_readers(value))
        if len(readers) != 1 or value.is_graph_output():
            continue
        reader = readers.pop()
        if reader.graph is node.graph and is_standard(reader, *POINTWISE, "BatchNormalization"):
            yield value, node_name(reader)


def _raw(value: ir.Value, pair: Pair | None) -> ir.Value:
    """Return the tensor in front of a quantisation; for weights, the integers."""
    if pair is not None and pair.quantise is None:
        value = pair.dequantise.outputs[0]
    elif pair is not None and pair.source is not None:
        value = pair.source
    maker = value.producer()
    while maker is not None and maker.op_type in QUANTISING and maker.inputs[0] is not None:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    for use in value.uses():
        if use.node.op_type in QUANTISING:
            yield from _readers(use.node.outputs[0])
        else:
            yield use.node


def _read(count: int, written: int, role: NodeRole) -> int:
    """Return the elements read from an input: Gather and Slice read what they return."""
    return min(count, written) if role.role is Role.MOVEMENT else count


def _at(slots: tuple[bool, ...], index: int) -> bool:
    return index < len(slots) and slots[index]


def _flops(node: ir.Node, shapes: Shapes, written: int) -> float:
    """Return the operations of a product: two per multiply-accumulate."""
    if not node.inputs or node.inputs[0] is None:
        return 0.0
    left = _shape(node.inputs[0], shapes)
    weight = _shape(node.inputs[1], shapes) if len(node.inputs) > 1 else ()
    per_element = 0.0
    if is_standard(node, "Conv"):
        per_element = prod(weight[1:])
    elif is_standard(node, "ConvTranspose"):
        per_element, written = prod(weight[1:]), prod(left)
    elif is_standard(node, "MatMul", "Gemm") and left:
        per_element = left[0 if node.attributes.get_int("transA", 0) else -1]
    elif is_standard(node, *_RECURRENT):
        per_element, written = (
            sum(prod(_shape(v, shapes)) for v in node.inputs[1:3]),
            prod(left[:2]),
        )
    return 2.0 * written * per_element


def _shape(value: ir.Value | None, shapes: Shapes) -> tuple[int, ...]:
    if value is None:
        return ()
    if value.const_value is not None:
        return tuple(map(int, value.const_value.shape.numpy()))
    return shapes.get(tensor_name(value), (0,))
