"""Put QuantizeLinear and DequantizeLinear (Q and DQ) in front of the nodes to compute in INT8.

The result equals that of onnxruntime.quantization with the options it documents for TensorRT:
symmetric INT8, weights per channel, biases and outputs unchanged, a separate pair of Q and DQ for
each reader. In addition, residual sums read their other operand through a pair (`residuals`).

Its QDQQuantizer is not used because it lets every reader of a tensor with one INT8 reader read the
DQ, so nodes left out would compute something else; it quantises a model output that a node also
reads, copies shared biases, forgets Gemm's `beta`, and scales weights along the summed axis if they
come first or have three axes. Where none of that happens, both give the same numbers
(test_placing.py).
"""

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.graph.conversion import raise_opset, upcast
from halfwise.graph.excluding import excluding, with_activations
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import (
    Names,
    Network,
    add_constant,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    tensor_name,
)
from halfwise.graph.quantised import (
    QUANTISABLE,
    Pair,
    give_kernel_shapes,
    pairs_read,
    quantised_nodes,
    quantising,
    residuals,
)
from halfwise.graph.roles import is_float
from halfwise.records import NodeName, Observations, Run, TensorName, replace

Assignment = frozenset[NodeName]


class QuantisedModel(Struct, frozen=True):
    """A quantised model, and its form without quantisation.

    Attributes:
        floats: The model without any INT8, with the original's weights where it has them; its nodes
            have the names of the quantised model.
        quantised: The model as given, with low tensors widened, and with the activations that the
            quantiser dropped.
    """

    floats: Network
    quantised: Network

    @property
    def pairs(self) -> Mapping[NodeName, tuple[Pair, ...]]:
        """The nodes that can be INT8.

        Not those that read data with scales along an axis: TensorRT has one scale for data, and
        behind a node that moves that axis, the pairs that the search places would need another one.
        """
        nodes = quantised_nodes(self.quantised)
        return {name: read for name, read in nodes.items() if not any(map(_is_along, read))}

    def place(self, nodes: Assignment) -> Network:
        """Return the model with these nodes in INT8."""
        others = pairs_read(self.quantised).keys() - nodes
        placed = excluding(self.quantised, others, self.floats, ends=True)
        give_kernel_shapes(placed.graph)
        return placed


def _is_along(pair: Pair) -> bool:
    """Return whether a pair quantises data along an axis."""
    is_data = pair.source is not None and pair.source.const_value is None
    return is_data and pair.axis is not None


def quantised_start(original: Network, start: Network | Run | None) -> QuantisedModel | None:
    """Return what a search starts from, if `start` is a quantised model; else None.

    Args:
        original: The model before quantisation.
        start: A model with the types in its file, or a run.

    Raises:
        CaseError: its inputs or outputs have other names than the original's, or it is quantised
            but no product reads pairs.
    """
    if not isinstance(start, Network):
        return None
    wide = with_activations(upcast(start)[0], original)
    nodes = quantised_nodes(wide)
    if not nodes and quantising(wide):
        raise CaseError(
            f"{start.path} is quantised, but none of its products reads both data and weights "
            "through Q and DQ of at most 8 bits.",
            "Quantise statically, in QDQ format and data to 8 bits too: quantize_static of "
            "onnxruntime.quantization. Dynamic quantisation, QOperator files below opset 13, "
            "INT4 weights alone and INT16 data cannot be used.",
        )
    if not nodes:
        return None
    for ends in ("inputs", "outputs"):
        names, others = ([tensor_name(v) for v in getattr(n.graph, ends)] for n in (original, wide))
        if sorted(names) != sorted(others):
            raise CaseError(
                f"{start.path} is not a quantised form of this model: its {ends} are "
                f"{', '.join(others)}, those of the model {', '.join(names)}.",
                "Give the quantised model made from this one.",
            )
    return QuantisedModel(excluding(wide, pairs_read(wide), original, ends=True), wide)


LIMIT = 127
"""The largest magnitude of symmetric INT8; -128 is not used."""
FIRST_OPSET = 13
"""The first opset whose Q and DQ have an axis."""
_KERNELS = ("Conv", "ConvTranspose")
"""Operators that TensorRT runs in INT8 only with constant weights ("Explicit Quantization")."""


def quantisable(network: Network) -> tuple[NodeName, ...]:
    """Return the nodes of the main graph that can compute in INT8, in graph order.

    Convolutions with constant weights, and matrix products of FP32 tensors of which at least one is
    computed from the inputs; not those with constants that hold NaN or infinities. Residual sums
    that such a convolution's kernel can compute.
    """
    return tuple(map(node_name, _quantisable(network)))


def peaks(observations: Observations) -> dict[TensorName, float]:
    """Return the largest finite magnitude of each tensor that varies, which decides its scale.

    One that is 0, or of a single magnitude in all elements that were visited, has none: zero would
    get an arbitrary scale, and any other value would clip other inputs.
    """
    return {
        one.tensor: one.absmax
        for one in observations.tensors
        if one.absmax > 0
        and (
            one.detail is None
            or one.detail.histogram.zeros
            or one.detail.smallest_nonzero != one.absmax
        )
    }


def scale_of(absmax: NDArray[np.float64] | float) -> NDArray[np.float32]:
    """Return f32[*shape]: the step of INT8 for a largest magnitude of `absmax`.

    1 if that would be subnormal or 0, as in onnxruntime.quantization.
    """
    scale = (np.asarray(absmax, np.float64) / LIMIT).astype(np.float32)
    return np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)


def quantised(
    network: Network, nodes: Collection[NodeName], peaks: Mapping[TensorName, float]
) -> Network:
    """Return `network` with `nodes` in INT8: their inputs go through Q and DQ, weights are INT8.

    Of a sum, this is only the operand that the convolution's kernel does not compute itself.
    Nodes and tensors keep their names; other readers of a tensor read it as before. A weight is
    stored once for all its readers, and in FP32 only if other nodes read that too. Opsets below 13
    are raised to 13. Convolutions with computed weights get their kernel size as an attribute.

    Args:
        network: The model in FP32; not changed, its constants are shared.
        nodes: Nodes to quantise; those that are not `quantisable`, or read a tensor without a
            peak, stay as they are.
        peaks: Largest magnitude of each tensor, > 0 and finite.

    Raises:
        CaseError: ONNX cannot raise the opset.
    """
    if network.opset < FIRST_OPSET:
        network = raise_opset(network, FIRST_OPSET)
    copied = replace(network, model=network.copy())
    placing = _Placing(copied.model, peaks)
    for node, slots in _quantisable(copied).items():
        if node.name in nodes:
            placing.quantise(node, slots)
    give_kernel_shapes(placing.graph)
    drop_unused_constants((placing.graph,))
    return replace(network, model=placing.model)


class _Placing:
    """Inserts pairs into a model, in place."""

    def __init__(self, model: ir.Model, peaks: Mapping[TensorName, float]) -> None:
        self.model, self.graph, self._peaks = model, model.graph, peaks
        self._names = Names(graphs_of(model))
        self._scales: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._stored: dict[tuple[ir.Value, int | None], tuple[ir.Value, ir.Value, ir.Value]] = {}

    def quantise(self, node: ir.Node, slots: tuple[int, ...]) -> None:
        """Let `node` read through pairs, if what it reads at `slots` has peaks."""
        read = {slot: value for slot in slots if (value := node.inputs[slot]) is not None}
        if any(tensor_name(value) not in self._peaks for value in read.values()):
            return
        others = {0, 1}.difference(slots) if _is_product(node) else ()
        made: dict[ir.Value, ir.Value] = {}
        for slot, source in read.items():
            made[source] = made.get(source) or self._pair(source, node)
            node.replace_input_with(slot, made[source])
        for slot in others:
            if (weight := _weight(node, slot)) is not None:
                axis = _channels(node, slot, weight)
                node.replace_input_with(slot, self._dequantised(weight, axis, node))

    def _pair(self, source: ir.Value, reader: ir.Node) -> ir.Value:
        name = tensor_name(source)
        if source not in self._scales:
            self._scales[source] = self._constants(name, scale_of(self._peaks[name]))
        scales = self._scales[source]
        low = self._node("QuantizeLinear", source, [source, *scales], reader, ir.DataType.INT8)
        return self._node("DequantizeLinear", source, [low, *scales], reader, ir.DataType.FLOAT)

    def _dequantised(self, value: ir.Value, axis: int | None, reader: ir.Node) -> ir.Value:
        if (value, axis) not in self._stored:
            stored, scale = _stored(constant_array(value), axis)
            name = tensor_name(value)
            held = add_constant(self.graph, self._names.take(f"{name}_quantized"), stored)
            self._stored[value, axis] = (held, *self._constants(name, scale))
        held, *scales = self._stored[value, axis]
        read = [held, *scales]
        return self._node("DequantizeLinear", value, read, reader, ir.DataType.FLOAT, axis)

    def _constants(self, name: str, scale: NDArray[np.float32]) -> tuple[ir.Value, ir.Value]:
        zero = np.zeros(scale.shape, np.int8)
        return (
            add_constant(self.graph, self._names.take(f"{name}_scale"), scale),
            add_constant(self.graph, self._names.take(f"{name}_zero_point"), zero),
        )

    def _node(
        self,
        op: str,
        of: ir.Value,
        read: list[ir.Value],
        reader: ir.Node,
        dtype: ir.DataType,
        axis: int | None = None,
    ) -> ir.Value:
        """Return the output of a new node that replaces the tensor `of` in front of `reader`."""
        name = self._names.take(f"{of.name}_{op}")
        attributes = {} if axis is None else {"axis": axis}
        node = ir.node(op, read, attributes=attributes, name=name)
        made = node.outputs[0]
        made.name = self._names.take(f"{name}_Output")
        made.type, made.shape = ir.TensorType(dtype), of.shape
        self.graph.insert_before(reader, node)
        return made


def _quantisable(network: Network) -> Mapping[ir.Node, tuple[int, ...]]:
    """Return the nodes that can be INT8, with the slots where they need a pair, in graph order."""
    products = {node_name(node) for node in network.nodes() if _is_product(node)}
    sums = residuals(network, products)
    slots: dict[ir.Node, tuple[int, ...]] = {}
    for node in network.nodes():
        if _is_product(node):
            slots[node] = tuple(slot for slot in (0, 1) if _weight(node, slot) is None)
        elif node_name(node) in sums and all(map(is_float, node.inputs)):
            slots[node] = (sums[node_name(node)].slot,)
    return slots


def _is_product(node: ir.Node) -> bool:
    if not is_standard(node, *QUANTISABLE) or not all(map(is_float, node.inputs[:2])):
        return False
    weights = [_weight(node, slot) for slot in (0, 1)]
    if None not in weights or (weights[1] is None and is_standard(node, *_KERNELS)):
        return False
    return all(np.isfinite(constant_array(w)).all() for w in weights if w is not None)


def _weight(node: ir.Node, slot: int) -> ir.Value | None:
    """Return the constant that a node reads, if it is one."""
    value = node.inputs[slot]
    is_constant = value is not None and value.producer() is None and bool(value.const_value)
    return value if is_constant else None


def _channels(node: ir.Node, slot: int, value: ir.Value) -> int | None:
    """Return the axis of a weight's output channels; None if one scale has to suffice.

    TensorRT has scales along the output channels of a convolution, and along the columns of a
    product's second matrix.
    """
    rank = value.shape.rank() if value.shape is not None else 0
    if slot == 0:
        return None
    if node.op_type == "ConvTranspose":
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if node.op_type == "Conv" or node.attributes.get_int("transB", 0) != 0:
        return 0
    return 1 if node.op_type == "Gemm" or rank == 2 else None


def _stored(
    array: NDArray[np.generic], axis: int | None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return i8[*shape] of f32[*shape], and the scale, f32[] or f32[channels]."""
    weights = np.asarray(array, np.float32)
    others = tuple(i for i in range(weights.ndim) if i != axis)
    wide = np.abs(weights).max(axis=None if axis is None else others, initial=0.0)
    scale = scale_of(wide)
    shape = [1] * weights.ndim
    if axis is not None:
        shape[axis] = -1
    steps = np.rint(weights / scale.reshape(shape if axis is not None else ()))
    return np.clip(steps, -LIMIT, LIMIT).astype(np.int8), scale
