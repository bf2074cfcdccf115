"""Typed emulation: any model with low-precision tensors as an FP32 model that rounds.

Knows nothing of plans. It reads the types in the graph, so it judges the rewriter's output, a
peer's mixed model and a plain FP16 export alike.
"""

import onnx_ir as ir

from halfwise.backends.emulation.accumulate import sums_in_low
from halfwise.backends.emulation.rounding import round_value
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.model import opset_of
from halfwise.graph.roles import DATA_MOVEMENT
from halfwise.graph.widen import widen_storage

_FORMATS: dict[ir.DataType | None, Format] = {
    ir.DataType.FLOAT16: FP16,
    ir.DataType.BFLOAT16: BF16,
}


def emulate_typed(model: ir.Model, *, accumulate: str = "fp32") -> ir.Model:
    """Return an FP32 model that computes what `model` would with its low tensors rounded.

    Args:
        model: Any model in normal form; not changed. FP16 and BF16 tensors are emulated, in
            subgraphs too.
        accumulate: "fp32" for arithmetic in FP32 inside ops, "fp16" for sums of low nodes in
            their own format (see `accumulate.py`).

    Returns:
        A model with the same input and output names; low inputs and outputs are FP32 there, and
        hold rounded values.
    """
    result = model.clone()
    graphs = (result.graph, *result.graph.subgraphs())
    values = [v for g in graphs for v in (*g.inputs, *g.initializers.values())]
    values += [v for g in graphs for node in g for v in node.outputs]
    formats = {
        v: _FORMATS[v.dtype]
        for v in values
        if isinstance(v.type, ir.TensorType) and v.dtype in _FORMATS
    }
    widen_storage(result)
    low_sums_from = opset_of(model) if accumulate == "fp16" else None
    for graph in graphs:
        _Rounder(graph, formats, low_sums_from).run(top=graph is result.graph)
    return result


class _Rounder:
    """Rounds what one widened graph stored in a low format, in place.

    Attributes:
        graph: The graph.
        formats: Format of each value of the model that is low in the original, or was rounded here.
        low_sums_from: The opset where sums of low nodes are to be low, else None.
    """

    def __init__(
        self, graph: ir.Graph, formats: dict[ir.Value, Format], low_sums_from: int | None
    ) -> None:
        self.graph = graph
        self.formats = formats
        self.low_sums_from = low_sums_from

    def run(self, *, top: bool) -> None:
        """Round the inputs of the main graph, and what nodes give."""
        nodes = list(self.graph)
        if top:
            for value in self.graph.inputs:
                self._round_input(value)
        for node in nodes:
            if any(v in self.formats for v in node.outputs):
                self._round_outputs(self._with_low_sums(node))

    def _round_input(self, value: ir.Value) -> None:
        uses = value.uses()
        if value not in self.formats or not uses:
            return
        rounded = round_value(value, self.formats[value], f"{value.name}::in")
        for node in reversed(rounded.nodes):
            self.graph.insert_before(self.graph[0], node)
        self._redirect(value, rounded.wide, [(u.node, u.idx) for u in uses])

    def _round_outputs(self, node: ir.Node) -> None:
        if self._copies_rounded(node):
            return
        for value in [v for v in node.outputs if v in self.formats]:
            name, uses = value.name, [(u.node, u.idx) for u in value.uses()]
            value.name = f"{name}::raw"
            rounded = round_value(value, self.formats[value], f"{name}::out")
            rounded.wide.name = name
            self.graph.insert_after(node, rounded.nodes)
            self._redirect(value, rounded.wide, uses)
            for i, output in enumerate(self.graph.outputs):
                if output is value:
                    self.graph.outputs[i] = rounded.wide

    def _redirect(self, old: ir.Value, new: ir.Value, uses: list[tuple[ir.Node, int]]) -> None:
        new.shape = old.shape
        self.formats[new] = self.formats[old]
        for node, index in uses:
            node.replace_input_with(index, new)

    def _copies_rounded(self, node: ir.Node) -> bool:
        # Before opset 11, Pad has its constant in the attribute "value".
        if node.op_type not in DATA_MOVEMENT or {"reduction", "value"} & set(node.attributes):
            return False
        sources = {self.formats.get(v) for v in self._float_inputs(node)}
        return len(sources) == 1 and sources == {
            self.formats.get(v) for v in node.outputs if v.name
        }

    def _with_low_sums(self, node: ir.Node) -> ir.Node:
        """Replace a low node by its expansion with low sums, if it has one; return the last."""
        output = node.outputs[0]
        wide = any(v not in self.formats for v in self._float_inputs(node))
        if self.low_sums_from is None or wide or output not in self.formats:
            return node
        fmt, prefix = self.formats[output], f"{node.name}::sum"
        expansion = sums_in_low(node, node.inputs, fmt, prefix, self.low_sums_from)
        if expansion is None:
            return node
        self.graph.insert_after(node, expansion.nodes)
        expansion.output.name, expansion.output.shape = output.name, output.shape
        output.replace_all_uses_with(expansion.output, replace_graph_outputs=True)
        self.formats[expansion.output] = self.formats.pop(output)
        self.graph.remove(node, safe=True)
        return next(n for n in expansion.nodes if expansion.output in n.outputs)

    def _float_inputs(self, node: ir.Node) -> list[ir.Value]:
        return [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
