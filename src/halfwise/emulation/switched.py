"""Switched emulation: one model that runs any assignment, chosen by a Boolean input.

Every float value exists twice: as FP32 consumers see it, and rounded, as low consumers see it. A
node becomes an If with two forms of itself. Low: it reads rounded inputs, and both versions of its
output are rounded. Kept: it reads the FP32 versions, and only the second version of its output is
rounded. So an edge is rounded if and only if one of its ends is low: what the rewriter's Casts do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample
from halfwise.emulation.accumulate import sums_in_low
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import Elements, Rounded, cast, limit_value, new_node, round_value
from halfwise.emulation.typed import emulate_bodies
from halfwise.formats import Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network, add_constant, is_standard, node_name
from halfwise.graph.roles import NodeRole, Role, Roles, bodies, is_float
from halfwise.graph.weights import LowWeights
from halfwise.metrics import Outputs
from halfwise.records import NodeName, TensorName

SWITCH_INPUT = "halfwise::low"


@dataclass(frozen=True)
class Switched:
    """The switched model.

    Attributes:
        model: FP32 model with the extra input `SWITCH_INPUT`, bool[len(nodes)], true for low.
        nodes: The switchable nodes, in the order of that input.
    """

    model: ir.Model
    nodes: tuple[NodeName, ...]

    def switch(self, fp32: frozenset[NodeName]) -> np.ndarray:
        """Return the value of `SWITCH_INPUT` for an assignment, given by its FP32 nodes."""
        return np.array([name not in fp32 for name in self.nodes], bool)


def emulate_switched(
    network: Network,
    roles: Roles,
    fmt: Format,
    *,
    accumulate: str = "fp32",
    limits: Mapping[TensorName, float] | None = None,
    low_io: frozenset[TensorName] = frozenset(),
    weights: LowWeights | None = None,
    fused: frozenset[TensorName] = frozenset(),
) -> Switched:
    """Return a model that emulates every assignment of `network`.

    Args:
        network: FP32 model in normal form; not changed.
        roles: Roles of its nodes.
        fmt: The low format.
        accumulate: "fp32", or "fp16" for running sums of low nodes in the low format.
        limits: Tensors whose range is smaller than the format's: larger magnitudes become ±inf
            where the tensor is rounded (headroom).
        low_io: Float graph inputs and outputs that have the low type.
        weights: The network's weights in the low format, where they are made already. Those in a
            file stay low, and each reader widens them for itself.
        fused: Values that one low node hands on to another unrounded; see `rounding.py`. Where one
            of both is kept, they are rounded as all others.
    """
    weights = weights or LowWeights(network.model, fmt)
    builder = _Builder(network, roles, fmt, accumulate, limits or {}, low_io, weights, fused)
    return Switched(builder.build(), tuple(builder.switched))


class SwitchedRunner:
    """A switched model in ONNX Runtime: runs any assignment."""

    def __init__(self, switched: Switched, *, runtime: Runtime = CPU) -> None:
        """Load it; raises as `Session` does."""
        self.switched, self._session = switched, Session(switched.model, runtime=runtime)

    def run(self, sample: Sample, fp32: frozenset[NodeName]) -> Outputs:
        """Return the outputs with the nodes `fp32` in FP32, all others low.

        Raises:
            RunFailed: as `Session.run`.
        """
        return self._session.run({**sample, SWITCH_INPUT: self.switched.switch(fp32)})


class _Version(NamedTuple):
    """A value, and the nodes that make it."""

    nodes: tuple[ir.Node, ...]
    value: ir.Value


@dataclass
class _Builder:
    network: Network
    roles: Roles
    fmt: Format
    accumulate: str
    limits: Mapping[TensorName, float]
    low_io: frozenset[TensorName]
    weights: LowWeights
    fused: frozenset[TensorName]
    rounded: dict[str, ir.Value] = field(default_factory=dict)
    switched: list[NodeName] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.network.copy()
        self.graph = self.model.graph
        free = sum(r.free for r in self.roles.values())
        self.is_low = Elements(self.graph, SWITCH_INPUT, free)

    def build(self) -> ir.Model:
        """Return the switched model."""
        nodes = list(self.graph)
        for value in list(self.graph.initializers.values()):
            self._round_constant(value)
        for value in self.graph.inputs:
            if is_float(value):
                self._round_input(value)
        for node in nodes:
            role = self.roles[node_name(node)]
            if role.free:
                self._switch(node, role)
            else:
                for value in node.outputs:
                    if is_float(value) and self._has_low_reader(value):
                        self.rounded[_name(value)] = self._append_rounding(node, value)
        self.graph.inputs.append(self.is_low.input)
        self._round_outputs()
        return self.model

    def _has_low_reader(self, value: ir.Value) -> bool:
        return any(self.roles.part(u.node).reads_low(u.idx) for u in value.uses())

    def _round_constant(self, value: ir.Value) -> None:
        if not is_float(value) or not self._has_low_reader(value):
            return
        assert value.const_value is not None
        name = f"{value.name}::low"
        if self.weights.in_file(value.const_value):
            copy = ir.val(name, low_type(self.fmt), value.shape)
            copy.const_value = self.weights.low(value.const_value, name)
            self.graph.register_initializer(copy)
        else:
            copy = self._saturated(value.const_value, name)
        self.rounded[_name(value)] = copy

    def _saturated(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Return a new constant: `tensor` as the low format stores it."""
        array = self.fmt.saturate(np.asarray(tensor.numpy(), np.float32))
        return add_constant(self.graph, name, array)

    def _round_input(self, value: ir.Value) -> None:
        uses = value.uses()
        if not uses:
            return
        rounded = self._rounding(value, f"{value.name}::in", value)
        wide = rounded.wide
        wide.shape = value.shape
        for node in reversed(rounded.nodes):
            self.graph.insert_before(self.graph[0], node)
        self.rounded[_name(value)] = wide
        if value.name in self.low_io:
            for node, index in uses:
                node.replace_input_with(index, wide)
            self.rounded[_name(wide)] = wide

    def _rounding(self, value: ir.Value, prefix: str, tensor: ir.Value) -> Rounded:
        """Return what rounds `value`, an instance of the network's `tensor`."""
        limit = self.limits.get(TensorName(_name(tensor)))
        if limit is None:
            return round_value(value, self.fmt, prefix)
        before, value = limit_value(value, limit, prefix)
        rounded = round_value(value, self.fmt, prefix)
        return replace(rounded, nodes=(*before, *rounded.nodes))

    def _append_rounding(self, node: ir.Node, value: ir.Value) -> ir.Value:
        rounded = self._rounding(value, f"{value.name}::out", value)
        self.graph.insert_after(node, rounded.nodes)
        return rounded.wide

    def _round_outputs(self) -> None:
        for i, value in enumerate(self.graph.outputs):
            producer, name = value.producer(), _name(value)
            if name in self.low_io:
                value.name = f"{name}::raw"
                if value.const_value is not None:
                    self.graph.outputs[i] = self._saturated(value.const_value, name)
                    continue
                rounded = round_value(value, self.fmt, f"{name}::result")
                rounded.wide.name, rounded.wide.shape = name, value.shape
                if producer is None:
                    self.graph.extend(rounded.nodes)
                else:
                    self.graph.insert_after(producer, rounded.nodes)
                self.graph.outputs[i] = rounded.wide

    def _switch(self, node: ir.Node, role: NodeRole) -> None:
        name = node_name(node)
        condition = self.is_low.take(f"{name}::is_low")
        self.switched.append(name)
        twice = {v for v in node.outputs if is_float(v) and self._has_low_reader(v)}
        outputs: list[ir.Value] = []
        for value in node.outputs:
            if _name(value):
                outputs.append(ir.val(_name(value), value.dtype or ir.DataType.FLOAT, value.shape))
                outputs[-1].type = value.type
                if value in twice:
                    wide = ir.val(f"{value.name}::low", ir.DataType.FLOAT)
                    self.rounded[_name(value)] = wide
                    outputs.append(wide)
        branches = {
            "then_branch": ir.AttrGraph("then_branch", self._low_form(node, role, twice)),
            "else_branch": ir.AttrGraph("else_branch", self._kept_form(node, twice)),
        }
        switch = ir.Node(
            "",
            "If",
            condition[-1].outputs,
            branches.values(),
            outputs=outputs,
            name=f"{name}::if",
        )
        self.graph.insert_after(node, [*condition, switch])
        by_name = {v.name: v for v in outputs}
        for value in node.outputs:
            if _name(value):
                value.replace_all_uses_with(by_name[value.name], replace_graph_outputs=True)
        self.graph.remove(node, safe=True)

    def _kept_form(self, node: ir.Node, twice: set[ir.Value]) -> ir.Graph:
        kept = _instance(node, list(node.inputs), "::kept")
        nodes, outputs = [kept], []
        for old, new in zip(node.outputs, kept.outputs, strict=True):
            if not _name(old):
                continue
            outputs.append(new)
            if old in twice:
                rounded = self._rounding(new, f"{old.name}::kept", old)
                nodes += rounded.nodes
                outputs.append(rounded.wide)
        return ir.Graph([], outputs, nodes=nodes, name=f"{node.name}::kept")

    def _low_form(self, node: ir.Node, role: NodeRole, twice: set[ir.Value]) -> ir.Graph:
        inputs = [
            self.rounded[_name(v)] if v is not None and low else v
            for v, low in zip(node.inputs, role.inputs, strict=True)
        ]
        casts = self._widen_weights(node, inputs)
        nodes, results = self._compute_low(node, inputs)
        nodes = [*casts, *nodes]
        exact = role.role is Role.MOVEMENT and any(role.inputs) and not self._is_mixed(node, role)
        exact = exact and "value" not in node.attributes  # Pad has its constant there before 11
        outputs: list[ir.Value] = []
        for old, new, low in zip(node.outputs, results, role.outputs, strict=True):
            if not _name(old):
                continue
            first, second = self._versions(old, new, low=low, exact=exact)
            for version in (first, second) if old in twice else (first,):
                nodes += version.nodes
                outputs.append(version.value)
        return ir.Graph([], outputs, nodes=nodes, name=f"{node.name}::low")

    def _widen_weights(self, node: ir.Node, inputs: list[ir.Value | None]) -> list[ir.Node]:
        """Put a Cast before each of `inputs` that is stored low; return the Casts."""
        casts = []
        for i, value in enumerate(inputs):
            if value is not None and value.dtype == low_type(self.fmt):
                casts.append(cast(value, ir.DataType.FLOAT, f"{node.name}::weight{i}"))
                inputs[i] = casts[-1].outputs[0]
        return casts

    def _versions(
        self, old: ir.Value, new: ir.Value, *, low: bool, exact: bool
    ) -> tuple[_Version, _Version]:
        """Return an output of a low node as FP32 consumers and as low consumers see it."""
        as_it_is = _Version((), new)
        if low and exact:
            return as_it_is, _same(new, f"{old.name}::lo")
        rounded = self._rounding(new, f"{old.name}::lo", old)
        once = _Version(rounded.nodes, rounded.wide)
        if not low:
            return as_it_is, once
        if _name(old) in self.fused:
            return once, _same(new, f"{old.name}::fused")
        again = cast(rounded.half, ir.DataType.FLOAT, f"{old.name}::lo2")
        return once, _Version((again,), again.outputs[0])

    def _is_mixed(self, node: ir.Node, role: NodeRole) -> bool:
        return any(is_float(v) != low for v, low in zip(node.inputs, role.inputs, strict=True))

    def _compute_low(
        self, node: ir.Node, inputs: list[ir.Value | None]
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        if self.accumulate == "fp16":
            expansion = sums_in_low(node, inputs, self.fmt, f"{node.name}::sum", self.network.opset)
            if expansion is not None:
                return list(expansion.nodes), [expansion.output]
        low = _instance(node, inputs, "::op")
        if bodies(node):
            sums = self.network.opset if self.accumulate == "fp16" else None
            emulate_bodies(low, self.roles, self.weights, self.rounded, low_sums_from=sums)
        if is_standard(node, "ConstantOfShape") and "value" in node.attributes:
            fill = np.asarray(node.attributes["value"].as_tensor().numpy(), np.float32)
            low.attributes["value"] = ir.AttrTensor("value", ir.tensor(self.fmt.saturate(fill)))
        return [low], list(low.outputs)


def _same(value: ir.Value, name: str) -> _Version:
    """Return `value` again, called `name`."""
    node = new_node("Identity", [value], name)
    return _Version((node,), node.outputs[0])


def _instance(node: ir.Node, inputs: list[ir.Value | None], suffix: str) -> ir.Node:
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


def _name(value: ir.Value) -> str:
    return value.name or ""
