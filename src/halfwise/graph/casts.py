"""Rewrite a network into a strongly typed mixed-precision model. The only rewriter of precision.

A low node's float slots get the low type, every other node stays FP32, and a Cast stands on each
value whose consumers want another type than its producer gives: one per value and direction.
Mathematics, names and order of the nodes stay as they are; with every node in FP32 the result is
the original.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from halfwise.errors import BuildFailed
from halfwise.formats import Format
from halfwise.graph.model import Network, constant_array, node_name, tensor_name
from halfwise.graph.roles import NodeRole, Role, Roles, is_float
from halfwise.graph.weights import LowWeights, pieces
from halfwise.records import NodeName, SaturatedConstant, TensorName


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
    low_io: bool = False,
    weights: LowWeights | None = None,
) -> Rewritten:
    """Return `network` with every free node outside `fp32` in the low format.

    Args:
        network: FP32 model in normal form; not changed.
        roles: Roles of its nodes for this format.
        fp32: Names of the free nodes that stay in FP32 (compute and moving nodes alike).
        fmt: The low format.
        low_io: Give float graph inputs and outputs the low type instead of FP32.
        weights: The network's weights in the low format, where they are made already.

    Raises:
        BuildFailed: a new name that the rewriting needs is taken.
    """
    weights = weights or LowWeights(network.model, fmt)
    return _Rewriter(network, roles, fp32, fmt, low_io, weights).run()


def fill_of(node: ir.Node) -> ir.TensorProtocol:
    """Return what a ConstantOfShape node fills its output with: a tensor of one element."""
    value = node.attributes.get("value")
    return value.as_tensor() if value is not None else ir.tensor(np.zeros(1, np.float32))


def saturated_constants(
    network: Network, roles: Roles, fp32: frozenset[NodeName], fmt: Format
) -> tuple[SaturatedConstant, ...]:
    """Return the constants with finite values beyond the range that low nodes read.

    Infinite values stay infinite and do not count.
    """
    found: list[SaturatedConstant] = []
    for value in network.graph.initializers.values():
        readers = _low_readers(value, roles, fp32)
        if readers:
            found += _saturated(tensor_name(value), constant_array(value), fmt, readers)
    for node in network.nodes():
        name = node_name(node)
        if node.op_type == "ConstantOfShape" and roles[name].free and name not in fp32:
            fill = np.asarray(fill_of(node).numpy())
            found += _saturated(tensor_name(node.outputs[0]), fill, fmt, (name,))
    return tuple(found)


def _low_readers(value: ir.Value, roles: Roles, fp32: frozenset[NodeName]) -> tuple[NodeName, ...]:
    if not is_float(value):
        return ()
    names = (node_name(u.node) for u in value.uses() if _wants_low(u.node, u.idx, roles, fp32))
    return tuple(dict.fromkeys(names))


def _wants_low(node: ir.Node, slot: int, roles: Roles, fp32: frozenset[NodeName]) -> bool:
    role = roles.get(node_name(node))
    return role is not None and role.free and node_name(node) not in fp32 and role.inputs[slot]


def _saturated(
    name: TensorName, array: np.ndarray, fmt: Format, readers: Iterable[NodeName]
) -> list[SaturatedConstant]:
    beyond = sum(
        int(np.count_nonzero((magnitude > fmt.max) & np.isfinite(magnitude)))
        for magnitude in (np.abs(piece.astype(np.float32)) for piece in pieces(array))
    )
    if not beyond:
        return []
    finite = array[np.isfinite(array)]
    return [
        SaturatedConstant(
            name=name,
            minimum=float(finite.min()),
            maximum=float(finite.max()),
            elements=beyond,
            consumers=tuple(readers),
        )
    ]


class _Rewriter:
    def __init__(
        self,
        network: Network,
        roles: Roles,
        fp32: frozenset[NodeName],
        fmt: Format,
        low_io: bool,
        weights: LowWeights,
    ) -> None:
        self.model = network.copy()
        self.graph = self.model.graph
        self.roles = roles
        self.fp32 = fp32
        self.fmt = fmt
        self.low = low_type(fmt)
        self.low_io = low_io
        self.weights = weights
        self.casts = 0
        self.taken = {v.name for n in self.graph.all_nodes() for v in n.outputs}
        self.taken |= {v.name for v in self.graph.inputs} | set(self.graph.initializers)
        self.taken |= {n.name for n in self.graph.all_nodes()}

    def run(self) -> Rewritten:
        """Retype constants, inputs, nodes and outputs, in the order of the data."""
        constants = [v for v in self.graph.initializers.values() if v.is_graph_output()]
        float_values = [v for v in (*self.graph.inputs, *constants) if is_float(v)]
        float_values += [v for n in self.graph for v in n.outputs if is_float(v)]
        for value in list(self.graph.initializers.values()):
            self._retype_constant(value)
        if self.low_io:
            for value in self.graph.inputs:
                if is_float(value):
                    value.type = ir.TensorType(self.low)
        for node in list(self.graph):
            role = self.roles[node_name(node)]
            if role.free and node_name(node) not in self.fp32:
                self._lower(node, role)
        for value in float_values:
            self._cast_where_needed(value)
        return Rewritten(self.model, self.casts)

    def _lower(self, node: ir.Node, role: NodeRole) -> None:
        for value, is_low in zip(node.outputs, role.outputs, strict=True):
            if is_low:
                value.type = ir.TensorType(self.low)
        if not any(role.outputs):
            return
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(self.low))
        elif node.op_type == "ConstantOfShape":
            fill = fill_of(node)
            node.attributes["value"] = ir.AttrTensor("value", self.weights.low(fill, None))

    def _retype_constant(self, value: ir.Value) -> None:
        uses = [u for u in value.uses() if _wants_low(u.node, u.idx, self.roles, self.fp32)]
        if not uses or not is_float(value):
            return
        assert value.const_value is not None
        if len(uses) == len(value.uses()) and not value.is_graph_output():
            value.const_value = self.weights.low(value.const_value, value.name)
            value.type = ir.TensorType(self.low)
            return
        copy = self._new_value(f"{value.name}_{self.fmt.name}", value, self.low)
        copy.const_value = self.weights.low(value.const_value, copy.name)
        self.graph.register_initializer(copy)
        for node, index in uses:
            node.replace_input_with(index, copy)

    def _cast_where_needed(self, value: ir.Value) -> None:
        is_low = value.dtype == self.low
        other = ir.DataType.FLOAT if is_low else self.low
        uses = [u for u in value.uses() if self._wants(u.node, u.idx) not in (None, value.dtype)]
        output_type = self.low if self.low_io else ir.DataType.FLOAT
        output_differs = value.is_graph_output() and value.dtype != output_type
        if not uses and not output_differs:
            return
        name = value.name
        assert name is not None
        if output_differs:
            value.name = self._free_name(f"{name}_{self.fmt.name if is_low else 'fp32'}")
            cast = ir.node(
                "Cast", [value], {"to": int(other)}, name=self._free_name(f"{name}_cast")
            )
            cast.outputs[0].name = name
            self._replace_output(value, cast.outputs[0])
        else:
            suffix = "fp32" if is_low else self.fmt.name
            cast = ir.node(
                "Cast", [value], {"to": int(other)}, name=self._free_name(f"{name}_to_{suffix}")
            )
            cast.outputs[0].name = self._free_name(f"{name}_{suffix}")
        cast.outputs[0].shape = value.shape
        cast.outputs[0].type = ir.TensorType(other)
        producer = value.producer()
        if producer is None and len(self.graph):
            self.graph.insert_before(self.graph[0], cast)
        elif producer is None:
            self.graph.append(cast)
        else:
            self.graph.insert_after(producer, cast)
        self.casts += 1
        for node, index in uses:
            node.replace_input_with(index, cast.outputs[0])

    def _wants(self, node: ir.Node, slot: int) -> ir.DataType | None:
        role = self.roles.get(node_name(node))
        if role is not None and role.role is Role.BLIND:
            return None
        low = _wants_low(node, slot, self.roles, self.fp32)
        return self.low if low else ir.DataType.FLOAT

    def _replace_output(self, old: ir.Value, new: ir.Value) -> None:
        for i, output in enumerate(self.graph.outputs):
            if output is old:
                self.graph.outputs[i] = new

    def _new_value(self, name: str, like: ir.Value, dtype: ir.DataType) -> ir.Value:
        return ir.val(self._free_name(name), dtype, like.shape)

    def _free_name(self, wanted: str) -> str:
        for name in (wanted, *(f"{wanted}_{i}" for i in range(1, 1000))):
            if name not in self.taken:
                self.taken.add(name)
                return name
        raise BuildFailed(
            f"Cannot name a new tensor: {wanted} and 999 variants of it are taken.",
            "Rename the tensors of the model.",
        )
