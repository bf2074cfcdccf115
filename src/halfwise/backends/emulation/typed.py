"""Typed emulation: any model with low-precision tensors as an FP32 model that rounds.

Knows nothing of plans. It reads the types in the graph, so it judges the rewriter's output, a peer's
mixed model and a plain FP16 export alike.
"""

import numpy as np
import onnx_ir as ir

from halfwise.backends.emulation.accumulate import sums_in_low
from halfwise.backends.emulation.rounding import round_value
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.model import opset_of
from halfwise.graph.roles import DATA_MOVEMENT

_FORMATS: dict[ir.DataType | None, Format] = {
    ir.DataType.FLOAT16: FP16,
    ir.DataType.BFLOAT16: BF16,
}
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type")


def emulate_typed(model: ir.Model, *, accumulate: str = "fp32") -> ir.Model:
    """Return an FP32 model that computes what `model` would with its low tensors rounded.

    Args:
        model: Any model in normal form; not changed. FP16 and BF16 tensors are emulated, in
            subgraphs too.
        accumulate: "fp32" for arithmetic in FP32 inside ops, "fp16" for sums of FP16 nodes in
            FP16 (see `accumulate.py`).

    Returns:
        A model with the same input and output names; low inputs and outputs are FP32 there, and
        hold rounded values.
    """
    result = model.clone()
    _widen_graph(result.graph, accumulate, opset_of(model), top=True)
    return result


def _widen_graph(graph: ir.Graph, accumulate: str, opset: int, *, top: bool) -> None:
    formats = {
        value: _FORMATS[value.dtype]
        for value in _own_values(graph)
        if isinstance(value.type, ir.TensorType) and value.dtype in _FORMATS
    }
    for value in graph.initializers.values():
        if value in formats and value.const_value is not None:
            array = np.asarray(value.const_value.numpy()).astype(np.float32)
            value.const_value = ir.tensor(array, name=value.name)
    for value in formats:
        value.dtype = ir.DataType.FLOAT
    nodes = list(graph)
    if top:
        for value in graph.inputs:
            if value in formats:
                _round_input(graph, value, formats[value])
    for node in nodes:
        _widen_attributes(node, accumulate, opset)
        if not any(v in formats for v in node.outputs):
            continue
        if accumulate == "fp16":
            node = _with_low_sums(graph, node, formats, opset)
        if not _is_exact(node, formats):
            for value in node.outputs:
                if value in formats:
                    _round_output(graph, node, value, formats[value])


def _own_values(graph: ir.Graph) -> list[ir.Value]:
    values = [*graph.inputs, *graph.initializers.values()]
    return values + [v for node in graph for v in node.outputs]


def _is_exact(node: ir.Node, formats: dict[ir.Value, Format]) -> bool:
    """Return whether the outputs are copies of values that are already rounded."""
    if node.op_type not in DATA_MOVEMENT or "reduction" in node.attributes:
        return False
    floats = [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
    return bool(floats) and all(v in formats for v in floats)


def _widen_attributes(node: ir.Node, accumulate: str, opset: int) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.GRAPH:
            _widen_graph(attribute.as_graph(), accumulate, opset, top=False)
        elif attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype in _FORMATS:
                wide = ir.tensor(np.asarray(tensor.numpy()).astype(np.float32))
                node.attributes[name] = ir.AttrTensor(name, wide)
        elif attribute.type == ir.AttributeType.INT and name in _TYPE_ATTRIBUTES:
            if attribute.as_int() in (int(ir.DataType.FLOAT16), int(ir.DataType.BFLOAT16)):
                node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _round_input(graph: ir.Graph, value: ir.Value, fmt: Format) -> None:
    uses = value.uses()
    rounded = round_value(value, fmt, f"{value.name}::in")
    for node in reversed(rounded.nodes):
        graph.insert_before(graph[0], node)
    for node, index in uses:
        node.replace_input_with(index, rounded.wide)


def _round_output(graph: ir.Graph, node: ir.Node, value: ir.Value, fmt: Format) -> None:
    name, uses = value.name, value.uses()
    value.name = f"{name}::raw"
    rounded = round_value(value, fmt, f"{name}::out")
    rounded.wide.name, rounded.wide.shape = name, value.shape
    graph.insert_after(node, rounded.nodes)
    for user, index in uses:
        user.replace_input_with(index, rounded.wide)
    for i, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[i] = rounded.wide


def _with_low_sums(
    graph: ir.Graph, node: ir.Node, formats: dict[ir.Value, Format], opset: int
) -> ir.Node:
    """Replace a low node by its expansion with low sums, where there is one; return the last node."""
    output = node.outputs[0]
    floats = [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
    if output not in formats or any(v not in formats for v in floats):
        return node
    expansion = sums_in_low(node, node.inputs, formats[output], f"{node.name}::sum", opset)
    if expansion is None:
        return node
    graph.insert_after(node, expansion.nodes)
    expansion.output.name, expansion.output.shape = output.name, output.shape
    output.replace_all_uses_with(expansion.output, replace_graph_outputs=True)
    formats[expansion.output] = formats.pop(output)
    graph.remove(node, safe=True)
    last = expansion.output.producer()
    assert last is not None
    return last
