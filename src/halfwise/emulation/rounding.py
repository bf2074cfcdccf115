"""Building blocks of emulations: roundings, fused values that are not rounded, and switch inputs.

Emulation rounds every value between two low nodes, as if each were stored. A builder that fuses
nodes stores fewer values. TensorRT 8.6.0 on an H200, with weak typing, followed two rules:

- A value between two pointwise nodes is not rounded if nothing else reads it.
- A factor, that is, a product with a constant scalar, is folded into the constant operand of the
  matrix product that is its only reader: its result is never stored.

Everything else is rounded as without fusion. That includes squares that a sum reads, although both
are in one kernel: with squares rounded, the emulation matches the errors of engines to three
digits; with squares in FP32, it misses them (`bench/gpu/fusion_fit.py` compares the rules). It also
includes the border to a kept node, where a builder converts to FP32.

A builder may also compute a whole block in FP32 because it measured that to be faster. No rule
predicts which block; `fp32_nodes` reads it off an engine.

The profile holds for one version, GPU and typing mode, and is fitted to a few models: it proposes
plans, and never decides a verdict. docs/tensorrt-measured.md gives its error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from halfwise.formats import Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network, add_constant, is_standard, node_name, tensor_name
from halfwise.graph.roles import is_float
from halfwise.records import EngineLayer, NodeName, TensorName


@dataclass(frozen=True)
class Rounded:
    """Nodes that round one value, and their result.

    Attributes:
        nodes: In topological order.
        half: The value in the low type.
        wide: The rounded value in FP32.
    """

    nodes: tuple[ir.Node, ...]
    half: ir.Value
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
        return self.op("Constant", [], {"value": ir.tensor(np.array(value, np.float32))})


def round_value(value: ir.Value, fmt: Format, prefix: str) -> Rounded:
    """Return the Cast pair FP32 → low → FP32 on `value`; new names start with `prefix`.

    Rounds to nearest even; overflows become ±inf and NaN stays NaN. ONNX Runtime's optimiser leaves
    such a pair alone; a test checks that.
    """
    down = cast(value, low_type(fmt), f"{prefix}::half")
    up = cast(down.outputs[0], ir.DataType.FLOAT, f"{prefix}::wide")
    return Rounded((down, up), down.outputs[0], up.outputs[0])


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
_PRODUCTS = ("Gemm", "MatMul")


def fused_tensors(network: Network) -> frozenset[TensorName]:
    """Return the values of the main graph that stay FP32 between low nodes."""
    return frozenset(tensor_name(v) for v in _float_values(network) if _is_fused(v))


def _float_values(network: Network) -> Iterator[ir.Value]:
    nodes = network.nodes()
    return (v for node in nodes for v in node.outputs if v.name and is_float(v))


def _is_fused(value: ir.Value) -> bool:
    producer, readers = value.producer(), {use.node for use in value.uses()}
    if producer is None or value.is_graph_output() or len(readers) != 1:
        return False
    reader = readers.pop()
    if not is_standard(producer, *POINTWISE) or reader.graph is not producer.graph:
        return False
    return is_standard(reader, *POINTWISE) or _is_folded(producer, reader)


def _is_folded(factor: ir.Node, product: ir.Node) -> bool:
    """Return whether `factor` scales by a constant scalar and `product` has a constant operand."""
    if not (is_standard(factor, "Mul", "Div") and is_standard(product, *_PRODUCTS)):
        return False
    scalars = [
        v is not None and v.const_value is not None and v.const_value.size == 1
        for v in factor.inputs
    ]
    if is_standard(factor, "Div"):
        scalars[0] = False
    weights = (v for v in product.inputs[:2] if v is not None)
    return any(scalars) and any(v.const_value is not None for v in weights)


def fp32_nodes(network: Network, layers: Iterable[EngineLayer]) -> frozenset[NodeName]:
    """Return the nodes that an engine computes in FP32, according to its inspector.

    These are the nodes of FP32 layers, and of fused blocks whose inputs and outputs are all FP32.
    The inspector names at least the last node of such a block; preceding nodes that no other layer
    names also belong to it.
    """
    layers = tuple(layers)
    owner = {name: layer for layer in layers for name in layer.nodes}
    sure = {name for name, layer in owner.items() if layer.precision == "fp32"}
    makers = {node_name(n): n for n in network.nodes()}
    for block in (layer for layer in layers if _is_fp32_block(layer)):
        open_nodes = [name for name in block.nodes if name in makers]
        while open_nodes:
            name = open_nodes.pop()
            if name in sure:
                continue
            sure.add(name)
            open_nodes += _unnamed_before(makers[name], owner)
    return frozenset(sure & makers.keys())


def _is_fp32_block(layer: EngineLayer) -> bool:
    borders = {*layer.inputs, *layer.outputs}
    return layer.precision == "unknown" and borders == {"fp32"}


def _unnamed_before(node: ir.Node, owner: Mapping[NodeName, EngineLayer]) -> list[NodeName]:
    producers = (v.producer() for v in node.inputs if v is not None)
    names = (node_name(p) for p in producers if p is not None)
    return [name for name in names if name not in owner]


_GROUP = 128
"""Switches that one Gather and one Split hand out; no result depends on it."""
_SPLIT_BY_INPUT = 13
"""The first opset whose Split takes sizes as an input."""


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

    def within(self, places: range, names: Sequence[str]) -> list[ir.Node]:
        """Return nodes for the branch of an If; the last outputs the elements, bool[1] each."""
        group = self._gather(self.input, np.array(places), f"{names[0]}::among")
        outputs = [ir.val(name, ir.DataType.BOOL) for name in names]
        inputs, attributes, sizes = [group.outputs[0]], [ir.AttrInt64("axis", 0)], [1] * len(names)
        if self._graph.opset_imports.get("", 0) < _SPLIT_BY_INPUT:
            attributes.append(ir.AttrInt64s("split", sizes))
        else:
            inputs.append(add_constant(self._graph, f"{names[0]}::sizes", np.array(sizes)))
        split = ir.Node("", "Split", inputs, attributes, outputs=outputs, name=f"{names[0]}::split")
        return [group, split]

    def _gather(self, source: ir.Value, indices: np.ndarray, name: str) -> ir.Node:
        at = add_constant(self._graph, f"{name}::index", indices)
        return new_node("Gather", [source, at], name, {"axis": 0}, ir.DataType.BOOL)
