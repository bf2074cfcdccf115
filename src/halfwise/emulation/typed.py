"""Typed emulation: turns any model with low-precision tensors into an FP32 model that rounds.

It reads the types in the graph and needs no plan, so it serves for the rewriter's output, another
tool's mixed model and a plain FP16 export alike.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.emulation.accumulate import MIN_OPSET, sums_in_low
from halfwise.emulation.rounding import Steps, cast, round_value
from halfwise.formats import FP16, Format
from halfwise.graph.anchors import round_folded
from halfwise.graph.casts import FORMATS, replace_output
from halfwise.graph.conversion import raise_opset, upcast_storage
from halfwise.graph.model import (
    Network,
    add_constant,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    opset_of,
    values_of,
)
from halfwise.graph.quantised import quantised_nodes
from halfwise.graph.roles import DATA_MOVEMENT, is_float
from halfwise.graph.weights import LARGE_TENSOR_BYTES, is_large
from halfwise.records import NodeName

TF32_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that TensorRT and cuDNN may compute in TF32; sums and bias stay FP32."""
TF32_PRECISION = 11
"""Significant bits, the implicit one included (NVIDIA's A100 white paper: 10 bits of mantissa)."""

TENSOR_CORE_OPS = (*TF32_OPS, "Einsum")
"""`TF32_OPS` and Einsum, which is not emulated here because it may have any number of factors."""

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


def emulate_tf32(network: Network) -> ir.Model:
    """Return a model that rounds both factors of every product to TF32, toward zero.

    TensorRT 8.6.0 on an H200 has kernels that round so and kernels that round to nearest, and each
    build may pick different ones. The error of these is three times as large.
    """
    model = network.copy()
    concerned = frozenset(tf32_nodes(network))
    products = [node for node in model.graph if node_name(node) in concerned]
    _round_products(model.graph, products)
    return model


def mark_tf32(graph: ir.Graph, *, allowed: bool) -> None:
    """Mark all FP32 products of a main graph as possibly TF32; without `allowed`, mark none.

    An engine has one switch for all of them. ONNX has no TF32 type, so the mark is in the node's
    metadata. Marks already in the user's model belong to another plan and are removed.
    """
    for node in graph:
        node.metadata_props.pop(TF32_MARK, None)
        if allowed and _is_product(node) and _first_factor(node).dtype == ir.DataType.FLOAT:
            node.metadata_props[TF32_MARK] = "1"


def round_marked(graph: ir.Graph) -> None:
    """Round the factors of a graph's marked products to TF32."""
    marked = [n for n in graph if TF32_MARK in n.metadata_props and _is_product(n)]
    _round_products(graph, marked)


def _round_products(graph: ir.Graph, products: Sequence[ir.Node]) -> None:
    for node in products:
        for slot, value in enumerate(node.inputs[:2]):
            if value is not None and is_float(value):
                if value.const_value is None:
                    nodes, rounded = round_tf32(value, f"{node.name}::tf32_{slot}")
                    graph.insert_before(node, nodes)
                else:
                    rounded = _round_constant(graph, value)
                node.replace_input_with(slot, rounded)
                if value.const_value is not None and not (value.uses() or value.is_graph_output()):
                    graph.initializers.pop(str(value.name))


def _round_constant(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Round a constant once: rounding all weights in every run would take most of the time.

    A constant shared by several products is stored once.
    """
    name = f"{value.name}::tf32"
    if name not in graph.initializers:
        add_constant(graph, name, _rounded(constant_array(value)))
    return graph.initializers[name]


def _rounded(array: NDArray[Any]) -> NDArray[Any]:
    """Round an array as the nodes of `round_tf32` do: toward zero, its last digits are dropped.

    Subnormal numbers lose as many, where those nodes keep more.
    """
    digits = np.uint32((1 << 32) - (1 << (24 - TF32_PRECISION)))
    rounded = (array.astype(np.float32).view(np.uint32) & digits).view(np.float32)
    return np.where(np.abs(array) < _LARGEST_SPLIT, rounded, array)


def _is_product(node: ir.Node) -> bool:
    return is_standard(node, *TF32_OPS) and is_float(_first_factor(node))


def _first_factor(node: ir.Node) -> ir.Value:
    """Return the first factor of a product."""
    (first, *_) = node.inputs
    assert first is not None
    return first


def round_tf32(value: ir.Value, prefix: str) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Return nodes that round an FP32 value to TF32, toward zero, and their result.

    Veltkamp's splitting (Dekker 1971): with c = x · (2¹³ + 1), c − (c − x) is x rounded to 24 − 13
    bits, to nearest; ties may go either way. A result rounded away from zero is then replaced by
    its neighbour toward zero. NaN, infinities and magnitudes from 2¹⁰⁰ on are not
    rounded. TF32 has the range of FP32; its coarser subnormals are not emulated.
    """
    steps, boolean = Steps(prefix), ir.DataType.BOOL
    splitter, largest = steps.scalar(_SPLITTER), steps.scalar(_LARGEST_SPLIT)

    def nearest(number: ir.Value) -> ir.Value:
        scaled = steps.op("Mul", [number, splitter])
        return steps.op("Sub", [scaled, steps.op("Sub", [scaled, number])])

    high, magnitude = nearest(value), steps.op("Abs", [value])
    before = nearest(steps.op("Mul", [high, steps.scalar(_STEP_DOWN)]))
    away = steps.op("Greater", [steps.op("Abs", [high]), magnitude], dtype=boolean)
    high = steps.op("Where", [away, before, high])
    # False for NaN.
    splits = steps.op("Less", [magnitude, largest], dtype=boolean)
    rounded = steps.op("Where", [splits, high, value])
    return tuple(steps.nodes), rounded


def emulate_typed(model: ir.Model, *, accumulate: str = "fp32", late: bool = False) -> ir.Model:
    """Return an FP32 model that computes what `model` does, rounding its low tensors.

    For low sums it is raised to `MIN_OPSET` if its opset is lower.

    Products that a plan computes in TF32 round their factors (`tf32.mark_tf32`), and FP32 products
    that a builder computes in the low format their constants (`anchors.folded`).

    Args:
        model: Any model in normal form; not changed. FP16 and BF16 tensors are emulated, in
            subgraphs too.
        accumulate: "fp32" for FP32 arithmetic inside ops, "fp16" for FP16 nodes that sum in FP16,
            "each" for those that round each product and addition too (see `accumulate.py`); BF16
            nodes always sum in FP32, as tensor cores do.
        late: Whether low weights stay low and are widened one by one while the model runs; those
            of a large model always do.

    Returns:
        A model with the same input and output names; low inputs and outputs become FP32 and hold
        rounded values.

    Raises:
        CaseError: ONNX cannot raise the opset.
    """
    low_sums_from = None
    if accumulate != "fp32":
        if opset_of(model) < MIN_OPSET:
            model = raise_opset(Network(model, None, "", {}), MIN_OPSET).model
        low_sums_from = opset_of(model)
    result = model.clone()
    round_folded(result)
    values = [v for graph in graphs_of(result) for v in values_of(graph)]
    tensors = [v for v in values if isinstance(v.type, ir.TensorType)]
    formats = {v: FORMATS[v.dtype] for v in tensors if v.dtype in FORMATS}
    stored = [v for v in formats if _stays_low(v)] if late or is_large(model) else []
    nodes = list(result.graph.all_nodes())
    upcast_storage(result, but=stored)
    rounding = _Rounding(formats, low_sums_from, each=accumulate == "each")
    for value in stored:
        rounding.widen_late(value)
    for value in result.graph.inputs:
        rounding.round_input(value)
    for node in nodes:
        rounding.round_outputs(node)
    round_marked(result.graph)
    return result


def _stays_low(value: ir.Value) -> bool:
    weight = value.const_value
    return (
        weight is not None
        and weight.dtype in FORMATS
        and weight.nbytes > LARGE_TENSOR_BYTES
        and not value.is_graph_output()
    )


class _Rounding(Struct):
    """Rounds what was low in a widened model, in place, in bodies too.

    Attributes:
        formats: Format of each value that was low or has been rounded.
        low_sums_from: The opset if low nodes sum in the low format, else None.
        each: Whether low sums round each product.
    """

    formats: dict[ir.Value, Format]
    low_sums_from: int | None
    each: bool

    def widen_late(self, value: ir.Value) -> None:
        """Put a Cast after a weight stored low, for its readers in each graph.

        At the start of the graph: ONNX Runtime runs what is written first last, so it widens each
        weight just before its reader (see `probe.py`) and frees it afterwards.
        """
        readers: dict[ir.Graph, _Uses] = {}
        for node, slot in value.uses():
            readers.setdefault(_graph_of(node), []).append((node, slot))
        for graph, uses in readers.items():
            reader, slot = uses[0]
            widened = cast(value, ir.DataType.FLOAT, f"{reader.name}::weight{slot}")
            graph.insert_before(graph[0], widened)
            self._redirect(value, widened.outputs[0], uses)

    def round_input(self, value: ir.Value) -> None:
        """Round an input of the model, if it was low."""
        uses = [(u.node, u.idx) for u in value.uses()]
        if value not in self.formats or not uses:
            return
        rounded = round_value(value, self.formats[value], f"{value.name}::in")
        graph = value.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_before(graph[0], rounded.nodes)
        self._redirect(value, rounded.wide, uses)

    def round_outputs(self, node: ir.Node) -> None:
        """Round what a node outputs and was low."""
        if not any(v in self.formats for v in node.outputs):
            return
        node = self._with_low_sums(node)
        if self._copies_rounded(node):
            return
        graph = _graph_of(node)
        for value in [v for v in node.outputs if v in self.formats]:
            name, uses = value.name, [(u.node, u.idx) for u in value.uses()]
            value.name = f"{name}::raw"
            rounded = round_value(value, self.formats[value], f"{name}::out")
            rounded.wide.name = name
            graph.insert_after(node, rounded.nodes)
            self._redirect(value, rounded.wide, uses)
            replace_output(graph, value, rounded.wide)

    def _redirect(self, old: ir.Value, new: ir.Value, uses: "_Uses") -> None:
        new.shape = old.shape
        self.formats[new] = self.formats[old]
        for node, index in uses:
            node.replace_input_with(index, new)

    def _copies_rounded(self, node: ir.Node) -> bool:
        # Before opset 11, Pad has its constant in the attribute "value".
        if not is_standard(node, *DATA_MOVEMENT) or {"reduction", "value"} & set(node.attributes):
            return False
        sources = {self.formats.get(v) for v in self._float_inputs(node)}
        return len(sources) == 1 and sources == {
            self.formats.get(v) for v in node.outputs if v.name
        }

    def _with_low_sums(self, node: ir.Node) -> ir.Node:
        """Replace a low node by its expansion with low sums, if any; return the result's node."""
        output = node.outputs[0]
        wide = any(v not in self.formats for v in self._float_inputs(node))
        if self.low_sums_from is None or wide or self.formats.get(output) is not FP16:
            return node
        fmt, prefix = self.formats[output], f"{node.name}::sum"
        arguments = node, node.inputs, fmt, prefix, self.low_sums_from
        expansion = sums_in_low(*arguments, each=self.each)
        if expansion is None:
            return node
        graph = _graph_of(node)
        graph.insert_after(node, expansion.nodes)
        expansion.output.name, expansion.output.shape = output.name, output.shape
        output.replace_all_uses_with(expansion.output, replace_graph_outputs=True)
        self.formats[expansion.output] = self.formats.pop(output)
        graph.remove(node, safe=True)
        return next(n for n in expansion.nodes if expansion.output in n.outputs)

    def _float_inputs(self, node: ir.Node) -> list[ir.Value]:
        return [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]


_Uses = list[tuple[ir.Node, int]]


def _graph_of(node: ir.Node) -> ir.Graph:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph
