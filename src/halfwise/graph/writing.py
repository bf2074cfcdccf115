"""Make nodes and constants, named after what they replace."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.model import Names, add_constant, opset_of

_REDUCED_AXES_ARE_READ = 18
"""First operator set in which all reductions take their axes as an input (ReduceSum: 13)."""
_AXES_OF_SIZE_1_ARE_READ = 13
"""First operator set in which Squeeze and Unsqueeze take their axes as an input."""

Attribute = int | tuple[int, ...] | ir.Attr


class Writer:
    """Makes nodes for the main graph of a model; the caller inserts them.

    Attributes:
        graph: The main graph; constants go into it at once.
        opset: Version of the default operator set.
        stem: Prefix of the names.
        names: The names in use.
        made: The nodes so far, in order. Their outputs have no types until inference.
    """

    def __init__(self, model: ir.Model, stem: str, names: Names) -> None:
        """Take the model, the prefix of names, and the names in use."""
        self.graph, self.opset = model.graph, opset_of(model)
        self.stem, self.names = stem, names
        self.made: list[ir.Node] = []

    def op(self, op: str, *read: ir.Value, **attributes: Attribute) -> ir.Value:
        """Return the output of a new node."""
        return self.ops(op, read, 1, **attributes)[0]

    def ops(
        self, op: str, read: Sequence[ir.Value], count: int, **attributes: Attribute
    ) -> tuple[ir.Value, ...]:
        """Return the `count` outputs of a new node."""
        name = self.names.take(f"{self.stem}/{op}")
        node = ir.node(op, list(read), attributes=attributes, num_outputs=count, name=name)
        for value in node.outputs:
            value.name = self.names.take(f"{name}_output")
        self.made.append(node)
        return tuple(node.outputs)

    def constant(self, what: str, array: NDArray[Any]) -> ir.Value:
        """Return a new constant."""
        return add_constant(self.graph, self.names.take(f"{self.stem}/{what}"), array)

    def reduced(self, op: str, value: ir.Value, *axes: int, keep: bool = True) -> ir.Value:
        """Return a reduction other than ReduceSum over `axes`, kept with size 1 if `keep`."""
        return self._along(_REDUCED_AXES_ARE_READ, op, value, axes, keepdims=int(keep))

    def reshaped(self, op: str, value: ir.Value, *axes: int) -> ir.Value:
        """Return a Squeeze or Unsqueeze of `axes`."""
        return self._along(_AXES_OF_SIZE_1_ARE_READ, op, value, axes)

    def _along(
        self, first: int, op: str, value: ir.Value, axes: tuple[int, ...], **attributes: int
    ) -> ir.Value:
        """Return a node's output over `axes`, which are an input from opset `first` on."""
        if self.opset < first:
            return self.op(op, value, axes=axes, **attributes)
        return self.op(op, value, self.constant("axes", np.array(axes, np.int64)), **attributes)

    def like(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """Return the output of a copy of `node` with `value` as first input."""
        read = [v for v in node.inputs[1:] if v is not None]
        return self.op(node.op_type, value, *read, **node.attributes)
