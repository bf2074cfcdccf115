"""Which nodes share a kernel, and what each brings to it.

As TensorRT for RTX's builder forms them (docs/decisions/0072-price-from-the-builder.md):

* A product is a kernel. So is whatever else has a library's kernel: pooling, recurrent nodes.
* Generated kernels compute everything else: pointwise nodes, sums, norms, softmax and movement that
  are connected without a product between them. Pointwise ones alone belong to the product before,
  unless nodes of different types read the same value there.
* Casts are part of generated kernels, which write what their readers take. A Cast from one product
  to another, or at an input or output of the graph, is a kernel.
* Attention is one kernel if its products have one low type, whatever lies between.
"""

from collections.abc import Container, Mapping
from math import prod

import onnx_ir as ir
from msgspec import Struct

from halfwise.emulation.rounding import POINTWISE
from halfwise.emulation.runner import Shapes
from halfwise.graph.model import is_standard, node_name, tensor_name
from halfwise.graph.quantised import QUANTISABLE, Pair
from halfwise.graph.roles import NodeRole, Role, is_float
from halfwise.records import NodeName

QUANTISING = ("QuantizeLinear", "DequantizeLinear")
VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Dropout")
_POINTWISE = (*POINTWISE, "BatchNormalization")
_REDUCING = (
    *("GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "Hardmax"),
    *("InstanceNormalization", "LayerNormalization", "LogSoftmax", "LpNormalization"),
    *("MeanVarianceNormalization", "RMSNormalization", "Softmax"),
)
"""Operators with sums inside, besides those called Reduce."""
_RECURRENT = ("GRU", "LSTM", "RNN")
_LANES = 4
"""Products of INT8 that an instruction of NVIDIA's GPUs adds up."""


class Read(Struct, frozen=True):
    """A float input that is not constant.

    Attributes:
        value: The tensor, in front of any quantisation and whatever only changes its shape.
        elements: Number of elements read per inference.
        takes_low: Whether a low node reads it low.
        quantised: Whether an INT8 node reads it in INT8.
    """

    value: ir.Value
    elements: float
    takes_low: bool
    quantised: bool


class Part(Struct, frozen=True):
    """A node's part of a kernel, in numbers per inference.

    Attributes:
        name: Its name.
        flops: Floating-point operations of its products.
        stored: Elements of the constants it reads.
        weights: Those elements that an INT8 node reads in INT8.
        filled: Channels of each group of an INT8 convolution, filled up to a multiple of four with
            zeros, over those that it has; 1 for other nodes.
        inputs: Its float inputs that are not constant.
        outputs: Per float output: the value, elements, and whether a low node gives it low.
        is_free: Whether it moves no data.
        is_generated: Whether a generated kernel computes it, as the file's Casts around it.
    """

    name: NodeName
    flops: float
    stored: float
    weights: float
    filled: float
    inputs: tuple[Read, ...]
    outputs: tuple[tuple[ir.Value, float, bool], ...]
    is_free: bool
    is_generated: bool


def described(
    node: ir.Node,
    role: NodeRole,
    shapes: Shapes,
    pairs: Mapping[int, Pair],
    *,
    residual: int | None = None,
    has_bodies: bool,
    times: float,
) -> Part:
    """Return what a node that runs `times` times and reads these pairs consists of.

    One that reads no pairs is assumed to read in INT8 through pairs: both factors of a product, and
    the slot `residual` of a sum that a convolution's kernel computes.
    """
    written = [
        (v, times * elements(v, shapes), _at(role.outputs, i))
        for i, v in enumerate(node.outputs)
        if v.name and is_float(v)
    ]
    most = sum(count for _, count, _ in written)
    read, stored, weights = [], 0.0, 0.0
    factors = {0, 1} if is_standard(node, *QUANTISABLE) else {residual}
    for slot, value in enumerate(node.inputs):
        if value is None or not is_float(value):
            continue
        raw, quantised = raw_of(value, pairs.get(slot)), slot in (set(pairs) or factors)
        constant = raw.const_value
        size = times * (elements(raw, shapes) if constant is None else constant.size)
        # Gather and Slice read what they return.
        size = min(size, most) if role.role is Role.MOVEMENT else size
        if constant is None:
            read.append(Read(raw, size, _at(role.inputs, slot), quantised))
        else:
            stored += size
            weights += size if quantised else 0
    return Part(
        node_name(node),
        times * flops(node, shapes, most / times),
        stored,
        weights,
        _filled(node, shapes),
        tuple(read),
        tuple(written),
        has_bodies,
        is_generated(node, role),
    )


def elements(value: ir.Value, shapes: Shapes) -> int:
    """Return the number of elements of a tensor; 0 if its shape is unknown."""
    return prod(shapes.get(tensor_name(value), (0,)))


def is_generated(node: ir.Node, role: NodeRole) -> bool:
    """Return whether a builder writes the kernel of a node itself, with what is around it."""
    if is_standard(node, *_POINTWISE, *_REDUCING) or role.role is Role.MOVEMENT:
        return True
    return is_standard(node) and node.op_type.startswith("Reduce")


def kernels(graph: ir.Graph, generated: Container[NodeName]) -> dict[NodeName, NodeName]:
    """Return which kernel computes each node, named after one of its nodes.

    Args:
        graph: The graph, without its bodies.
        generated: The nodes whose kernels are generated.
    """
    depth: dict[ir.Value | None, int] = {}
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in graph:
        own, sources = (
            node_name(node) in generated,
            [raw_of(v) for v in node.inputs if v and is_float(v)],
        )
        # Products on the longest way to the node; equal for all nodes of a generated kernel.
        level = max((depth.get(v, 0) for v in sources), default=0) + (not own)
        depth |= dict.fromkeys(node.outputs, level)
        groups[node] = [node]
        for maker in (v.producer() for v in sources if own and depth.get(v) == level):
            if maker in groups and node_name(maker) in generated:
                joined, others = groups[node], groups[maker]
                if joined is not others:
                    others += joined
                    groups |= dict.fromkeys(joined, others)
    for members in {id(group): group for group in groups.values()}.values():
        if all(is_standard(node, *_POINTWISE) for node in members):
            level = depth[members[0].outputs[0]]
            sources = [raw_of(v) for n in members for v in n.inputs if v and is_float(v)]
            before = [v.producer() for v in sources if depth.get(v) == level]
            products = [n for n in before if n is not None and is_standard(n, *QUANTISABLE)]
            if products:
                groups |= dict.fromkeys(members, groups[products[-1]])
    return {node_name(node): node_name(group[0]) for node, group in groups.items()}


def raw_of(value: ir.Value, pair: Pair | None = None) -> ir.Value:
    """Return the tensor in front of quantisation and views; for weights in a pair, the integers."""
    if pair is not None and pair.quantise is None:
        value = pair.dequantise.outputs[0]
    elif pair is not None and pair.source is not None:
        value = pair.source
    maker = value.producer()
    while maker is not None and maker.op_type in (*QUANTISING, *VIEWS) and maker.inputs[0]:
        value = maker.inputs[0]
        maker = value.producer()
    return value


def _filled(node: ir.Node, shapes: Shapes) -> float:
    """Return `Part.filled`."""
    channels = _shape(node.inputs[1], shapes)[1] if is_standard(node, "Conv") else 0
    return -(-channels // _LANES) * _LANES / channels if channels else 1.0


def _at(slots: tuple[bool, ...], index: int) -> bool:
    return index < len(slots) and slots[index]


def flops(node: ir.Node, shapes: Shapes, written: float) -> float:
    """Return the operations of a product that gives `written` elements: two per multiply-add.

    0 for other nodes, and if shapes are unknown.
    """
    first, weight, *_ = (*(_shape(v, shapes) for v in node.inputs), (), ())
    per_element, op = 0.0, node.op_type
    if not is_standard(node):
        op = op.removeprefix("Fused") if node.domain == "com.microsoft" else ""
    if op == "Conv":
        per_element = prod(weight[1:])
    elif op == "ConvTranspose":
        per_element, written = prod(weight[1:]), prod(first)
    elif op in ("MatMul", "Gemm") and first:
        per_element = first[0 if node.attributes.get_int("transA", 0) else -1]
    elif op == "MatMulNBits":
        per_element = node.attributes.get_int("K", 0)
    elif op == "Attention" and not is_standard(node):  # it multiplies by its weights first
        per_element, written = prod(weight), prod(first[:-1])
    elif is_standard(node, *_RECURRENT):
        per_element = sum(prod(_shape(v, shapes)) for v in node.inputs[1:3])
        written = prod(first[:2])
    return 2.0 * written * per_element


def _shape(value: ir.Value | None, shapes: Shapes) -> tuple[int, ...]:
    if value is None:
        return ()
    if value.const_value is not None:
        return tuple(map(int, value.const_value.shape.numpy()))
    return shapes.get(tensor_name(value), (0,))
