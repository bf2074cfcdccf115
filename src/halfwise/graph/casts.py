"""Rewrite a network into a strongly typed mixed-precision model; nothing else rewrites precision.

A low node's float slots get the low type; every other node stays FP32 or gets BF16. If a consumer
needs another type than the producer outputs, a Cast is inserted: one per value and type. The same
holds in the bodies of If, Loop and Scan, which take and give FP32; what they read from outside is
cast outside. An FP32
product that a builder would compute in the low format gets an anchor (`anchors.py`). Mathematics,
names and order of nodes do not change; with every node in FP32, the result is the original.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.formats import BF16, LOW_FORMATS, Format
from halfwise.graph.anchors import anchor, is_anchor
from halfwise.graph.model import (
    Names,
    Network,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    tensor_name,
    values_of,
)
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.graph.weights import FLOATS, LOW_TYPES, LowWeights, pieces, span
from halfwise.records import AdjustedConstant, NodeName, TensorName


class Rewritten(Struct, frozen=True):
    """A mixed-precision model.

    Attributes:
        model: The model; shares unchanged tensors with the network.
        casts: Number of Cast nodes inserted.
        fp32: Names of the nodes that stay in FP32.
    """

    model: ir.Model
    casts: int
    fp32: frozenset[NodeName]


def low_type(fmt: Format) -> ir.DataType:
    """Return the ONNX element type of a low format."""
    return ir.DataType.from_numpy(fmt.dtype)


FORMATS: Mapping[ir.DataType | None, Format] = {low_type(f): f for f in LOW_FORMATS.values()}
"""The low formats by their element types."""


def rewrite(
    network: Network,
    roles: Roles,
    fp32: frozenset[NodeName],
    fmt: Format,
    *,
    low_io: frozenset[TensorName] = frozenset(),
    weights: LowWeights | None = None,
    bf16: frozenset[NodeName] = frozenset(),
) -> Rewritten:
    """Return `network` with every free node outside `fp32` in the low format.

    Args:
        network: FP32 model in normal form; not changed.
        roles: Roles of its nodes for this format.
        fp32: Names of the free nodes that stay in FP32 (compute and moving nodes alike).
        fmt: The low format.
        low_io: Float graph inputs and outputs that get the low type; the others stay FP32.
        weights: The network's weights in the low format, if already converted.
        bf16: Nodes outside `fp32` that get BF16 instead of the low format. They have no bodies, and
            take BF16 in the same slots.
    """
    model = network.copy()
    weights = weights or LowWeights(network.model, fmt)
    made = {low_type(fmt): weights}
    if bf16:
        made |= {ir.DataType.BFLOAT16: LowWeights(network.model, BF16)}
    casts = _Rewriter(graphs_of(model), roles, fp32, made, low_type(fmt), low_io, bf16).run()
    return Rewritten(model, casts, fp32)


def converted(graph: ir.Graph) -> dict[TensorName, TensorName]:
    """Return the original name of each tensor that a Cast converts from FP32, FP16 or BF16.

    If a graph output is among the conversions, that is the output's name; otherwise, it is the name
    of the first tensor converted. Tensors that no such Cast reads or outputs are left out.

    Args:
        graph: Main graph of a mixed model, whether from `rewrite` or from elsewhere.
    """
    sources: dict[ir.Value, ir.Value] = {}
    names: dict[ir.Value, TensorName] = {}
    for node in graph.all_nodes():
        source = node.inputs[0] if is_standard(node, "Cast") or is_anchor(node) else None
        made = node.outputs[0] if node.outputs else None
        if source is None or made is None or not {source.dtype, made.dtype} <= FLOATS:
            continue
        first = sources[made] = sources.get(source, source)
        given_out = first.is_graph_output() or names.get(first, first.name) != first.name
        names.setdefault(first, tensor_name(first))
        if made.is_graph_output() and not given_out:
            names[first] = tensor_name(made)
    return {tensor_name(v): names[sources.get(v, v)] for v in (*names, *sources)}


def is_low_custom(node: ir.Node) -> bool:
    """Return whether `node` is of a custom domain and reads or outputs FP16 or BF16."""
    values = (*node.inputs, *node.outputs)
    return not is_standard(node) and any(v and v.dtype in LOW_TYPES for v in values)


def reads_low_weights(model: ir.Model) -> bool:
    """Return whether nodes other than Casts read weights in low formats, in bodies too.

    Where ONNX Runtime lacks a kernel, it widens each such weight with a Cast placed after all
    nodes.
    """
    weights = (v for graph in graphs_of(model) for v in graph.initializers.values())
    low = (v for v in weights if v.dtype in LOW_TYPES)
    return any(not is_standard(use.node, "Cast") for v in low for use in v.uses())


def fill_of(node: ir.Node) -> ir.TensorProtocol:
    """Return the one-element tensor that a ConstantOfShape node fills its output with."""
    value = node.attributes.get("value")
    return value.as_tensor() if value is not None else ir.Tensor(np.zeros(1, np.float32))


def adjusted_constants(
    network: Network,
    roles: Roles,
    fp32: frozenset[NodeName],
    fmt: Format,
    low_io: frozenset[TensorName] = frozenset(),
) -> tuple[AdjustedConstant, ...]:
    """Return the constants of low nodes or `low_io` that change by more than rounding.

    They hold finite values beyond the range, or a single value that would underflow to zero.
    Arguments are as for `rewrite`.
    """
    adjusted: list[AdjustedConstant] = []
    for value in (v for g in network.graphs() for v in g.initializers.values()):
        readers = _low_readers(value, roles, fp32)
        if readers or (value.is_graph_output() and value.name in low_io):
            adjusted += _adjusted(tensor_name(value), constant_array(value), fmt, readers)
    for node in (n for g in network.graphs() for n in g if is_standard(n, "ConstantOfShape")):
        if roles.is_low(node, fp32):
            fill = np.asarray(fill_of(node).numpy())
            adjusted += _adjusted(tensor_name(node.outputs[0]), fill, fmt, (node_name(node),))
    return tuple(adjusted)


def _low_readers(value: ir.Value, roles: Roles, fp32: frozenset[NodeName]) -> tuple[NodeName, ...]:
    if not is_float(value):
        return ()
    readers = (u.node for u in value.uses() if roles.reads_low(u.node, u.idx, fp32))
    return tuple(dict.fromkeys(map(node_name, readers)))


def adjusted_elements(array: NDArray[Any], fmt: Format) -> int:
    """Return how many elements change by more than rounding: finite ones beyond a format's range.

    NaN and infinities do not count. The result is 1 for a constant with a single value that would
    underflow to zero, and 0 for an empty array.
    """
    low, high = span(array)
    if not max(-low, high) > fmt.max:
        return int(fmt.vanishes(array))
    # FP64 stays: 1e300 would be infinite in FP32.
    kind = np.float64 if array.dtype == np.float64 else np.float32
    sizes = (np.abs(piece.astype(kind, copy=False)) for piece in pieces(array))
    return sum(int(np.count_nonzero((s > fmt.max) & np.isfinite(s))) for s in sizes)


def _adjusted(
    name: TensorName, array: np.ndarray, fmt: Format, readers: Iterable[NodeName]
) -> list[AdjustedConstant]:
    adjusted = adjusted_elements(array, fmt)
    if not adjusted:
        return []
    finite = array[np.isfinite(array)]
    return [
        AdjustedConstant(
            name=name,
            minimum=float(finite.min()),
            maximum=float(finite.max()),
            elements=adjusted,
            consumers=tuple(readers),
        )
    ]


def replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Make `new` an output of `graph` wherever `old` is one."""
    for i, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[i] = new


class _Rewriter:
    def __init__(
        self,
        graphs: Collection[ir.Graph],
        roles: Roles,
        fp32: frozenset[NodeName],
        weights: Mapping[ir.DataType, LowWeights],
        low: ir.DataType,
        low_io: frozenset[TensorName],
        bf16: frozenset[NodeName] = frozenset(),
    ) -> None:
        self.graphs, self.roles = graphs, roles
        self.fp32, self.bf16 = fp32, bf16
        self.weights, self.low = weights, low
        self.low_io = low_io
        self.casts = 0
        self.names = Names(graphs)

    def run(self) -> int:
        """Retype inputs and nodes, then what they read; anchor; return the number of Casts."""
        values = [(v, graph) for graph in self.graphs for v in values_of(graph) if is_float(v)]
        for graph in self.graphs:
            for value in graph.inputs:
                if value.name in self.low_io:
                    value.type = ir.TensorType(self.low)
            for node in graph:
                if self.roles.is_low(node, self.fp32):
                    self._lower(node)
        for value, graph in values:
            self._give_types(value, graph)
        anchor(self.graphs, self.names)
        return self.casts

    def _type_of(self, node: ir.Node) -> ir.DataType:
        return ir.DataType.BFLOAT16 if node.name in self.bf16 else self.low

    def _lower(self, node: ir.Node) -> None:
        low, given = self._type_of(node), self.roles.of(node).outputs
        for value, is_low in zip(node.outputs, given, strict=True):
            if is_low:
                value.type = ir.TensorType(low)
        if not any(given):
            return
        if is_standard(node, "Cast"):
            node.attributes["to"] = ir.AttrInt64("to", int(low))
        elif is_standard(node, "ConstantOfShape"):
            fill = fill_of(node)
            node.attributes["value"] = ir.AttrTensor("value", self.weights[low].low(fill, None))

    def _give_types(self, value: ir.Value, graph: ir.Graph) -> None:
        """Let every reader and output have a value in its type: by a Cast, or another constant."""
        name, wanted, end = value.name, self._wanted(value), None
        assert name is not None
        if value.is_graph_output():
            end = self.low if name in self.low_io else ir.DataType.FLOAT
            wanted.setdefault(end, [])
        is_constant = value.const_value is not None
        if is_constant and len(wanted) == 1 and ir.DataType.FLOAT not in wanted:
            (low,) = wanted
            self._store(value, value, low)
            return
        for other in [t for t in wanted if t != value.dtype]:
            made = ir.val(name, other, value.shape)
            if other == end:
                value.name = self.names.take(f"{name}_{_suffix(value.dtype)}")
                replace_output(graph, value, made)
            else:
                made.name = self.names.take(f"{name}_{_suffix(other)}")
            if is_constant:
                self._store(value, made, other)
                graph.register_initializer(made)
            else:
                called = f"{name}_cast" if other == end else f"{name}_to_{_suffix(other)}"
                self._cast(value, made, graph, called)
            for node, index in wanted[other]:
                node.replace_input_with(index, made)
        if is_constant and not value.uses() and not value.is_graph_output():
            del graph.initializers[tensor_name(value)]

    def _store(self, value: ir.Value, low: ir.Value, kind: ir.DataType) -> None:
        """Make `low` the constant `value` in a low type."""
        assert value.const_value is not None
        low.const_value = self.weights[kind].low(value.const_value, low.name)
        low.type = ir.TensorType(kind)

    def _cast(self, value: ir.Value, made: ir.Value, graph: ir.Graph, called: str) -> None:
        """Insert the Cast that makes `made` of `value`, behind what computes the latter."""
        attributes = {"to": int(made.dtype or 0)}
        name = self.names.take(called)
        cast = ir.node("Cast", [value], attributes, outputs=[made], name=name)
        producer = value.producer()
        if producer is not None:
            graph.insert_after(producer, cast)
        elif len(graph):
            graph.insert_before(graph[0], cast)
        else:
            graph.append(cast)
        self.casts += 1

    def _wanted(self, value: ir.Value) -> dict[ir.DataType, list[tuple[ir.Node, int]]]:
        """Return the uses of `value` by wanted type; uses that take any type are left out."""
        wanted: dict[ir.DataType, list[tuple[ir.Node, int]]] = {}
        for use in value.uses():
            if self.roles.of(use.node).role is not Role.BLIND:
                reads_low = self.roles.reads_low(use.node, use.idx, self.fp32)
                kind = self._type_of(use.node) if reads_low else ir.DataType.FLOAT
                wanted.setdefault(kind, []).append((use.node, use.idx))
        return wanted


def _suffix(kind: ir.DataType | None) -> str:
    return LOW_TYPES.get(kind or ir.DataType.FLOAT, "FP32").lower()
