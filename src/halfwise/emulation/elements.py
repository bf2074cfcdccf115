"""Elements of the Boolean input by which an emulation is told what each node is to do."""

import numpy as np
import onnx_ir as ir

from halfwise.emulation.rounding import typed_value
from halfwise.graph.model import add_constant

_GROUP = 128


class Elements:
    """Hands out the elements of a new graph input, bool[count], one after the other.

    Each is taken out of a group, not out of the input: what reads inputs alone could run at once,
    and ONNX Runtime loads a model with many such nodes in n² steps (see `small_constant`).
    """

    def __init__(self, graph: ir.Graph, name: str, count: int) -> None:
        """Make the input, which is not among those of `graph` before it is put there."""
        self.input = typed_value(name, ir.DataType.BOOL, ir.Shape([count]))
        self._graph, self._count, self._taken = graph, count, 0
        self._group = self.input

    def take(self, name: str) -> list[ir.Node]:
        """Return nodes to be put before the reader; the last gives the next element, bool[]."""
        start, place = self._taken, self._taken % _GROUP
        nodes = []
        if place == 0:
            group = np.arange(start, min(start + _GROUP, self._count))
            nodes = [self._gather(self.input, group, f"{self.input.name}::{start}")]
            self._group = nodes[0].outputs[0]
        self._taken += 1
        return [*nodes, self._gather(self._group, np.array(place), name)]

    def _gather(self, source: ir.Value, indices: np.ndarray, name: str) -> ir.Node:
        at = add_constant(self._graph, f"{name}::index", indices)
        output = typed_value(name, ir.DataType.BOOL)
        return ir.node("Gather", [source, at], {"axis": 0}, name=name, outputs=[output])
