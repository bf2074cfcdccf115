"""Runs any assignment of low precision to nodes in one session of ONNX Runtime."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import lru_cache
from math import floor

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.case import CPU, Runtime, Sample
from halfwise.emulation.forms import Form, Forms, Readings, Slots
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import Elements, round_value
from halfwise.formats import Format
from halfwise.graph.casts import low_type
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import Network, add_constant, bodies, graphs_of, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.graph.weights import LowWeights
from halfwise.metrics import Outputs
from halfwise.records import NodeName, TensorName

SWITCH_INPUT = "halfwise::low"

SIZE = 24
"""Approximate nodes per stretch; no result depends on it. Longer ones have fewer borders, but more
often mix precisions."""

LONG = 64
"""The same if no stretch mixes precisions. A run then has fewer borders; ONNX Runtime needs up to
three times as long to load a body of a thousand nodes."""


def stretches(
    nodes: Sequence[ir.Node],
    roles: Roles,
    size: int = SIZE,
    apart: Container[NodeName] = frozenset(),
) -> list[list[ir.Node]]:
    """Return the nodes in order, cut into stretches; nodes that cannot join are alone.

    Args:
        nodes: The nodes of a graph, in topological order.
        roles: Their roles.
        size: Nodes per stretch; of the last one of a range up to half as many more.
        apart: Nodes likely to differ in precision from their neighbours.
    """
    parts: list[list[ir.Node]] = []
    for first, end in _joinable(nodes, roles, apart):
        start = first
        while start < end:
            cut = end if end - start <= size * 3 // 2 else start + size
            part = list(nodes[start:cut])
            several = sum(roles[node_name(n)].free for n in part) > 1
            parts += [part] if several else [[n] for n in part]
            start = cut
    return parts


def _joinable(
    nodes: Sequence[ir.Node], roles: Roles, apart: Container[NodeName]
) -> Iterator[tuple[int, int]]:
    """Yield maximal ranges of nodes that an If may hold and that likely share a precision."""
    start = 0
    for i, node in enumerate(nodes):
        if node_name(node) in apart or not _may_join(node, roles):
            if start < i:
                yield start, i
            yield i, i + 1
            start = i + 1
    if start < len(nodes):
        yield start, len(nodes)


def _may_join(node: ir.Node, roles: Roles) -> bool:
    role = roles[node_name(node)]
    if bodies(node) or role.role is Role.PINNED:
        return False
    return role.free or all(can_leave_if(v) for v in node.outputs if v.name)


def can_leave_if(value: ir.Value) -> bool:
    """Return whether ONNX Runtime's If can output `value`: no sequences, no packed types."""
    if not isinstance(value.type, ir.TensorType) or value.dtype is None:
        return False
    return value.dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL) or is_float(
        value
    )


class Switches(Struct, frozen=True):
    """Meaning of the extra input of a switched model.

    Attributes:
        nodes: The switchable nodes, in input order.
        stretches: Ranges of `nodes` that share forms: first index, and one past the last.
        alike: Whether the nodes of a stretch have no forms of their own.
    """

    nodes: tuple[NodeName, ...]
    stretches: tuple[tuple[int, int], ...]
    alike: bool

    def switch(self, fp32: frozenset[NodeName]) -> np.ndarray:
        """Return the value of `SWITCH_INPUT` for an assignment, given by its FP32 nodes."""
        low = np.array([name not in fp32 for name in self.nodes], bool)
        before = np.concatenate([[0], np.cumsum(low)])  # Number of low nodes before each index.
        first, end = np.array(self.stretches, int).reshape(-1, 2).T
        count = before[end] - before[first]
        together = np.stack([(count > 0) & (count < end - first), count > 0], axis=1)
        return np.concatenate([low, together.ravel()])

    def runs(self, switch: np.ndarray) -> bool:
        """Return whether the model emulates the assignment that `switch` encodes."""
        return not self.alike or not switch[len(self.nodes) :: 2].any()


class Switched(Struct, frozen=True):
    """The switched model.

    Attributes:
        model: FP32 model with the extra input `SWITCH_INPUT`, bool[len(nodes) + 2 len(stretches)]:
            for each node whether it is low, then for each stretch whether its nodes differ and
            whether all are low.
        switches: The meaning of that input.
    """

    model: ir.Model
    switches: Switches


def emulate_switched(
    network: Network,
    roles: Roles,
    fmt: Format,
    *,
    accumulate: str = "fp32",
    limits: Mapping[TensorName, float] | None = None,
    low_io: frozenset[TensorName] = frozenset(),
    weights: LowWeights | None = None,
    size: int | None = None,
    apart: Container[NodeName] = frozenset(),
    alike: bool = False,
    quantised: Mapping[NodeName, Slots] | None = None,
) -> Switched:
    """Return a model that emulates every assignment of `network`.

    Args:
        network: FP32 model in normal form; not changed.
        roles: Roles of its nodes.
        fmt: The low format.
        accumulate: "fp32", or "fp16" for running sums of low nodes in the low format.
        limits: Limits of tensors that need headroom: larger magnitudes become ±inf if the tensor is
            rounded.
        low_io: Float graph inputs and outputs that have the low type.
        weights: The network's weights in the low format, if already converted. Weights in a file
            stay low, and each reader widens its own copy.
        size: Approximate nodes per stretch; None for `LONG` if `alike` and the network is not
            large, as a stretch widens its weights together, else for `SIZE`.
        apart: Nodes likely to differ in precision from their neighbours.
        alike: Omit the mixed form of stretches, which makes up most of the model.
        quantised: What nodes read in INT8; all nodes that are not low do so.
    """
    copy = network.copy()
    _forget_claims(copy.graph)
    weights = weights or LowWeights(network.model, fmt)
    size = size or (LONG if alike and not weights.large else SIZE)
    parts = {g: stretches(list(g), roles, size, apart) for g in graphs_of(copy)}
    builder = _Builder(copy, roles, parts, low_io, alike=alike)
    builder.forms = Forms(
        roles,
        fmt,
        network.opset,
        accumulate,
        {name: _within(limit, fmt) for name, limit in (limits or {}).items()},
        weights,
        builder.rounded,
        Readings(copy.graph, quantised or {}),
        builder.switches,
    )
    builder.build()
    drop_unused_constants(graphs_of(copy))
    _shorten(copy)
    switches = Switches(tuple(builder.places), tuple(builder.ranges), alike)
    return Switched(copy, switches)


def _within(limit: float, fmt: Format) -> float:
    """Return the largest number of a format up to a limit."""
    spacing = fmt.ulp(limit)
    return floor(limit / spacing) * spacing


def _forget_claims(graph: ir.Graph) -> None:
    """Drop the shapes of outputs that no node reads, as they may be claims (`graph.intake`).

    ONNX Runtime trusts those of an If's outputs.
    """
    for value in graph.outputs:
        if value.producer() is not None and not value.uses():
            value.shape = None


def _shorten(model: ir.Model) -> None:
    """Drop the shapes of values that bodies compute, and replace their names by numbers.

    ONNX Runtime infers the shapes again. It stores each name a dozen times, on the heap from 16
    characters on.
    """
    outer = set(model.graph)
    inner = (v for n in model.graph.all_nodes() if n not in outer for v in n.outputs if v.name)
    for number, value in enumerate(inner):
        value.name, value.shape = f"halfwise::{number:x}", None


class _Builder:
    """Turns a copy of a network into its switched model."""

    forms: Forms

    def __init__(
        self,
        model: ir.Model,
        roles: Roles,
        parts: Mapping[ir.Graph, Sequence[Sequence[ir.Node]]],
        low_io: frozenset[TensorName],
        *,
        alike: bool,
    ) -> None:
        self.graph, self.roles, self.parts, self.low_io = model.graph, roles, parts, low_io
        self.alike = alike
        self.rounded: dict[str, ir.Value] = {}
        free = [node_name(n) for n in model.graph.all_nodes() if roles.of(n).free]
        self.places = {name: i for i, name in enumerate(free)}
        several = sum(len(part) > 1 for each in parts.values() for part in each)
        self.count = count = len(free) + 2 * several
        self.is_low = Elements(self.graph, SWITCH_INPUT, count)
        self.ranges: list[tuple[int, int]] = []

    def build(self) -> None:
        self._build(self.graph)
        self.graph.inputs.append(self.is_low.input)
        self._round_outputs()

    def _build(self, graph: ir.Graph) -> None:
        """Put switches into a graph and the bodies of its nodes."""
        for value in list(graph.initializers.values()):
            self._round_constant(value, graph)
        for value in graph.inputs:
            if is_float(value):
                self._round_input(value, graph)
        for part in self.parts[graph]:
            if len(part) > 1:
                self._switch_together(part, graph)
            elif self.roles.of(part[0]).free:
                self._switch(part[0], graph)
            else:
                self._open(part[0], graph)

    def _open(self, node: ir.Node, graph: ir.Graph) -> None:
        """Put switches into the bodies of an FP32 node."""
        if bodies(node):
            graph.insert_before(node, self.is_low.groups(range(self.count)))
        for body in bodies(node):
            self._build(body)

    def switches(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Return the node that reads the switch of each of `nodes` in a branch."""
        return [self.is_low.at(self.places[node_name(n)], f"{n.name}::is_low")[-1] for n in nodes]

    def _round_constant(self, value: ir.Value, graph: ir.Graph) -> None:
        if not is_float(value) or not self.forms.has_low_reader(value):
            return
        assert value.const_value is not None
        name, weights = f"{value.name}::low", self.forms.weights
        if weights.in_file(value.const_value):
            copy = ir.val(name, low_type(self.forms.fmt), value.shape)
            copy.const_value = weights.low(value.const_value, name)
            graph.register_initializer(copy)
        else:
            copy = self._saturated(value.const_value, name, graph)
        self.rounded[_name(value)] = copy

    def _saturated(self, tensor: ir.TensorProtocol, name: str, graph: ir.Graph) -> ir.Value:
        low = self.forms.weights.low(tensor, name).numpy()
        return add_constant(graph, name, low.astype(np.float32))

    def _round_input(self, value: ir.Value, graph: ir.Graph) -> None:
        uses = value.uses()
        if not uses or value.name not in self.low_io:
            return
        rounded = self.forms.rounding(value, f"{value.name}::in", value)
        wide = rounded.wide
        wide.shape = value.shape
        for node in reversed(rounded.nodes):
            graph.insert_before(graph[0], node)
        for node, index in uses:
            node.replace_input_with(index, wide)
        self.rounded[_name(wide)] = wide

    def _round_outputs(self) -> None:
        for i, value in enumerate(self.graph.outputs):
            name = _name(value)
            if name in self.low_io:
                value.name = f"{name}::raw"
                if value.const_value is not None:
                    self.graph.outputs[i] = self._saturated(value.const_value, name, self.graph)
                    continue
                rounded = round_value(value, self.forms.fmt, f"{name}::result")
                rounded.wide.name, rounded.wide.shape = name, value.shape
                after = value.producer() or self.graph[-1]
                self.graph.insert_after(after, rounded.nodes)
                self.graph.outputs[i] = rounded.wide

    def _switch(self, node: ir.Node, graph: ir.Graph) -> None:
        reading = self.is_low.at(self.places[node_name(node)], f"{node.name}::is_low")
        chosen, seen = self.forms.choose(node, reading[-1].outputs[0], {})
        self._replace([node], [*reading, chosen], seen, graph)

    def _switch_together(self, nodes: Sequence[ir.Node], graph: ir.Graph) -> None:
        """Replace a stretch by an If between its nodes' own forms and their common forms."""
        free = [self.places[name] for n in nodes if (name := node_name(n)) in self.places]
        at, prefix = len(self.places) + 2 * len(self.ranges), f"{nodes[0].name}::stretch"
        self.ranges.append((free[0], free[-1] + 1))
        outputs = [v for n in nodes for v in n.outputs if _is_read_beyond(v, nodes)]
        outputs = outputs or [v for v in nodes[-1].outputs if v.name]

        def branch(form: Form) -> ir.Graph:
            return self.forms.branch(nodes, form, outputs, {}, f"::{form.name.lower()}")

        is_low = self.is_low.at(at + 1, f"{prefix}::is_low")
        forms = is_low[-1].outputs[0], branch(Form.LOW), branch(Form.KEPT)
        if self.alike:
            chosen, seen = self.forms.join(prefix, *forms, outputs, "")
            self._replace(nodes, [*is_low, chosen], seen, graph)
            return
        inner, _ = self.forms.join(f"{prefix}::alike", *forms, outputs, "::alike")
        alike = ir.Graph([], inner.outputs, nodes=[inner], name=f"{prefix}::alike")
        differ = self.is_low.at(at, f"{prefix}::differ")
        groups = self.is_low.groups(range(free[0], free[-1] + 1))
        separate = branch(Form.OWN)
        chosen, seen = self.forms.join(prefix, differ[-1].outputs[0], separate, alike, outputs, "")
        self._replace(nodes, [*is_low, *differ, *groups, chosen], seen, graph)

    def _replace(
        self,
        old: Sequence[ir.Node],
        new: Sequence[ir.Node],
        seen: Mapping[ir.Value, ir.Value],
        graph: ir.Graph,
    ) -> None:
        graph.insert_after(old[-1], new)
        for value, wide in seen.items():
            value.replace_all_uses_with(wide, replace_graph_outputs=True)
        graph.remove(old, safe=True)


def _is_read_beyond(value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _name(value: ir.Value) -> str:
    return value.name or ""


class SwitchedRunner:
    """A switched model in ONNX Runtime, which runs any assignment."""

    def __init__(
        self,
        make: Callable[[], Switched],
        whole: Callable[[], Switched] | None = None,
        *,
        runtime: Runtime = CPU,
    ) -> None:
        """Make and load the model; raises as `Session` does.

        Args:
            make: Makes the model, which is not kept. It may omit mixed stretches (`alike`): it then
                takes a third of the time.
            whole: Makes the model that emulates every assignment; needed if `make` does not.
            runtime: Where to run.
        """
        self._whole, self._runtime = whole, runtime
        self._session: Session | None
        self._load(make)

    def prepare(self, fp32: frozenset[NodeName]) -> None:
        """Load the model that runs an assignment, unless loaded; raises as `Session` does."""
        if not self.switches.runs(self._switch(fp32)):
            assert self._whole is not None
            self._session = None  # Two sessions at once would need more memory.
            self._load(self._whole)

    def run(self, sample: Sample, fp32: frozenset[NodeName]) -> Outputs:
        """Return the outputs with the nodes `fp32` in FP32, all others low.

        Raises:
            RunFailed: as `Session.run`.
        """
        self.prepare(fp32)
        assert self._session is not None
        return self._session.run({**sample, SWITCH_INPUT: self._switch(fp32)})

    def _load(self, make: Callable[[], Switched]) -> None:
        """Load a model; its graph, the largest object of a run, is not kept."""
        switched = make()
        self.switches = switched.switches
        self._switch = lru_cache(maxsize=4)(self.switches.switch)
        self._session = Session(switched.model, runtime=self._runtime)
