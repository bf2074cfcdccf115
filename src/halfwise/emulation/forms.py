"""The forms of nodes in a switched emulation: low, kept, or chosen by their own switches.

A kept node that may be INT8 is INT8: it reads through its pairs the inputs that a low node reads
directly.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from enum import Enum
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.emulation.accumulate import sums_in_low
from halfwise.emulation.rounding import (
    Rounded,
    cast,
    instance,
    limit_value,
    round_value,
)
from halfwise.formats import Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import is_standard, node_name
from halfwise.graph.roles import NodeRole, Role, Roles, is_float
from halfwise.graph.weights import LowWeights
from halfwise.records import NodeName, TensorName, replace

Slots = Mapping[int, ir.Value]
"""What a node reads in the quantised network, by input slot; slots without a pair are left out."""


class Readings(Struct):
    """Makes kept nodes read through pairs.

    Attributes:
        graph: The main graph of the switched model, to which scales, zero points and integers are
            added.
        slots: The slots of each node that may be INT8.
    """

    graph: ir.Graph
    slots: Mapping[NodeName, Slots]
    _constants: dict[str, ir.Value] = {}

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
            copied = ir.val(f"halfwise::{name}", type=value.type, shape=value.shape)
            copied.const_value = copy(value.const_value)  # the other network keeps the original
            copied.const_value.name = copied.name
            self.graph.register_initializer(copied)
            self._constants[name] = copied
        return self._constants[name]


def chain(value: ir.Value) -> list[ir.Node]:
    """Return the nodes from a pair to `value`, in order.

    The first is the pair's QuantizeLinear, or its DequantizeLinear if integers are stored.
    """
    nodes = list[ir.Node]()
    source: ir.Value | None = value
    while source is not None and (node := source.producer()) is not None:
        nodes.insert(0, node)
        if node.op_type == "QuantizeLinear":  # in ONNX Runtime's own domain or the standard one
            break
        source = node.inputs[0]
    return nodes


class Form(Enum):
    """How the free nodes of a branch compute."""

    LOW = "low"
    KEPT = "kept"
    OWN = "each by its own switch"


class Seen(NamedTuple):
    """Versions of a value within a branch.

    Attributes:
        wide: What FP32 consumers see.
        low: What low consumers see, in FP32; None if the first of them has to round `wide`.
    """

    wide: ir.Value
    low: ir.Value | None


Scope = Mapping[ir.Value, Seen]
"""Versions of the values of surrounding nodes, by the network's own values."""


class Forms(Struct):
    """Builds the branches that switches choose from.

    Attributes:
        roles: Roles of the network's nodes.
        fmt: The low format.
        opset: The network's opset.
        accumulate: As for `emulate_switched`.
        limits: Tensors whose range is smaller than the format's, and the largest number of the
            format in it. So what is rounded once stays as it is when it is rounded again.
        weights: The network's weights in the low format.
        rounded: What low consumers see of constants and of low inputs of the model, by name.
        readings: Inputs of nodes that may have INT8.
        switches: Returns the node that reads the switch, bool[], of each of some nodes in a branch.
    """

    roles: Roles
    fmt: Format
    opset: int
    accumulate: str
    limits: Mapping[TensorName, float]
    weights: LowWeights
    rounded: dict[str, ir.Value]
    readings: Readings
    switches: Callable[[Sequence[ir.Node]], list[ir.Node]]

    def has_low_reader(self, value: ir.Value) -> bool:
        """Return whether any node that may be low reads `value` low."""
        return any(self.roles.reads_low(node, slot) for node, slot in value.uses())

    def choose(
        self,
        node: ir.Node,
        condition: ir.Value,
        scope: Scope,
        path: str = "",
    ) -> tuple[ir.Node, dict[ir.Value, ir.Value]]:
        """Return the If of one node, low or kept, and what stands for its outputs."""
        outputs = [v for v in node.outputs if v.name]
        then = self.branch([node], Form.LOW, outputs, scope, f"{path}::op")
        other = self.branch([node], Form.KEPT, outputs, scope, f"{path}::kept")
        return self.join(f"{node.name}{path}", condition, then, other, outputs, path)

    def join(
        self,
        name: str,
        condition: ir.Value,
        then: ir.Graph,
        other: ir.Graph,
        leaving: Sequence[ir.Value],
        path: str,
    ) -> tuple[ir.Node, dict[ir.Value, ir.Value]]:
        """Return the If of two branches, and what stands for the values `leaving` them.

        These exist once: low nodes round what they read, which changes nothing if a low node gave
        it. Its outputs have the names of the values, followed by `path`.
        """
        outputs = {v: ir.val(f"{v.name}{path}", type=v.type, shape=v.shape) for v in leaving}
        branches = [ir.AttrGraph("then_branch", then), ir.AttrGraph("else_branch", other)]
        made = list(outputs.values())
        return ir.Node("", "If", [condition], branches, outputs=made, name=f"{name}::if"), outputs

    def branch(
        self,
        nodes: Sequence[ir.Node],
        form: Form,
        leaving: Sequence[ir.Value],
        scope: Scope,
        path: str,
    ) -> ir.Graph:
        """Return a branch that computes `nodes` and outputs `leaving`.

        Args:
            nodes: Nodes of the network's copy, in order; not changed.
            form: How the free nodes among them compute.
            leaving: Outputs of `nodes` that other nodes read.
            scope: Versions of the values that the surrounding branches compute.
            path: Suffix of each new name.
        """
        seen = dict(scope)
        free = [n for n in nodes if self.roles[node_name(n)].free] if form is Form.OWN else []
        made = self.switches(free)
        switch = {node: reading.outputs[0] for node, reading in zip(free, made, strict=True)}
        for node in nodes:
            role = self.roles[node_name(node)]
            if node in switch:
                chosen, outputs = self.choose(node, switch[node], seen, path)
                made.append(chosen)
                versions = {v: Seen(wide, None) for v, wide in outputs.items()}
            elif role.free and form is Form.LOW:
                steps, versions = self._low(node, role, seen, path)
                made += steps
            else:
                steps, versions = self._plain(node, form, seen, path)
                made += steps
            seen |= versions
        ends = [seen[value].wide for value in leaving]
        return ir.Graph([], ends, nodes=made, name=f"{nodes[0].name}{path}")

    def _plain(
        self, node: ir.Node, form: Form, scope: Scope, path: str
    ) -> tuple[list[ir.Node], dict[ir.Value, Seen]]:
        """Return a node in FP32."""
        inputs = [v if v is None or v not in scope else scope[v].wide for v in node.inputs]
        made = self.readings.read(node, inputs, path) if form is Form.KEPT else []
        made.append(instance(node, inputs, path))
        pairs = zip(node.outputs, made[-1].outputs, strict=True)
        return made, {old: Seen(new, None) for old, new in pairs}

    def _low(
        self,
        node: ir.Node,
        role: NodeRole,
        seen_here: dict[ir.Value, Seen],
        path: str,
    ) -> tuple[list[ir.Node], dict[ir.Value, Seen]]:
        """Return a low node; what it rounds first is added to what is `seen_here` in the branch."""
        made, inputs = list[ir.Node](), list[ir.Value | None]()
        for slot, (value, low) in enumerate(zip(node.inputs, role.inputs, strict=True)):
            if value is None or not low:
                inputs.append(seen_here[value].wide if value in seen_here else value)
                continue
            steps, rounded = self._rounded(value, seen_here, f"{node.name}{path}::in{slot}")
            made += steps
            inputs.append(rounded)
        made += self._widen_weights(node, inputs, path)
        steps, results = self._compute_low(node, inputs, path)
        made += steps
        exact = role.role is Role.MOVEMENT and any(role.inputs) and not _is_mixed(node, role)
        exact = exact and "value" not in node.attributes  # before opset 11, Pad's constant is there
        seen = {}
        for old, new, low in zip(node.outputs, results, role.outputs, strict=True):
            if old.name:
                steps, seen[old] = self._versions(old, new, path, low=low, exact=exact)
                made += steps
        return made, seen

    def _rounded(
        self, value: ir.Value, seen: dict[ir.Value, Seen], prefix: str
    ) -> tuple[Sequence[ir.Node], ir.Value]:
        """Return what low nodes of a branch see of `value`, and the nodes that it takes."""
        wide, low = seen.get(value, Seen(value, self.rounded.get(value.name or "")))
        if low is not None:
            return (), low
        rounded = self.rounding(wide, prefix, value)
        seen[value] = Seen(wide, rounded.wide)
        return rounded.nodes, rounded.wide

    def _widen_weights(
        self, node: ir.Node, inputs: list[ir.Value | None], path: str
    ) -> list[ir.Node]:
        """Put a Cast after each of `inputs` that is stored low, in place; return the Casts."""
        casts = list[ir.Node]()
        for i, value in enumerate(inputs):
            if value is not None and value.dtype == low_type(self.fmt):
                casts.append(cast(value, ir.DataType.FLOAT, f"{node.name}{path}::weight{i}"))
                inputs[i] = casts[-1].outputs[0]
        return casts

    def _versions(
        self,
        old: ir.Value,
        new: ir.Value,
        path: str,
        *,
        low: bool,
        exact: bool,
    ) -> tuple[list[ir.Node], Seen]:
        """Return an output of a low node, as FP32 consumers and as low consumers see it."""
        if not low or exact:
            return [], Seen(new, new if low else None)
        rounded = self.rounding(new, f"{old.name}{path}", old)
        return list(rounded.nodes), Seen(rounded.wide, rounded.wide)

    def rounding(self, value: ir.Value, prefix: str, tensor: ir.Value) -> Rounded:
        """Return nodes that round `value`, an instance of the network's `tensor`."""
        limit = self.limits.get(TensorName(tensor.name or ""))
        if limit is None:
            return round_value(value, self.fmt, prefix)
        before, value = limit_value(value, limit, prefix)
        rounded = round_value(value, self.fmt, prefix)
        return replace(rounded, nodes=(*before, *rounded.nodes))

    def _compute_low(
        self, node: ir.Node, inputs: list[ir.Value | None], path: str
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        if self.accumulate == "fp16":
            expansion = sums_in_low(node, inputs, self.fmt, f"{node.name}{path}::sum", self.opset)
            if expansion is not None:
                return list(expansion.nodes), [expansion.output]
        low = instance(node, inputs, path)
        if is_standard(node, "ConstantOfShape") and "value" in node.attributes:
            fill = np.asarray(node.attributes["value"].as_tensor().numpy(), np.float32)
            low.attributes["value"] = ir.AttrTensor("value", ir.Tensor(self.fmt.saturate(fill)))
        return [low], list(low.outputs)


def _is_mixed(node: ir.Node, role: NodeRole) -> bool:
    return any(is_float(v) != low for v, low in zip(node.inputs, role.inputs, strict=True))
