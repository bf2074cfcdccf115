"""Rewrite a network into a strongly typed mixed-precision model. The only rewriter of precision.

A low node's float slots get the low type, every other node stays FP32, and a Cast stands on each
value whose consumers want another type than its producer gives: one per value and direction. In the
bodies of a low If, Loop or Scan the same holds, and a value read from outside is cast outside.
Mathematics, names and order of the nodes stay as they are; with every node in FP32 the result is
the original.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.formats import Format
from halfwise.graph.model import Network, constant_array, graphs_of, is_standard, tensor_name
from halfwise.graph.normal_form import Names
from halfwise.graph.roles import NodeRole, Role, Roles, is_float
from halfwise.graph.weights import FLOATS, LOW_TYPES, LowWeights, pieces
from halfwise.records import AdjustedConstant, NodeName, TensorName


@dataclass(frozen=True)
class Rewritten:
    """A mixed-precision model.

    Attributes:
        model: The model; shares unchanged tensors with the network.
        casts: Number of Cast nodes inserted.
    """

    model: ir.Model
    casts: int


def low_type(fmt: Format) -> ir.DataType:
    """Return the ONNX element type of a low format."""
    return ir.DataType.from_numpy(fmt.dtype)


def rewrite(
    network: Network,
    roles: Roles,
    fp32: frozenset[NodeName],
    fmt: Format,
    *,
    low_io: frozenset[TensorName] = frozenset(),
    weights: LowWeights | None = None,
) -> Rewritten:
    """Return `network` with every free node outside `fp32` in the low format.

    Args:
        network: FP32 model in normal form; not changed.
        roles: Roles of its nodes for this format.
        fp32: Names of the free nodes that stay in FP32 (compute and moving nodes alike).
        fmt: The low format.
        low_io: Float graph inputs and outputs that get the low type; the others stay FP32.
        weights: The network's weights in the low format, where they are made already.
    """
    model = network.copy()
    weights = weights or LowWeights(network.model, fmt)
    casts = _Rewriter(graphs_of(model), roles, fp32, weights, low_io).run()
    return Rewritten(model, casts)


def converted(graph: ir.Graph) -> dict[TensorName, TensorName]:
    """Return which tensor of the original those are that Casts convert from FP32, FP16 or BF16.

    Around an output that is converted it has the output's name, otherwise that of what is converted
    first. Tensors that no Cast makes or reads are left out.

    Args:
        graph: Main graph of a mixed model, `rewrite`'s or another's.
    """
    sources: dict[ir.Value, ir.Value] = {}
    names: dict[ir.Value, TensorName] = {}
    for node in graph:
        source = node.inputs[0] if is_standard(node, "Cast") else None
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
    """Return whether `node` is of a custom domain, and reads or gives FP16 or BF16."""
    values = (*node.inputs, *node.outputs)
    return not is_standard(node) and any(v and v.dtype in LOW_TYPES for v in values)


def reads_low_weights(model: ir.Model) -> bool:
    """Return whether more than Casts read weights of the low formats, in bodies too.

    Where it has no kernel for that, ONNX Runtime widens each with a Cast, written behind all nodes.
    """
    return any(
        value is not None and value.is_initializer() and value.dtype in LOW_TYPES
        for node in model.graph.all_nodes()
        if not is_standard(node, "Cast")
        for value in node.inputs
    )


def lower_bodies(graphs: Collection[ir.Graph], roles: Roles, weights: LowWeights) -> None:
    """Give the bodies of a low If, Loop or Scan, and those in them, the low format in place.

    What they read from outside stays as it is.
    """
    _Rewriter(graphs, roles, frozenset(), weights, frozenset()).run()


def fill_of(node: ir.Node) -> ir.TensorProtocol:
    """Return what a ConstantOfShape node fills its output with: a tensor of one element."""
    value = node.attributes.get("value")
    return value.as_tensor() if value is not None else ir.tensor(np.zeros(1, np.float32))


def adjusted_constants(
    network: Network,
    roles: Roles,
    fp32: frozenset[NodeName],
    fmt: Format,
    low_io: frozenset[TensorName] = frozenset(),
) -> tuple[AdjustedConstant, ...]:
    """Return the constants that are not merely rounded where low nodes or `low_io` have them.

    They have finite values beyond the range, or are a single value that would become zero.
    """
    found: list[AdjustedConstant] = []
    formals = roles.low_formals(fp32)
    for value in (v for g in network.graphs() for v in g.initializers.values()):
        readers = _low_readers(value, roles, fp32, formals)
        if readers or (value.is_graph_output() and value.name in low_io):
            found += _adjusted(tensor_name(value), constant_array(value), fmt, readers)
    for node in (n for g in network.graphs() for n in g if is_standard(n, "ConstantOfShape")):
        if (part := roles.part(node)).is_low(fp32):
            fill = np.asarray(fill_of(node).numpy())
            found += _adjusted(tensor_name(node.outputs[0]), fill, fmt, (part.decider,))
    return tuple(found)


def _low_readers(
    value: ir.Value,
    roles: Roles,
    fp32: frozenset[NodeName],
    formals: Mapping[TensorName, NodeName],
) -> tuple[NodeName, ...]:
    if not is_float(value):
        return ()
    uses = ((roles.part(u.node), u.idx) for u in value.uses())
    readers = [p.decider for p, slot in uses if p.reads_low(slot, fp32)]
    readers += [formals[n] for n in (tensor_name(value),) if n in formals]
    return tuple(dict.fromkeys(readers))


def adjusted_elements(array: NDArray[Any], fmt: Format) -> int:
    """Return how many elements are not merely rounded in a format: finite ones beyond its range.

    1 of a single value that would become zero.
    """
    sizes = (np.abs(piece.astype(np.float32, copy=False)) for piece in pieces(array))
    beyond = sum(int(np.count_nonzero((s > fmt.max) & np.isfinite(s))) for s in sizes)
    return beyond or int(fmt.vanishes(array))


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


def _cast_from(graph: ir.Graph) -> list[ir.Value]:
    """Return the float values of `graph` that may need a Cast: all but most constants."""
    constants = [v for v in graph.initializers.values() if v.is_graph_output()]
    computed = [v for n in graph for v in n.outputs]
    return [v for v in (*graph.inputs, *constants, *computed) if is_float(v)]


def replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let `graph` give out `new` wherever it gives out `old`."""
    for i, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[i] = new


class _Rewriter:
    def __init__(
        self,
        graphs: Collection[ir.Graph],
        roles: Roles,
        fp32: frozenset[NodeName],
        weights: LowWeights,
        low_io: frozenset[TensorName],
    ) -> None:
        self.graphs = graphs
        self.roles = roles
        self.fp32 = fp32
        self.fmt = weights.fmt
        self.low = low_type(weights.fmt)
        self.formals = roles.low_formals(fp32)
        self.low_ends = low_io.union(self.formals)
        self.weights = weights
        self.casts = 0
        self.names = Names(graphs)

    def run(self) -> int:
        """Retype constants, inputs, nodes and outputs; return the number of Casts inserted."""
        float_values = [v for graph in self.graphs for v in _cast_from(graph)]
        for graph in self.graphs:
            for value in list(graph.initializers.values()):
                self._retype_constant(value, graph)
            for value in graph.inputs:
                if value.name in self.low_ends:
                    value.type = ir.TensorType(self.low)
            for node in graph:
                part = self.roles.part(node)
                if part.is_low(self.fp32):
                    self._lower(node, part.role)
        for value in float_values:
            self._cast_where_needed(value)
        return self.casts

    def _lower(self, node: ir.Node, role: NodeRole) -> None:
        for value, is_low in zip(node.outputs, role.outputs, strict=True):
            if is_low:
                value.type = ir.TensorType(self.low)
        if not any(role.outputs):
            return
        if is_standard(node, "Cast"):
            node.attributes["to"] = ir.AttrInt64("to", int(self.low))
        elif is_standard(node, "ConstantOfShape"):
            fill = fill_of(node)
            node.attributes["value"] = ir.AttrTensor("value", self.weights.low(fill, None))

    def _retype_constant(self, value: ir.Value, graph: ir.Graph) -> None:
        if not is_float(value):
            return
        assert value.const_value is not None
        uses = [u for u in value.uses() if self._wants(u.node, u.idx) == self.low]
        given_low = value.is_graph_output() and value.name in self.low_ends
        if not uses and not given_low:
            return
        if len(uses) == len(value.uses()) and given_low == value.is_graph_output():
            value.const_value = self.weights.low(value.const_value, value.name)
            value.type = ir.TensorType(self.low)
            return
        name = value.name
        if given_low:
            value.name = self.names.take(f"{name}_fp32")
        else:
            name = self.names.take(f"{name}_{self.fmt.name}")
        copy = ir.val(name, self.low, value.shape)
        copy.const_value = self.weights.low(value.const_value, copy.name)
        graph.register_initializer(copy)
        for node, index in uses:
            node.replace_input_with(index, copy)
        if given_low:
            replace_output(graph, value, copy)

    def _cast_where_needed(self, value: ir.Value) -> None:
        is_low = value.dtype == self.low
        other = ir.DataType.FLOAT if is_low else self.low
        uses = [u for u in value.uses() if self._wants(u.node, u.idx) not in (None, value.dtype)]
        output_type = self.low if value.name in self.low_ends else ir.DataType.FLOAT
        output_differs = value.is_graph_output() and value.dtype != output_type
        if not uses and not output_differs:
            return
        name, graph = value.name, value.graph
        assert name is not None
        assert graph is not None
        if output_differs:
            value.name = self.names.take(f"{name}_{self.fmt.name if is_low else 'fp32'}")
            cast = ir.node(
                "Cast", [value], {"to": int(other)}, name=self.names.take(f"{name}_cast")
            )
            cast.outputs[0].name = name
            replace_output(graph, value, cast.outputs[0])
        else:
            suffix = "fp32" if is_low else self.fmt.name
            cast = ir.node(
                "Cast", [value], {"to": int(other)}, name=self.names.take(f"{name}_to_{suffix}")
            )
            cast.outputs[0].name = self.names.take(f"{name}_{suffix}")
        cast.outputs[0].shape = value.shape
        cast.outputs[0].type = ir.TensorType(other)
        producer = value.producer()
        if producer is None and len(graph):
            graph.insert_before(graph[0], cast)
        elif producer is None:
            graph.append(cast)
        else:
            graph.insert_after(producer, cast)
        self.casts += 1
        for node, index in uses:
            node.replace_input_with(index, cast.outputs[0])

    def _wants(self, node: ir.Node, slot: int) -> ir.DataType | None:
        part = self.roles.part(node)
        if part.role.role is Role.BLIND:
            return None
        return self.low if part.reads_low(slot, self.fp32) else ir.DataType.FLOAT
