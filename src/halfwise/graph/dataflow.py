"""Dataflow: operands, walks through data movement, and parts of a model.

An operand is a value that a node reads itself, or that its bodies (If, Loop, Scan) capture.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import onnx_ir as ir

from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import Network, bodies, node_name, tensor_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import NodeName, TensorName

CAPTURED = -1
"""The slot number of values that a body captures."""
Uses = Mapping[ir.Value, list[tuple[ir.Node, int]]]
FARTHEST = 24
"""Nodes after which a walk upstream ends: a guard is a local suspicion. If a whole network computes
with tiny values, guards that each name all its nodes would say nothing and take O(n²) time."""
LONGEST_WAY = 8
"""Most nodes between two that belong together, such as a mask and its Softmax, where exporters
write at most five: Mul, Sub, Mul, Add, Clip."""
GIVEN = "::given"
"""Suffix of the tensors that a region takes as inputs instead of computing them."""


def operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the values that a node reads at its slots, then those that its bodies capture."""
    slots = (v for v in node.inputs if v is not None and v.name)
    return tuple(dict.fromkeys((*slots, *captured(node))))


def captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the outside values that the bodies of a node read or output."""
    return tuple(dict.fromkeys(v for body in bodies(node) for v in captured_by(body)))


def uses_in(nodes: Iterable[ir.Node]) -> Uses:
    """Return where `nodes` read each value: node and slot.

    A body is part of its node: the node reads what the body captures (at `CAPTURED`).
    """
    uses: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in nodes:
        slots = [(v, i) for i, v in enumerate(node.inputs) if v is not None]
        for value, slot in (*slots, *((v, CAPTURED) for v in captured(node))):
            uses.setdefault(value, []).append((node, slot))
    return uses


def captured_by(body: ir.Graph) -> list[ir.Value]:
    """Return the outside values that a body reads or outputs."""
    made = (v for n in body for v in n.outputs)
    inside = {*body.inputs, *body.initializers.values(), *made}
    read = [v for n in body for v in operands(n)]
    outside = (v for v in (*read, *body.outputs) if v.name and v not in inside)
    return list(dict.fromkeys(outside))


def replace_reads(graph: ir.Graph, value: ir.Value, result: ir.Value) -> None:
    """Make the nodes of a graph, and those in its bodies, read and output `result` for `value`."""
    for inner in (graph, *graph.subgraphs()):
        inner.outputs[:] = [result if v is value else v for v in inner.outputs]
        for node in inner:
            for slot, read in enumerate(node.inputs):
                if read is value:
                    node.replace_input_with(slot, result)


def moves(node: ir.Node, roles: Roles) -> bool:
    """Return whether `node` only moves data."""
    return roles.of(node).role is Role.MOVEMENT


_T = TypeVar("_T")


def reaching(start: Iterable[_T], onward: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Yield `start` and everything reachable through `onward`, each once, in depth-first order."""
    seen = set[_T]()
    waiting = list(start)
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            yield one
            waiting += onward(one)


def reached(start: Iterable[_T], onward: Callable[[_T], Iterable[_T]]) -> dict[_T, None]:
    """Return what `reaching` yields, in its order."""
    return dict.fromkeys(reaching(start, onward))


def producers(value: ir.Value | None, roles: Roles) -> list[ir.Node]:
    """Return the nodes that compute the elements of `value` (several for a Concat)."""

    def sources(moved: ir.Value) -> list[ir.Value]:
        node = moved.producer()
        return _floats(node.inputs) if node is not None and moves(node, roles) else []

    nodes = (v.producer() for v in reached([] if value is None else [value], sources))
    return list(dict.fromkeys(n for n in nodes if n is not None and not moves(n, roles)))


def ancestors(
    start: Iterable[ir.Node | None],
    before: Callable[[ir.Node], Iterable[ir.Node | None]],
    counts: Callable[[ir.Node], bool] = lambda _: True,
) -> list[ir.Node]:
    """Return `start` and everything reachable through `before`, nearest first.

    Args:
        start: Where the walk begins; None is skipped, here and later.
        before: Returns the nodes to visit after a node.
        counts: Whether to return a node; other nodes are only passed through. At most `FARTHEST`
            are returned.
    """
    nodes: list[ir.Node] = []
    seen: set[ir.Node] = set()
    waiting = deque(start)
    while waiting and len(nodes) < FARTHEST:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [node] if counts(node) else []
        waiting += before(node)
    return nodes


def _floats(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    return [v for v in values if v is not None and is_float(v)]


def consumers(value: ir.Value, roles: Roles) -> Iterator[tuple[ir.Node, int]]:
    """Yield node and input slot wherever a node computes with elements of `value`."""

    def moved(one: ir.Value) -> Iterator[ir.Value]:
        return (v for use in one.uses() if moves(use.node, roles) for v in use.node.outputs)

    for one in reached([value], moved):
        yield from ((use.node, use.idx) for use in one.uses() if not moves(use.node, roles))


def low_consumers(value: ir.Value, roles: Roles) -> list[ir.Node]:
    """Return the consumers that would read `value` in the low format."""
    nodes = (n for n, slot in consumers(value, roles) if roles.reads_low(n, slot))
    return list(dict.fromkeys(nodes))


def constant_behind(value: ir.Value | None, roles: Roles) -> ir.Value | None:
    """Return the one constant whose elements `value` holds; None if it holds other elements."""
    while value is not None and value.const_value is None:
        node = value.producer()
        if node is None or not moves(node, roles):
            return None
        sources = [v for v in node.inputs if is_float(v)]
        value = sources[0] if len(sources) == 1 else None
    return value


def upstream(
    start: ir.Value | None, roles: Roles, follow: Callable[[ir.Node], Iterable[ir.Value | None]]
) -> list[ir.Node]:
    """Return the producers of `start`, and of all values reachable from there through `follow`.

    They come nearest first, at most `FARTHEST`.
    """

    def before(node: ir.Node) -> list[ir.Node]:
        return [n for v in _floats(follow(node)) for n in producers(v, roles)]

    return ancestors(producers(start, roles), before)


def giving_out(
    model: ir.Model, names: Iterable[TensorName], given: Collection[TensorName] = ()
) -> ir.Model:
    """Return a copy whose only outputs are `names`, without the nodes that they do not need.

    A tensor `t` that is `given` becomes an input "t::given", which readers of `t` read instead. So
    an output that is also given is still computed, and outputs after it start from the input.

    Inputs stay, and constants are shared. Names that no node of the main graph computes are
    ignored. Nodes that stay keep all outputs: some kernels do not run without an optional output
    that they had.

    Args:
        model: The model; not changed.
        names: Tensors that nodes of the main graph compute.
        given: Such tensors too; those that are not needed become no inputs.

    Raises:
        KeyError: no node of the main graph computes a given tensor.
    """
    copy = model.clone()
    graph = copy.graph
    computed = {v.name: v for node in graph for v in node.outputs if v.name}
    graph.outputs.clear()
    # Without a shape: a faulty candidate may output another shape.
    starts = [ir.val(f"{name}{GIVEN}", type=computed[name].type) for name in given]
    for name, start in zip(given, starts, strict=True):
        computed[name].replace_all_uses_with(start)
    graph.outputs[:] = [computed[name] for name in names if name in computed]
    drop_unused_nodes(graph)
    graph.inputs.extend(start for start in starts if start.uses())
    return copy


def drop_unused_nodes(graph: ir.Graph) -> None:
    """Remove nodes of a main graph that no output needs, and unused constants, in place."""
    for node in reversed(graph):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
    drop_unused_constants((graph,))


class Ancestry:
    """Ancestors of tensors in a network, which is read only once."""

    def __init__(self, network: Network) -> None:
        nodes = list(network.nodes())
        self._producers = {tensor_name(v): node for node in nodes for v in node.outputs if v.name}
        self._places = {node_name(node): place for place, node in enumerate(nodes)}
        self.varying = varying_tensors(network)

    def between(self, start: Collection[TensorName], target: TensorName) -> tuple[NodeName, ...]:
        """Return the nodes that compute `target` from the nearest tensors `start`, in graph order.

        Nodes that depend on no graph input are left out: their outputs are constant.
        """

        def needed(name: TensorName) -> list[TensorName]:
            node = self._producers.get(name) if name in self.varying else None
            return [] if node is None else [v for v in read_by(node) if v not in start]

        names = reached([target], needed).keys() & self.varying & self._producers.keys()
        computing = {node_name(self._producers[name]) for name in names}
        return tuple(sorted(computing, key=self._places.__getitem__))


def nodes_between(x: ir.Value, output: ir.Value) -> frozenset[ir.Node]:
    """Return the nodes on paths from `x` to `output`."""

    def before(value: ir.Value) -> list[ir.Value]:
        node = None if value is x else value.producer()
        return [] if node is None else [v for v in node.inputs if v is not None]

    back = {v.producer() for v in reached([output], before) if v is not x}

    def after(value: ir.Value) -> list[ir.Value]:
        return [v for use in value.uses() if use.node in back for v in use.node.outputs]

    ahead = (v.producer() for v in reached([x], after) if v is not x)
    return frozenset(node for node in ahead if node is not None)


def read_by(node: ir.Node) -> tuple[TensorName, ...]:
    """Return the tensors that a node reads, including those its bodies capture."""
    return tuple(dict.fromkeys(tensor_name(v) for v in operands(node)))


def varying_tensors(network: Network) -> frozenset[TensorName]:
    """Return the tensors that depend on a graph input."""
    varying = {tensor_name(v) for v in network.graph.inputs}
    for node in network.nodes():
        if varying.intersection(read_by(node)):
            varying.update(tensor_name(v) for v in node.outputs if v.name)
    return frozenset(varying)


class Part(Network, frozen=True, eq=False):
    """A model of which only some nodes are searched.

    Attributes:
        names: Names of the nodes that `all_nodes` yields.
    """

    names: frozenset[NodeName] = frozenset()

    @staticmethod
    def of(model: ir.Model, names: Iterable[NodeName]) -> "Part":
        """Return a part of a model in normal form, or of a model that is being changed."""
        return Part(model, None, "", {}, names=frozenset(names))

    def all_nodes(self) -> Iterator[ir.Node]:
        """Yield these nodes in topological order."""
        return (n for n in self.graph.all_nodes() if n.name in self.names)
