"""QOperator nodes, which compute with integers, written as floats between Q/DQ pairs.

`onnxruntime.quantization` writes such files (QuantFormat.QOperator). Between pairs, everything that
reads a quantised model reads them too. A result may differ by a step where a sum lies half way
between two.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.graph.dataflow import drop_unused_nodes
from halfwise.graph.model import Names, Network, add_constant, constant_array
from halfwise.records import replace

Parameters = tuple[ir.Value | None, ir.Value | None]
"""Scale and zero point of a tensor of integers."""
_FORMS: Mapping[str, tuple[str, tuple[int, ...], int]] = {
    "QGemm": ("Gemm", (0, 3), 7),
    "QLinearAdd": ("Add", (0, 3), 6),
    "QLinearAveragePool": ("AveragePool", (0,), 3),
    "QLinearConcat": ("Concat", (), 0),
    "QLinearConv": ("Conv", (0, 3), 6),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3),
    "QLinearMatMul": ("MatMul", (0, 3), 6),
    "QLinearMul": ("Mul", (0, 3), 6),
    "QLinearSigmoid": ("Sigmoid", (0,), 3),
    "QLinearSoftmax": ("Softmax", (0,), 3),
}
"""By operator: that of floats; the slots of its operands, each before scale and zero point (of a
QLinearConcat every third from 2 on); and the slot of the result's scale."""
_BIASES: Mapping[str, int] = {"QGemm": 6, "QLinearConv": 8}
_FIRST_OPSET = 13
"""The first opset whose Q and DQ have an axis, and whose Softmax has today's meaning."""
_OWN = frozenset(("channels_last", "opset"))
"""Attributes that the operators of floats lack."""
_MOVERS = frozenset(
    (
        *("DepthToSpace", "Expand", "Flatten", "Gather", "MaxPool", "Reshape", "Resize", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators that do the same to integers of one scale as to floats."""


def as_pairs(network: Network) -> Network:
    """Return the model with its QOperator nodes as nodes of floats between Q/DQ pairs.

    What moves integers between them moves floats. The network itself if it has no such nodes, or an
    opset below 13; nodes with a layout of their own (`channels_last`) or a computed scale stay.
    """
    if network.opset < _FIRST_OPSET or not any(n.op_type in _FORMS for n in network.nodes()):
        return network
    copy = replace(network, model=network.copy())
    writer = _Writer(copy.graph, Names(copy.graphs()))
    for node in list(copy.graph):
        scale = _at(node, 1)
        if node.op_type == "QuantizeLinear" and scale is not None and scale.const_value is not None:
            writer.known[node.outputs[0]] = scale, _at(node, 2)
        elif node.op_type in _FORMS:
            writer.rewrite(node)
        elif node.op_type in _MOVERS and node.inputs[0] in writer.known:
            writer.move(node)
    drop_unused_nodes(copy.graph)
    return copy


class _Writer(Struct):
    """Writes nodes of floats in the place of those of integers.

    Attributes:
        graph: The graph, changed in place.
        names: The names in it.
        known: Scale and zero point of each tensor of integers.
    """

    graph: ir.Graph
    names: Names
    known: dict[ir.Value | None, Parameters] = {}
    _floats: dict[tuple[ir.Value | None, ...], ir.Value] = {}

    def rewrite(self, node: ir.Node) -> None:
        """Replace a QOperator node, unless it stays."""
        op, slots, result = _FORMS[node.op_type]
        slots = slots or tuple(range(2, len(node.inputs), 3))
        scales = [v for i in slots if (v := node.inputs[i + 1]) is not None]
        bias = _at(node, _BIASES.get(node.op_type, len(node.inputs)))
        computed = any(v.const_value is None for v in (*scales, *([bias] if bias else [])))
        if node.attributes.get_int("channels_last", 0) or computed:
            return
        read = [self._float(node, node.inputs[i], *node.inputs[i + 1 : i + 3]) for i in slots]
        if bias is not None:
            steps = prod(map(constant_array, scales), start=constant_array(bias))
            array = np.asarray(steps, np.float32) * np.float32(
                node.attributes.get_float("alpha", 1.0)
            )
            read.append(add_constant(self.graph, self.names.take(f"{bias.name}::float"), array))
        kept = [a for name, a in node.attributes.items() if name not in _OWN]
        self._replace(node, op, read, kept, (_at(node, result), _at(node, result + 1)))

    def move(self, node: ir.Node) -> None:
        """Let a node that moves quantised integers move floats."""
        parameters = self.known[node.inputs[0]]
        read = [self._float(node, node.inputs[0], *parameters), *node.inputs[1:]]
        self._replace(node, node.op_type, read, node.attributes.values(), parameters)

    def _float(
        self, node: ir.Node, value: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None
    ) -> ir.Value:
        """Return the floats of a node's operand."""
        assert value is not None
        key = value, scale, zero
        if key not in self._floats:
            name, axis = self.names.take(f"{value.name}::dequantised"), None
            if (
                scale is not None
                and scale.shape is not None
                and scale.shape.numpy() not in ((), (1,))
            ):
                last = len(value.shape or ()) - 1
                turned = node.attributes.get_int("transB", 0)
                axis = {"axis": 0 if turned or node.op_type == "QLinearConv" else last}
            output = ir.val(name, ir.DataType.FLOAT, value.shape)
            given = [value, scale, *([] if zero is None else [zero])]
            made = ir.node("DequantizeLinear", given, axis, outputs=[output], name=name)
            self.graph.insert_before(node, made)
            self._floats[key] = output
        return self._floats[key]

    def _replace(
        self,
        node: ir.Node,
        op: str,
        read: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        parameters: Parameters,
    ) -> None:
        """Put a node of floats in the place of one whose results have these parameters."""
        outputs = [self._output(v, "_quantized", ir.DataType.FLOAT) for v in node.outputs]
        name = self.names.take(str(node.name).removesuffix("_quant"))
        nodes = [ir.Node("", op, read, attributes, outputs=outputs, name=name)]
        if parameters[0] is not None:
            given = [v for v in parameters if v is not None]
            dtype = ir.DataType.UINT8 if parameters[1] is None else parameters[1].dtype
            for value, old in zip(list(outputs), node.outputs, strict=True):
                codes, name = self._output(old, "", dtype), self.names.take(f"{old.name}::q")
                nodes.append(ir.node("QuantizeLinear", [value, *given], outputs=[codes], name=name))
                self.known[codes] = parameters
            outputs = [made.outputs[0] for made in nodes[1:]]
        ir.convenience.replace_nodes_and_values(
            self.graph, node, [node], nodes, node.outputs, outputs
        )

    def _output(self, old: ir.Value, suffix: str, dtype: ir.DataType | None) -> ir.Value:
        name = self.names.take(str(old.name).removesuffix(suffix))
        return ir.val(name, dtype, old.shape)


def _at(node: ir.Node, slot: int) -> ir.Value | None:
    return node.inputs[slot] if slot < len(node.inputs) else None
