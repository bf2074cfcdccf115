"""FP32 products that TensorRT computes in the low format, and the nodes that keep it from that.

With strong typing, a builder takes a product for a low one if everything around it is low: if its
operands come from Casts out of the low format, and all that is read of its output goes through
Casts into it. It rounds the product's constants: beyond the format's range they become infinite,
small ones zero. Nodes that only move data, a factor of 1 and a convolution's bias change nothing;
any other FP32 node beside the product, and an FP32 input or output of the graph, prevents it.
`bench/folding.py` asks TensorRT for RTX.

So `anchor` puts an FP32 node behind each such product. It is a LeakyRelu of slope 1, which changes
no value, not even an infinity, NaN or the sign of zero, and becomes part of the product's kernel.
A recurrence in FP32 whose data come from such a Cast is not built at all (TensorRT for RTX 1.7, GRU
and LSTM forward over a fixed length); an anchor in front of it prevents that, too.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.graph.model import Names, is_standard, small_constant
from halfwise.graph.roles import TYPE_BLIND, is_float
from halfwise.graph.weights import LOW_TYPES

PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul")
RECURRENCES = ("GRU", "LSTM", "RNN")
ANCHOR = "halfwise.anchor"
"""Key in the metadata of nodes that `anchor` inserts."""
_MOVING = (
    *("Cast", "DepthToSpace", "Dropout", "Expand", "Flatten", "Identity", "Pad", "Reshape"),
    *("Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
)
"""Operators past which a builder looks: Pad before convolutions, Slice behind ConvTranspose, the
others everywhere. Concat of several, Gather, Split and Where keep a product in FP32."""
_OF_ONE = ("Concat", "Max", "Mean", "Min", "Sum")
"""Operators that copy where they have one input."""


class Folded(Struct, frozen=True):
    """An FP32 product that a builder computes in the low format.

    Attributes:
        node: The product.
        low: The low type of what it reads and gives.
        constants: The input slots that hold constants, which the builder rounds.
    """

    node: ir.Node
    low: ir.DataType
    constants: tuple[int, ...]


def folded(graph: ir.Graph) -> Iterator[Folded]:
    """Yield the FP32 products of a typed graph that a builder computes in the low format.

    Products in the bodies of its nodes are left out.
    """
    for node, casts_from in _float_inputs(graph):
        computed = {origin for origin in casts_from.values() if origin is not None}
        if is_standard(node, *PRODUCTS) and len(computed) == 1 and not _has_wide_bias(node):
            (low,) = computed
            if low in LOW_TYPES and _gives(node.outputs[0], _may_add_bias(node)) == {low}:
                yield Folded(
                    node, low, tuple(i for i, origin in casts_from.items() if origin is None)
                )


def _float_inputs(graph: ir.Graph) -> Iterator[tuple[ir.Node, dict[int, ir.DataType | None]]]:
    """Yield nodes, and per slot of a float input from which type its value was cast: `_origin`."""
    origins: dict[ir.Value, ir.DataType | None] = {}
    for node in graph:
        casts_from = {
            i: _origin(v, origins) for i, v in enumerate(node.inputs) if v and is_float(v)
        }
        yield node, casts_from
        computed = {origin for origin in casts_from.values() if origin is not None}
        passed = next(iter(computed)) if len(computed) == 1 and _passes(node) else None
        constant = bool(casts_from) and not computed
        for value in filter(is_float, node.outputs):
            origins[value] = None if constant else passed or ir.DataType.FLOAT
        if is_standard(node, "Cast") and node.inputs[0] and node.inputs[0].dtype in LOW_TYPES:
            origins[node.outputs[0]] = node.inputs[0].dtype


def _origin(value: ir.Value, origins: Mapping[ir.Value, ir.DataType | None]) -> ir.DataType | None:
    """Return the type from which an FP32 value was cast, FLOAT if computed, None if constant."""
    default = None if value.const_value is not None else ir.DataType.FLOAT
    return origins.get(value, default)


def _passes(node: ir.Node) -> bool:
    if is_standard(node, "Mul", "Div", "PRelu"):
        factors = map(small_constant, node.inputs if node.op_type == "Mul" else node.inputs[1:])
        return any(f is not None and f.size == 1 and np.all(f == 1) for f in factors)
    return is_standard(node, *_MOVING) or (is_standard(node, *_OF_ONE) and len(node.inputs) == 1)


def _has_wide_bias(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and len(node.inputs) > 2 and node.inputs[2] is not None


def _may_add_bias(node: ir.Node) -> bool:
    return node.op_type.startswith("Conv") and (len(node.inputs) < 3 or node.inputs[2] is None)


def _gives(value: ir.Value, may_add_bias: bool) -> set[ir.DataType | None]:
    """Return the types in which an FP32 value is read: low where Casts lead to, or FLOAT.

    Args:
        value: The value.
        may_add_bias: Whether a constant that is added becomes a convolution's bias. Likewise with a
            single factor: there the builder of TensorRT for RTX 1.7 fails.
    """
    types: set[ir.DataType | None] = {ir.DataType.FLOAT} if value.is_graph_output() else set()
    for node, slot in value.uses():
        made = node.outputs[0]
        if is_standard(node, *TYPE_BLIND):
            continue
        if is_standard(node, "Cast") and made.dtype in LOW_TYPES:
            types.add(made.dtype)
        elif _passes(node) or (may_add_bias and _adds_constant(node, slot)):
            types |= _gives(made, may_add_bias)
        else:
            types.add(ir.DataType.FLOAT)
    return types


def _adds_constant(node: ir.Node, slot: int) -> bool:
    """Return whether a node adds a constant to its input `slot`, or scales it by a single one."""
    other = node.inputs[1 - slot] if is_standard(node, "Add", "Sub", "Mul", "Div") else None
    if other is None or (slot == 1 and node.op_type in ("Sub", "Div")):
        return False
    factor = small_constant(other)
    scales = node.op_type in ("Mul", "Div")
    return factor is not None and factor.size == 1 if scales else other.const_value is not None


def is_anchor(node: ir.Node) -> bool:
    """Return whether `anchor` inserted `node`; a mark on any other node counts for nothing."""
    passes = is_standard(node, "LeakyRelu") and node.attributes.get_float("alpha", 0.01) == 1
    return passes and ANCHOR in node.metadata_props


def anchor(graphs: Iterable[ir.Graph], names: Names) -> None:
    """Put anchors behind products that would be folded, and before recurrences, in place.

    Args:
        graphs: The graphs of a typed model.
        names: The model's names.
    """
    for graph in graphs:
        products = [fold.node for fold in folded(graph)]
        recurrences = [
            node
            for node, origins in _float_inputs(graph)
            if is_standard(node, *RECURRENCES) and origins.get(0) in LOW_TYPES
        ]
        for product in products:
            value = product.outputs[0]
            made = _anchored(value, names)
            value.replace_all_uses_with(made.outputs[0])
            made.replace_input_with(0, value)
            graph.insert_after(product, made)
        for recurrence in recurrences:
            data = recurrence.inputs[0]
            assert data is not None
            made = _anchored(data, names)
            recurrence.replace_input_with(0, made.outputs[0])
            graph.insert_before(recurrence, made)


def _anchored(value: ir.Value, names: Names) -> ir.Node:
    name = names.take(f"{value.name}_anchored")
    made = ir.val(name, ir.DataType.FLOAT, value.shape)
    node = ir.node("LeakyRelu", [value], {"alpha": 1.0}, name=name, outputs=[made])
    node.metadata_props[ANCHOR] = "1"
    return node


def round_folded(model: ir.Model) -> None:
    """Round the constants of folded products as a builder does, in place, by a pair of Casts.

    Rounding is to nearest even; what overflows becomes infinite.
    """
    for graph in (model.graph, *model.graph.subgraphs()):
        for product in list(folded(graph)):
            node = product.node
            for slot in product.constants:
                prefix = f"{node.name}::folded{slot}"
                down = _cast(node.inputs[slot], product.low, f"{prefix}::low")
                up = _cast(down.outputs[0], ir.DataType.FLOAT, prefix)
                graph.insert_before(node, [down, up])
                node.replace_input_with(slot, up.outputs[0])


def _cast(value: ir.Value | None, to: ir.DataType, name: str) -> ir.Node:
    outputs = [ir.val(name, to, value.shape if value is not None else None)]
    return ir.node("Cast", [value], {"to": int(to)}, name=name, outputs=outputs)
