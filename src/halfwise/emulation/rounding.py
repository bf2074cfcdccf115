"""Building blocks of emulations: roundings and switch inputs.

Every value between two low nodes is rounded, as if each were stored. A builder that fuses nodes
stores fewer values, so engines are often better than emulation says.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.formats import Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import REDUCED_AXES_ARE_READ, SUMMED_AXES_ARE_READ, add_constant


class Rounded(Struct, frozen=True):
    """Nodes that round one value, and their result.

    Attributes:
        nodes: In topological order.
        wide: The rounded value in FP32.
    """

    nodes: tuple[ir.Node, ...]
    wide: ir.Value


def new_node(
    op_type: str,
    inputs: Iterable[ir.Value | None],
    name: str,
    attributes: Mapping[str, Any] | None = None,
    dtype: ir.DataType = ir.DataType.FLOAT,
) -> ir.Node:
    """Return a node with one output, which has type `dtype` and the node's name."""
    outputs = [ir.val(name, dtype)]
    return ir.node(op_type, list(inputs), attributes, name=name, outputs=outputs)


def cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    """Return a Cast of `value` whose output is called `name`."""
    return new_node("Cast", [value], name, {"to": int(dtype)}, dtype)


def instance(node: ir.Node, inputs: Sequence[ir.Value | None], suffix: str) -> ir.Node:
    """Return a copy of `node` on other inputs, with `suffix` on its name and outputs' names."""
    outputs = [
        ir.val(f"{v.name}{suffix}" if v.name else "", type=v.type, shape=v.shape)
        for v in node.outputs
    ]
    return ir.Node(
        node.domain,
        node.op_type,
        inputs,
        node.attributes.values(),
        outputs=outputs,
        name=f"{node.name}{suffix}",
    )


class Steps:
    """Collects nodes in order; names consist of the prefix, the position and the type."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.nodes = prefix, list[ir.Node]()

    def next_name(self, what: str) -> str:
        """Return a name that no other step has."""
        return f"{self.prefix}::{len(self.nodes)}_{what}"

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Append a node and return its only output, of type `dtype`."""
        self.nodes.append(new_node(op_type, inputs, self.next_name(op_type), attributes, dtype))
        return self.nodes[-1].outputs[0]

    def scalar(self, value: float) -> ir.Value:
        """Return a constant f32[]."""
        return self.op("Constant", [], {"value": ir.Tensor(np.array(value, np.float32))})

    def integers(self, values: int | Sequence[int]) -> ir.Value:
        """Return a constant i64[] or i64[len(values)]."""
        array = ir.Tensor(np.array(values, np.int64))
        return self.op("Constant", [], {"value": array}, ir.DataType.INT64)

    def reduced(
        self,
        op_type: str,
        value: ir.Value,
        axes: Sequence[int],
        opset: int,
        dtype: ir.DataType = ir.DataType.FLOAT,
        *,
        keep: bool = True,
    ) -> ir.Value:
        """Return a reduction over `axes`, kept with size 1 if `keep`."""
        if opset < (SUMMED_AXES_ARE_READ if op_type == "ReduceSum" else REDUCED_AXES_ARE_READ):
            return self.op(op_type, [value], {"axes": axes, "keepdims": int(keep)}, dtype)
        return self.op(op_type, [value, self.integers(axes)], {"keepdims": int(keep)}, dtype)


def round_value(value: ir.Value, fmt: Format, prefix: str) -> Rounded:
    """Return the Cast pair FP32 → low → FP32 on `value`; new names start with `prefix`.

    Rounds to nearest even; overflows become ±inf and NaN stays NaN. ONNX Runtime's optimiser leaves
    such a pair alone; a test checks that.
    """
    down = cast(value, low_type(fmt), f"{prefix}::half")
    up = cast(down.outputs[0], ir.DataType.FLOAT, f"{prefix}::wide")
    return Rounded((down, up), up.outputs[0])


def limit_value(value: ir.Value, limit: float, prefix: str) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Return nodes that turn elements with |x| > `limit` into ±inf and keep the others.

    This emulates headroom: a tensor that would overflow at h times its observed range gets the
    range max / h. x + Relu(|x| - limit) · inf would give NaN at 0 · inf, so this is
    x / Cast(|x| ≤ limit): exact for kept elements, ±inf for others, and NaN stays NaN.
    """
    steps, boolean = Steps(prefix), ir.DataType.BOOL
    bound, magnitude = steps.scalar(limit), steps.op("Abs", [value])
    beyond = steps.op("Greater", [magnitude, bound], dtype=boolean)
    within = steps.op("Not", [beyond], dtype=boolean)
    factor = steps.op("Cast", [within], {"to": int(ir.DataType.FLOAT)})
    limited = steps.op("Div", [value, factor])
    return tuple(steps.nodes), limited


POINTWISE = frozenset(
    (
        *("Abs", "Add", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor"),
        *("Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul"),
        *("Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Sin"),
        *("Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Where"),
    )
)
"""Operators that compute each element from the input elements at the same position."""


_GROUP = 128
"""Switches that one Gather hands out; no result depends on it."""


class Elements:
    """Gives access to the elements of a new graph input, bool[count].

    Each element is gathered from a group, not from the input: nodes that read only inputs are all
    ready at the start, and ONNX Runtime takes n² steps to load a model with n of them (see
    `small_constant`).
    """

    def __init__(self, graph: ir.Graph, name: str, count: int) -> None:
        """Make the input; the caller adds it to `graph`."""
        self.input = ir.val(name, ir.DataType.BOOL, ir.Shape([count]))
        self._graph, self._count = graph, count
        self._groups: dict[int, ir.Value] = {}

    def at(self, place: int, name: str) -> list[ir.Node]:
        """Return nodes to insert before the reader; the last outputs element `place`, bool[].

        Within a group, the element requested first must also be the first in the graph.
        """
        nodes = self.groups(range(place, place + 1))
        group, at = self._groups[place // _GROUP], np.array(place % _GROUP)
        return [*nodes, self._gather(group, at, name)]

    def groups(self, places: range) -> list[ir.Node]:
        """Return nodes to insert before bodies that read elements `places`, for all of them."""
        nodes = []
        for index in range(places.start // _GROUP, -(-places.stop // _GROUP)):
            if index not in self._groups:
                start = index * _GROUP
                group = np.arange(start, min(start + _GROUP, self._count))
                nodes.append(self._gather(self.input, group, f"{self.input.name}::{start}"))
                self._groups[index] = nodes[-1].outputs[0]
        return nodes

    def _gather(self, source: ir.Value, indices: np.ndarray, name: str) -> ir.Node:
        at = add_constant(self._graph, f"{name}::index", indices)
        return new_node("Gather", [source, at], name, {"axis": 0}, ir.DataType.BOOL)
