"""The INT8 form of a node: it reads its inputs through QuantizeLinear and DequantizeLinear.

It computes in FP32, as the written file does: FP32 represents sums of up to 1,000 products of two
INT8 numbers exactly.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field

import onnx_ir as ir

from halfwise.emulation.rounding import instance
from halfwise.graph.model import node_name
from halfwise.records import NodeName

Slots = Mapping[int, ir.Value]
"""What a node reads in the quantised network, by input slot; slots without a pair are left out."""


@dataclass
class Readings:
    """Makes kept nodes read through pairs.

    Attributes:
        graph: The main graph of the switched model, to which scales, zero points and integers are
            added.
        slots: The slots of each node that may be INT8.
    """

    graph: ir.Graph
    slots: Mapping[NodeName, Slots]
    _constants: dict[str, ir.Value] = field(default_factory=dict)

    def read(self, node: ir.Node, inputs: list[ir.Value | None], path: str) -> list[ir.Node]:
        """Replace a node's `inputs` by their INT8 form in place; return the nodes that this adds.

        Each reader gets pairs of its own: a builder also folds pairs into their readers.
        """
        made = list[ir.Node]()
        for slot, value in self.slots.get(node_name(node), {}).items():
            inputs[slot] = self._through(value, inputs[slot], f"{path}::{node.name}{slot}", made)
        return made

    def _through(
        self, value: ir.Value, raw: ir.Value | None, suffix: str, made: list[ir.Node]
    ) -> ir.Value:
        """Append copies of the nodes that compute `value` from `raw` or from constants."""
        steps, result = chain(value), raw
        source = steps[0].inputs[0]
        if source is not None and source.const_value is not None:
            result = self._constant(source)
        else:
            # With one scale, data may be moved before or after the pair.
            steps = steps[:2]
        for step in steps:
            others = [v if v is None else self._constant(v) for v in step.inputs[1:]]
            made.append(instance(step, [result, *others], suffix))
            result = made[-1].outputs[0]
        assert result is not None
        return result

    def _constant(self, value: ir.Value | None) -> ir.Value:
        assert value is not None
        assert value.const_value is not None
        name = value.name or ""
        if name not in self._constants:
            own = ir.val(f"halfwise::{name}", type=value.type, shape=value.shape)
            own.const_value = copy(value.const_value)  # the other network keeps the original
            own.const_value.name = own.name
            self.graph.register_initializer(own)
            self._constants[name] = own
        return self._constants[name]


def chain(value: ir.Value) -> list[ir.Node]:
    """Return the nodes from a pair to `value`, in order.

    The first is the pair's QuantizeLinear, or its DequantizeLinear if integers are stored.
    """
    found = list[ir.Node]()
    source: ir.Value | None = value
    while source is not None and (node := source.producer()) is not None:
        found.insert(0, node)
        if node.op_type == "QuantizeLinear":  # in ONNX Runtime's own domain or the standard one
            break
        source = node.inputs[0]
    return found
