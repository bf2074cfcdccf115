"""Emulation of TF32: matrix products and convolutions round their inputs to 11 significant bits."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.rounding import Elements, Steps, new_node
from halfwise.graph.model import Network, add_constant, constant_array, is_standard, node_name
from halfwise.graph.quantised import quantised_nodes
from halfwise.graph.roles import is_float
from halfwise.records import NodeName

TF32_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that TensorRT and cuDNN may compute in TF32; sums and bias stay FP32."""
TF32_PRECISION = 11
"""Significant bits, the implicit one included (NVIDIA's A100 white paper: 10 bits of mantissa)."""

TENSOR_CORE_OPS = (*TF32_OPS, "Einsum")
"""`TF32_OPS` and Einsum, which is not emulated here because it may have any number of factors."""

Rounding = Literal["nearest", "zero"]
"""How a kernel rounds. TensorRT 8.6.0 on an H200 has kernels of both kinds, and each build may pick
different ones. Rounding toward zero triples the error. A product's effect on the outputs matches
one of the two to within 4 % (bench/gpu/tf32_ranks.py)."""
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "zero")

SWITCH_INPUT = "halfwise::tf32"
TF32_MARK = "halfwise.tf32"
"""Key in a node's metadata: the plan allows TF32 for this node."""

_SPLITTER = float(2 ** (24 - TF32_PRECISION) + 1)
_STEP_DOWN = 1 - 1.25 * 2.0**-TF32_PRECISION
"""An 11-bit number times this rounds to the next one toward zero: the product lies 0.62 to 1.25
spacings below it."""
_LARGEST_SPLIT = 2.0**100
"""Larger numbers could overflow when multiplied by the splitter; they are left unrounded."""


def tf32_nodes(network: Network) -> tuple[NodeName, ...]:
    """Return the products that may run in TF32, in graph order.

    Products in bodies of If, Loop and Scan stay FP32 and are left out. So are integer products.
    """
    integers = quantised_nodes(network)
    names = (node_name(n) for n in network.nodes() if _is_product(n))
    return tuple(name for name in names if name not in integers)


def emulate_tf32(
    network: Network, *, switched: bool = False, rounding: Rounding = "nearest"
) -> ir.Model:
    """Return a model that rounds both factors of every product to TF32.

    With `switched`, a further input `SWITCH_INPUT`, bool[len(tf32_nodes(network))], says which
    products are TF32.
    """
    model = network.copy()
    concerned = frozenset(tf32_nodes(network))
    products = [node for node in model.graph if node_name(node) in concerned]
    switch = None
    if switched and products:
        switch = Elements(model.graph, SWITCH_INPUT, len(products))
        model.graph.inputs.append(switch.input)
    _round_products(model.graph, products, rounding, switch)
    return model


def mark_tf32(graph: ir.Graph, *, allowed: bool) -> None:
    """Mark all FP32 products of a main graph as possibly TF32; without `allowed`, mark none.

    An engine has one switch for all of them. ONNX has no TF32 type, so the mark is in the node's
    metadata. Marks already in the user's model belong to another plan and are removed.
    """
    for node in graph:
        node.metadata_props.pop(TF32_MARK, None)
        if allowed and _is_product(node) and _given(node).dtype == ir.DataType.FLOAT:
            node.metadata_props[TF32_MARK] = "1"


def round_marked(graph: ir.Graph) -> None:
    """Round the factors of a graph's marked products to TF32.

    Rounding is toward zero, as in the coarsest kernels.
    """
    marked = [n for n in graph if TF32_MARK in n.metadata_props and _is_product(n)]
    _round_products(graph, marked, "zero", None)


def _round_products(
    graph: ir.Graph, products: Sequence[ir.Node], rounding: Rounding, switch: Elements | None
) -> None:
    for i, node in enumerate(products):
        when = None
        if switch is not None:
            chosen = switch.at(i, f"{node.name}::tf32")
            graph.insert_before(node, chosen)
            when = chosen[-1].outputs[0]
        for slot, value in enumerate(node.inputs[:2]):
            if value is not None and is_float(value):
                prefix = f"{node.name}::tf32_{slot}"
                if value.const_value is None:
                    nodes, rounded = round_tf32(value, prefix, when, rounding)
                else:
                    nodes, rounded = _round_constant(graph, value, prefix, when, rounding)
                graph.insert_before(node, nodes)
                node.replace_input_with(slot, rounded)
                if value.const_value is not None and not (value.uses() or value.is_graph_output()):
                    graph.initializers.pop(str(value.name))


def _round_constant(
    graph: ir.Graph, value: ir.Value, prefix: str, when: ir.Value | None, rounding: Rounding
) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Round a constant once: rounding all weights in every run would take most of the time.

    A constant shared by several products is stored once.
    """
    name = f"{value.name}::tf32"
    if name not in graph.initializers:
        add_constant(graph, name, _rounded(constant_array(value), rounding))
    rounded = graph.initializers[name]
    if when is None:
        return (), rounded
    chosen = new_node("Where", [when, rounded, value], f"{prefix}::where")
    return (chosen,), chosen.outputs[0]


def _rounded(array: NDArray[Any], rounding: Rounding) -> NDArray[np.float32]:
    """Round as the nodes of `round_tf32` do."""

    def nearest(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
        scaled = numbers * np.float32(_SPLITTER)
        return scaled - (scaled - numbers)

    with np.errstate(all="ignore"):
        high = nearest(array)
        if rounding == "zero":
            before = nearest(high * np.float32(_STEP_DOWN))
            high = np.where(np.abs(high) > np.abs(array), before, high)
        return np.where(np.abs(array) < np.float32(_LARGEST_SPLIT), high, array)


def _is_product(node: ir.Node) -> bool:
    return is_standard(node, *TF32_OPS) and is_float(_given(node))


def _given(node: ir.Node) -> ir.Value:
    """Return the first factor of a product."""
    (first, *_) = node.inputs
    assert first is not None
    return first


def round_tf32(
    value: ir.Value, prefix: str, when: ir.Value | None = None, rounding: Rounding = "nearest"
) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Return nodes that round an FP32 value to TF32, and their result.

    Veltkamp's splitting (Dekker 1971): with c = x · (2¹³ + 1), c − (c − x) is x rounded to 24 − 13
    bits, to nearest; ties may go either way. For "zero", a result rounded away from zero is
    replaced by its neighbour toward zero. NaN, infinities and magnitudes from 2¹⁰⁰ on are not
    rounded. TF32 has the range of FP32; its coarser subnormals are not emulated. If `when` (bool[])
    is given and false, nothing is rounded.
    """
    steps, boolean = Steps(prefix), ir.DataType.BOOL
    splitter, largest = steps.scalar(_SPLITTER), steps.scalar(_LARGEST_SPLIT)

    def nearest(number: ir.Value) -> ir.Value:
        scaled = steps.op("Mul", [number, splitter])
        return steps.op("Sub", [scaled, steps.op("Sub", [scaled, number])])

    high, magnitude = nearest(value), steps.op("Abs", [value])
    if rounding == "zero":
        before = nearest(steps.op("Mul", [high, steps.scalar(_STEP_DOWN)]))
        away = steps.op("Greater", [steps.op("Abs", [high]), magnitude], dtype=boolean)
        high = steps.op("Where", [away, before, high])
    # False for NaN.
    splits = steps.op("Less", [magnitude, largest], dtype=boolean)
    if when is not None:
        splits = steps.op("And", [splits, when], dtype=boolean)
    rounded = steps.op("Where", [splits, high, value])
    return tuple(steps.nodes), rounded
