"""The weights of a product: their magnitudes per output channel, and the kernel size they define.

TensorRT's parser needs the kernel size of convolutions with computed weights. ONNX infers a missing
`kernel_shape` from the weights. If a node computes the weights, for example a DequantizeLinear,
onnx-tensorrt (`convMultiInput`, 8.6) compares the attribute with their shape, and refuses the model
if it is missing. For the other attributes that it reads there (strides, pads, dilations, group) it
has ONNX's defaults, and for ConvTranspose it takes the size from the weights.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.graph.model import QUANTISED, Network, constant_array, is_standard, node_name
from halfwise.records import NodeName


class Residual(NamedTuple):
    """How a residual sum is computed.

    Attributes:
        product: The convolution whose kernel adds.
        slot: The slot of the other operand.
    """

    product: NodeName
    slot: int


def residuals(
    network: Network, products: Container[NodeName] | None = None
) -> Mapping[NodeName, Residual]:
    """Return the residual sums of the main graph, in graph order.

    Each adds the result of a Conv, perhaps through a BatchNormalization, that nothing else reads,
    and another computed tensor of the same shape. If both operands are such results, the kernel
    of the one with more nodes before it adds: the other one is the shortcut.

    Args:
        network: The model, quantised or not.
        products: The convolutions that count; None for all.
    """
    depth = cache(lambda: _depths(network))
    sums: dict[NodeName, Residual] = {}
    for node in network.nodes():
        if not is_standard(node, "Add"):
            continue
        ends = [None if value is None else _product(value) for value in node.inputs]
        slots = [
            slot
            for slot, end in enumerate(ends)
            if end is not None and (products is None or node_name(end) in products)
        ]
        if slots and _is_sum(node):
            deepest = (
                max(slots, key=lambda slot: depth()[ends[slot]]) if len(slots) > 1 else slots[0]
            )
            product = ends[deepest]
            assert product is not None
            sums[node_name(node)] = Residual(node_name(product), 1 - deepest)
    return sums


def _product(value: ir.Value) -> ir.Node | None:
    """Return the Conv whose result is added alone; None if there is none."""
    maker = value.producer()
    if maker is not None and is_standard(maker, "BatchNormalization") and _is_alone(value):
        (value, *_) = (v for v in maker.inputs if v is not None)
        maker = value.producer()
    is_conv = maker is not None and is_standard(maker, "Conv") and _is_alone(value)
    return maker if is_conv else None


def _is_alone(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _is_sum(node: ir.Node) -> bool:
    """Return whether an Add adds two computed tensors, neither of them broadcast as declared."""
    shapes = [value.shape for value in node.inputs if value is not None]
    if any(value is None or value.producer() is None for value in node.inputs):
        return False
    declared = [shape for shape in shapes if shape is not None]
    return len(declared) < len(shapes) or _alike(*declared)


def _alike(one: ir.Shape, other: ir.Shape) -> bool:
    """Return whether two shapes are, or may be, the same; a 1 next to a free size is broadcast."""
    return len(one) == len(other) and all(
        a == b or (1 not in (a, b) and not (isinstance(a, int) and isinstance(b, int)))
        for a, b in zip(one, other, strict=True)
    )


def _depths(network: Network) -> Mapping[ir.Node | None, int]:
    """Return the number of nodes on the longest path to each node."""
    depths: dict[ir.Node | None, int] = {None: 0}
    for node in network.nodes():
        makers = (value.producer() for value in node.inputs if value is not None)
        depths[node] = 1 + max((depths.get(maker, 0) for maker in makers), default=0)
    return depths


QUANTISABLE = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Operators with INT8 kernels in TensorRT that do most of a network's work."""
_INTEGERS = frozenset(
    (
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    )
)
"""Products in QOperator files, and products of dynamically quantised activations."""
NARROW = 8
"""Most bits that an INT8 (or FP8) kernel reads."""
_DATA = 2
"""The slots that decide: data and weights. Biases stay FP32 in TensorRT's kernels."""
_MOVES = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators allowed between a DequantizeLinear and its reader: they move all elements and change
none."""
CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's versions of these operators, for types and opsets that ONNX lacked."""


class Pair(Struct, frozen=True, eq=False):
    """A QuantizeLinear and its DequantizeLinear, or a DequantizeLinear of stored integers.

    Attributes:
        source: The float tensor that is quantised; None if the file stores integers.
        quantise: The QuantizeLinear; None if the file stores integers.
        dequantise: The DequantizeLinear.
        readers: Nodes that read the result, past moves of all elements, with slots; also in
            bodies.
        scale: f32[] for one scale, f32[n] for one per index of `axis`, f32[*shape] in blocks.
        zero_point: i32[*scale's shape]; zeros for floats of 8 bits or less.
        axis: The axis along which scales vary; None for one scale.
        block: Elements of `axis` per scale; None without blocks.
        dtype: The stored type.
    """

    source: ir.Value | None
    quantise: ir.Node | None
    dequantise: ir.Node
    readers: tuple[tuple[ir.Node, int], ...]
    scale: NDArray[np.float32]
    zero_point: NDArray[np.int32]
    axis: int | None
    block: int | None
    dtype: ir.DataType

    def stored(self) -> NDArray[np.generic] | None:
        """Return the integers of the file; None if there is a source."""
        value = self.dequantise.inputs[0]
        return None if self.source is not None or value is None else constant_array(value)

    def steps(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the scale of each element of a tensor: f32, broadcasts to `shape`."""
        return self._spread(self.scale, shape)

    def dequantised(self) -> NDArray[np.float32]:
        """Return the dequantised stored integers: f32[*shape], (q − zero point) · scale.

        Raises:
            ValueError: nothing is stored (see `source`).
        """
        levels = self.levels()
        return levels * self.steps(levels.shape)

    def levels(self) -> NDArray[np.float32]:
        """Return the stored integers minus their zero points: f32[*shape].

        Raises:
            ValueError: as for `dequantised`.
        """
        stored = self.stored()
        if stored is None:
            raise ValueError("the pair quantises a tensor; nothing is stored")
        zeros = self._spread(self.zero_point, stored.shape).astype(np.float32)
        return stored.astype(np.float32) - zeros

    def _spread(self, scales: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if self.axis is None:
            return scales.reshape(())
        if self.block is None:
            return scales.reshape([-1 if i == self.axis else 1 for i in range(len(shape))])
        whole = np.repeat(scales, self.block, self.axis)
        return np.take(whole, range(shape[self.axis]), self.axis)


def pairs_of(network: Network, *, inner: bool = False) -> tuple[Pair, ...]:
    """Return the pairs of the main graph, in the order of their DequantizeLinears.

    `inner`: also those in bodies, which follow the node that holds them.
    Both ends of a pair have the same constant scales and zero points; if these differ, the file
    uses the nodes for more than quantisation. Nodes with computed scales form no pair.
    """
    nodes = network.graph.all_nodes() if inner else network.nodes()
    pairs = (_pair(node) for node in nodes if _is(node, "DequantizeLinear"))
    return tuple(pair for pair in pairs if pair is not None)


def pairs_read(network: Network, *, inner: bool = False) -> Mapping[NodeName, Mapping[int, Pair]]:
    """Return, for each node of the main graph that reads pairs, the pair at each such slot.

    `inner`: also for those in bodies.
    """
    nodes = set(network.all_nodes() if inner else network.nodes())
    reads: dict[NodeName, dict[int, Pair]] = {}
    for pair in pairs_of(network, inner=inner):
        for node, slot in pair.readers:
            if node in nodes:
                reads.setdefault(node_name(node), {})[slot] = pair
    return reads


def quantised_nodes(network: Network) -> Mapping[NodeName, tuple[Pair, ...]]:
    """Return the nodes that a backend may run in INT8 (or FP8), with their pairs, in slot order.

    These are products that read both data and weights through pairs of at most 8 bits, and sums
    that the kernel of such a convolution computes, if their other operand comes through such a
    pair. Nodes are in graph order.
    """
    read = pairs_read(network)
    reading = _reading(network, read, whole=True)
    for name, (_, slot) in residuals(network, reading).items():
        pair = read.get(name, {}).get(slot)
        if pair is not None and pair.dtype.bitwidth <= NARROW:
            reading[name] = (pair,)
    return {name: reading[name] for name in map(node_name, network.nodes()) if name in reading}


def _reading(
    network: Network, read: Mapping[NodeName, Mapping[int, Pair]], *, whole: bool
) -> dict[NodeName, tuple[Pair, ...]]:
    """Return the products that read both data and weights through pairs, or one of the two."""
    products: dict[NodeName, tuple[Pair, ...]] = {}
    for node in network.all_nodes():
        slots = read.get(node_name(node), {})
        narrow = (slot for slot, pair in slots.items() if pair.dtype.bitwidth <= NARROW)
        data = [slot for slot in narrow if slot < _DATA]
        if is_standard(node, *QUANTISABLE) and data and (len(data) == _DATA) is whole:
            products[node_name(node)] = tuple(slots[slot] for slot in sorted(slots))
    return products


class Census(Struct, frozen=True):
    """How much of a model is quantised.

    Attributes:
        products: Convolutions and matrix products, in bodies too, integer ones included.
        whole: Products whose data and weights both come through pairs.
        half: Products with only one of the two through a pair.
        integers: Products that compute with integers (QLinearConv, MatMulInteger, QGemm and so on).
        quantised: Nodes that quantise, dequantise or compute with integers.
    """

    products: int
    whole: int
    half: int
    integers: int
    quantised: int


def quantising(network: Network) -> list[ir.Node]:
    """Return the nodes of any graph that quantise, dequantise or compute with integers."""
    nodes = network.model.graph.all_nodes()
    return [node for node in nodes if node.op_type.startswith(QUANTISED)]


def census(network: Network) -> Census:
    """Return how much of a model is quantised; if nothing is, all but `products` are 0."""
    integers = sum(n.op_type in _INTEGERS for n in network.all_nodes())
    read = pairs_read(network, inner=True)
    return Census(
        products=sum(is_standard(n, *QUANTISABLE) for n in network.all_nodes()) + integers,
        whole=len(_reading(network, read, whole=True)),
        half=len(_reading(network, read, whole=False)),
        integers=integers,
        quantised=len(quantising(network)),
    )


def moves_before(node: ir.Node, slot: int) -> tuple[ir.Node, ...]:
    """Return the nodes right before a slot that only move all elements, nearest first."""
    moves: list[ir.Node] = []
    value = node.inputs[slot]
    while value is not None and (maker := value.producer()) is not None and _moves(maker):
        moves.append(maker)
        value = maker.inputs[0]
    return tuple(moves)


def _moves(node: ir.Node) -> bool:
    return is_standard(node, *_MOVES)


def _is(node: ir.Node, op: str) -> bool:
    return node.op_type == op and (is_standard(node) or node.domain == CONTRIB)


def _pair(node: ir.Node) -> Pair | None:
    stored = node.inputs[0]
    scale, zero = (_constant(node, slot) for slot in (1, 2))
    if stored is None or stored.dtype is None or scale is None or not node.outputs[0].name:
        return None
    maker, source = stored.producer(), None
    if maker is not None:
        if not _is(maker, "QuantizeLinear") or not _agree(maker, node):
            return None
        source = maker.inputs[0]
    elif stored.const_value is None:
        return None
    axis, block = _layout(node, scale, stored)
    return Pair(
        source=source,
        quantise=maker,
        dequantise=node,
        readers=tuple(_readers(node.outputs[0])),
        scale=scale.astype(np.float32).reshape(() if axis is None else scale.shape),
        zero_point=_zeros(zero, scale if axis is not None else np.zeros(())),
        axis=axis,
        block=block,
        dtype=stored.dtype,
    )


def _constant(node: ir.Node, slot: int) -> NDArray[np.generic] | None:
    value = node.inputs[slot] if slot < len(node.inputs) else None
    return None if value is None or value.const_value is None else constant_array(value)


def _layout(
    node: ir.Node, scale: NDArray[np.generic], stored: ir.Value
) -> tuple[int | None, int | None]:
    """Return the axis along which scales vary, and the elements per scale in blocks."""
    if scale.size == 1 and scale.ndim <= 1:
        return None, None
    attribute = node.attributes.get("axis")
    axis = 1 if attribute is None else attribute.as_int()
    rank = scale.ndim if stored.shape is None or scale.ndim > 1 else len(stored.shape)
    block = node.attributes.get("block_size")
    size = block.as_int() if block is not None else 0
    return axis % max(rank, 1), size or None


def _zeros(zero: NDArray[np.generic] | None, scale: NDArray[np.generic]) -> NDArray[np.int32]:
    if zero is None:
        return np.zeros(scale.shape, np.int32)
    return np.broadcast_to(
        zero.astype(np.int32).reshape(-1 if scale.ndim == 1 else scale.shape), scale.shape
    )


def _agree(quantise: ir.Node, dequantise: ir.Node) -> bool:
    """Return whether both have the same scales and zero points, along the same axis."""
    layouts = [
        {name: a.value for name in ("axis", "block_size") if (a := node.attributes.get(name))}
        for node in (quantise, dequantise)
    ]
    slots = ((_constant(quantise, slot), _constant(dequantise, slot)) for slot in (1, 2))
    return layouts[0] == layouts[1] and all(_same(one, other) for one, other in slots)


def _same(one: NDArray[np.generic] | None, other: NDArray[np.generic] | None) -> bool:
    if one is None or other is None:
        # An omitted zero point is zero.
        return not any(
            np.any(array.astype(np.float32)) for array in (one, other) if array is not None
        )
    return one.shape == other.shape and np.array_equal(
        one.astype(np.float32), other.astype(np.float32)
    )


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    for node, slot in value.uses():
        if _moves(node) and slot == 0 and not node.outputs[0].is_graph_output():
            yield from _readers(node.outputs[0])
        else:
            yield node, slot


LEVELS = 127
"""Levels of INT8 on either side of zero."""
_FAR = 100.0
"""How many times smaller than the range of a scale values are that keep one of 127 levels."""


def keeps_nothing(largest: float, scale: float) -> bool:
    """Return whether a scale leaves less than 1.27 of 127 levels to values up to `largest`."""
    return 0 < largest * _FAR < LEVELS * scale


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
