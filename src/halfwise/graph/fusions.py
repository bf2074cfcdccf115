"""Wider islands of FP32 nodes, along the boundaries at which an engine builder fuses.

A kept node in the middle of a fusible group costs more than its own time: it breaks up the kernels
around it. So a set of kept nodes grows to whole groups, each kind wider than the last:

- *patterns*: a decomposed normalisation, activation or softmax (`graph.written_out`);
- *layers*: a convolution or matrix product with bias, scale, activation and residual sum, which
  TensorRT fuses into one kernel ("Types of fusions" in its developer guide);
- *attention cores*: both products of an attention, with scale, mask and softmax between them;
- *branches*: all nodes between two points that all data passes through, such as two residual sums;
- *blocks*: parts that repeat along the model (`repeated`), in whole branches if there are
  any.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import onnx_ir as ir

from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.norms import NORMALISATIONS
from halfwise.graph.quantised import CONTRIB
from halfwise.graph.reading import NO_NODES, Nodes, is_constant, readers
from halfwise.graph.roles import Role, Roles
from halfwise.graph.written_out import PATTERNS, attentions, written_out
from halfwise.records import NodeName

RADIUS = 2
"""Compute nodes that a class covers in each direction; data movement on the path does not count.

At 1, the two residual Adds of a transformer block are one class. At 2, they differ (the MatMuls
behind them have weights of other shapes), q, k and v differ, and 12 of the 13 LayerNorms of a
six-block ViT are one class: the first follows the position embedding. At 3, the last one drops
out too, because no further block reads the same stream.
"""

_COMMUTATIVE = frozenset(("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"))


def repeated(network: Network, roles: Roles) -> dict[NodeName, int]:
    """Return the class of every compute node: equal numbers for equal roles in repeated blocks.

    Weisfeiler-Lehman refinement (Shervashidze et al. 2011): a node starts from its operator,
    attributes, and the element types and shapes of its constants; each of `RADIUS` rounds adds the
    neighbouring classes, in operand order unless the operator commutes. Names, constants' values,
    sizes of activations and nodes without float values (shape computations) do not count. Moving
    nodes are edge labels between compute nodes.

    Args:
        network: The model; nodes of its main graph are classed.
        roles: Roles of its nodes.

    Returns:
        Class by node name, for nodes with role COMPUTE, numbered from 0 in graph order.
        Time is linear in the number of edges.
    """
    nodes = [n for n in network.nodes() if roles[node_name(n)].role is not Role.BLIND]
    refinement = _Refinement(nodes, roles)
    for _ in range(RADIUS):
        refinement.widen()
    numbers: dict[int, int] = {}
    return {
        node_name(n): numbers.setdefault(refinement.labels[n], len(numbers))
        for n in nodes
        if roles[node_name(n)].role is Role.COMPUTE
    }


class _Refinement:
    """Labels of nodes, refined round by round. Each distinct structure has a number, its label."""

    def __init__(self, nodes: list[ir.Node], roles: Roles) -> None:
        self.nodes = nodes
        self.moves = {n for n in nodes if roles[node_name(n)].role is Role.MOVEMENT}
        self.known: dict[Hashable, int] = {}
        self.labels = {n: self._number(_signature(n)) for n in nodes}

    def widen(self) -> None:
        """Look one compute node further in each direction."""
        sources, sinks = self._sources(), self._sinks()
        self.labels |= {
            n: self._number(
                (
                    self.labels[n],
                    self._operands(n, sources),
                    tuple(sinks[v] for v in n.outputs),
                )
            )
            for n in self.nodes
            if n not in self.moves
        }

    def _sources(self) -> dict[ir.Value, int]:
        """Return the source of each value: a compute node, or one before data movement."""
        sources: dict[ir.Value, int] = {}
        for node in self.nodes:
            origin = self._operands(node, sources) if node in self.moves else ()
            for i, value in enumerate(node.outputs):
                sources[value] = self._number((self.labels[node], i, origin))
        return sources

    def _operands(self, node: ir.Node, sources: dict[ir.Value, int]) -> tuple[int, ...]:
        described = [
            sources[v] if v is not None and v in sources else self._number(_leaf(v))
            for v in node.inputs
        ]
        return tuple(sorted(described)) if node.op_type in _COMMUTATIVE else tuple(described)

    def _sinks(self) -> dict[ir.Value, int]:
        """Return the sinks of each value: compute nodes, or those after data movement."""
        sinks: dict[ir.Value, int] = {}
        for node in reversed(self.nodes):
            for value in node.outputs:
                sinks[value] = self._number(
                    (value.is_graph_output(), *sorted(self._uses(value, sinks)))
                )
        return sinks

    def _uses(self, value: ir.Value, sinks: dict[ir.Value, int]) -> Iterator[int]:
        for use in value.uses():
            node = use.node
            if node in self.labels:
                slot = 0 if node.op_type in _COMMUTATIVE else use.idx
                beyond = tuple(sinks[v] for v in node.outputs) if node in self.moves else ()
                yield self._number((self.labels[node], slot, beyond))

    def _number(self, structure: Hashable) -> int:
        return self.known.setdefault(structure, len(self.known))


def _signature(node: ir.Node) -> Hashable:
    attributes = sorted(
        (a.name, str(a.type), _content(a)) for a in node.attributes.values() if not a.is_ref()
    )
    constants = tuple(_leaf(v) for v in node.inputs if v is not None and v.const_value is not None)
    if node.op_type in _COMMUTATIVE:
        constants = tuple(sorted(constants, key=str))
    return node.domain, node.op_type, tuple(attributes), constants


def _content(attribute: ir.Attr) -> str:
    if attribute.type is ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype} {tensor.shape}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        graphs = (
            (attribute.as_graph(),)
            if attribute.type is ir.AttributeType.GRAPH
            else attribute.as_graphs()
        )
        return " ".join(n.op_type for g in graphs for n in g)
    return str(attribute.value)


def _leaf(value: ir.Value | None) -> Hashable:
    """Describe an operand that is absent, constant, or not computed by a node with floats."""
    if value is None:
        return ("absent",)
    kind = "constant" if value.const_value is not None else "input"
    shape = str(value.shape) if value.const_value is not None else ""
    return kind, str(value.dtype), shape


Group = frozenset[NodeName]

_HEAVY = ("MatMul", "Gemm", "Einsum", "Attention", "Conv", "ConvTranspose", "GRU", "LSTM", "RNN")
_HEAVY_IN_ORT = ("Attention", "MultiHeadAttention")
"""Those in ONNX Runtime's own domain."""
_ACTIVATIONS = frozenset(
    (
        *("BatchNormalization", "Celu", "Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish"),
        *("LeakyRelu", "Mish", "Neg", "PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign"),
        *("Swish", "Tanh", "ThresholdedRelu"),
    )
)
_ARITHMETIC = frozenset(("Add", "Div", "Max", "Min", "Mul", "Sub", "Sum", "Where"))
_LARGEST_ISLAND = 1 / 2
"""Largest share of the compute nodes for a branch or block to count as an island."""
_REPEATED_SHARE = 1 / 3
"""Share of the compute nodes that must occur equally often in a model made of blocks.

In a vision transformer of six blocks, half do; in the CNNs of bench/, at most a sixth.
"""


def wider(network: Network, roles: Roles, kept: Group) -> list[tuple[str, Group]]:
    """Return islands around `kept`, each larger than the one before.

    Args:
        network: The model; nodes of its main graph are grouped.
        roles: Roles of its nodes.
        kept: Nodes that stay in FP32.

    Returns:
        For each island, a few words on what it completes, and all its nodes: `kept` and more
        compute nodes. Empty if `kept` already consists of whole groups.
    """
    fusions = Fusions(network, roles)
    islands: list[tuple[str, Group]] = []
    grown = kept
    for name, groups in fusions.kinds():
        before = grown
        grown = closed(grown, groups)
        if grown != before:
            islands.append((name, grown))
    return islands


def closed(kept: Group, groups: Iterable[Group]) -> Group:
    """Return `kept` with every group that shares a node with it; overlapping groups add more."""
    groups, grown = list(groups), kept
    while touched := [group for group in groups if group & grown and not group <= grown]:
        grown = grown.union(*touched)
    return grown


class Fusions:
    """The groups of one network."""

    def __init__(self, network: Network, roles: Roles) -> None:
        self.network, self.roles = network, roles
        # Nodes that only handle shapes fuse with nothing.
        self._nodes = [n for n in network.nodes() if roles[node_name(n)].role is not Role.BLIND]
        self._place = {node_name(n): i for i, n in enumerate(self._nodes)}

    def kinds(self) -> Iterator[tuple[str, list[Group]]]:
        """Yield name and groups of each kind, from the narrowest to the widest."""
        yield "whole normalisations and activations", self._patterns(*PATTERNS)
        yield "whole layers with bias, activation and residual sum", self._layers()
        yield "whole attention cores", self._cores()
        computing = sum(self.roles[name].role is Role.COMPUTE for name in self._place)
        for name, groups in (("branches", self._branches), ("repeated blocks", self._blocks())):
            yield f"whole {name}", [g for g in groups if len(g) <= _LARGEST_ISLAND * computing]

    def _group(self, nodes: Iterable[ir.Node]) -> Group:
        names = self._place.keys() & map(node_name, nodes)
        return frozenset(n for n in names if self.roles[n].role is Role.COMPUTE)

    def _patterns(self, *ops: str) -> list[Group]:
        groups = (group for op in ops for group in written_out(self.network, op))
        # Silu and Swish are the same operator.
        return list(dict.fromkeys(self._group(self._nodes_of(group)) for group in groups))

    def _nodes_of(self, group: Group) -> Nodes:
        return frozenset(self._nodes[self._place[n]] for n in group if n in self._place)

    @cached_property
    def _activations(self) -> Mapping[ir.Node, Nodes]:
        """The nodes of the decomposed activation that a node belongs to."""
        ops = (op for op in PATTERNS if op not in NORMALISATIONS and "Softmax" not in op)
        groups = map(self._nodes_of, self._patterns(*ops))
        return {node: nodes for nodes in groups for node in nodes}

    def _layers(self) -> list[Group]:
        heavy = filter(_is_heavy, self._nodes)
        return [self._group({n} | self._epilogue(n.outputs[0])) for n in heavy]

    def _epilogue(self, value: ir.Value) -> Nodes:
        """Return the nodes that a product's kernel applies to its result before storing it."""
        members, summed = NO_NODES, False
        while True:
            uses = list(self._readers(value))
            nodes = {node for node, _, _ in uses}
            if len(nodes) != 1:
                whole = self._activations.get(next(iter(nodes)), NO_NODES) if nodes else NO_NODES
                if not nodes or not nodes <= whole:
                    return members
                members |= whole
                value = self._last(whole).outputs[0]
                continue
            node = nodes.pop()
            if is_standard(node, *_ARITHMETIC) and not self._with_constants(node, uses[0][1]):
                if summed or node.op_type not in ("Add", "Sum"):
                    return members
                summed = True
            elif not is_standard(node, *_ACTIVATIONS, *_ARITHMETIC):
                return members
            members |= {node}
            value = node.outputs[0]

    def _readers(self, value: ir.Value) -> Iterator[tuple[ir.Node, int, Nodes]]:
        """Yield the nodes that compute with `value`, past data movement; for a body, its node.

        Each comes with its input slot and the data movement in between.
        """
        for node, slot, passed in readers(value):
            part = self.roles.part(node)
            if part.role.role is not Role.BLIND:
                yield self._nodes[self._place[part.decider]], slot, passed

    def _last(self, nodes: Nodes) -> ir.Node:
        return max(nodes, key=lambda n: self._place[node_name(n)])

    def _with_constants(self, node: ir.Node, slot: int) -> bool:
        others = (v for i, v in enumerate(node.inputs) if i != slot and v is not None)
        return all(is_constant(v) for v in others)

    def _cores(self) -> list[Group]:
        return [self._group(nodes) for nodes in attentions(self.network)]

    @cached_property
    def _branches(self) -> list[Group]:
        """The nodes between two points where only one value is alive, in graph order.

        Values without a product upstream do not count, so masks and positions that every block
        reads do not join all blocks into one.
        """
        last = {v: self._last_use(v) for n in self._nodes for v in n.outputs}
        deep: set[ir.Value] = set()
        alive: set[ir.Value] = set()
        runs: list[list[ir.Node]] = [[]]
        for place, node in enumerate(self._nodes):
            runs[-1].append(node)
            if _is_heavy(node) or any(v in deep for v in node.inputs):
                deep |= set(node.outputs)
                alive |= set(node.outputs)
            alive = {v for v in alive if last[v] > place}
            if len(alive) == 1 and not alive.isdisjoint(node.outputs):
                runs.append([])
        return [group for group in map(self._group, runs) if group]

    def _last_use(self, value: ir.Value) -> int:
        users = (self.roles.part(use.node).decider for use in value.uses())
        return max((self._place[name] for name in users if name in self._place), default=-1)

    def _blocks(self) -> list[Group]:
        classes = repeated(self.network, self.roles)
        members: dict[int, list[NodeName]] = {}
        for name, of in classes.items():
            members.setdefault(of, []).append(name)
        shares = Counter(len(members[of]) for of in classes.values())
        del shares[1]
        if not shares or max(shares.values()) < _REPEATED_SHARE * len(classes):
            return []
        times = max(shares, key=lambda n: (shares[n], n))
        # Of the parts that occur once per block, the most evenly spaced one marks its start.
        starts = min((m for m in members.values() if len(m) == times), key=self._unevenness)
        single = [frozenset((name,)) for name in classes]
        parts = self._branches if len(self._branches) >= times else single
        where = {name: i for i, part in enumerate(parts) for name in part}
        begins = sorted({where[name] for name in starts})
        length = max((b - a for a, b in pairwise(begins)), default=len(parts))
        ends = [*begins[1:], begins[-1] + length]
        return [frozenset[NodeName]().union(*parts[a:b]) for a, b in zip(begins, ends, strict=True)]

    def _unevenness(self, names: Sequence[NodeName]) -> int:
        gaps = [b - a for a, b in pairwise(self._place[name] for name in names)]
        return max(gaps) - min(gaps)


def _is_heavy(node: ir.Node) -> bool:
    in_ort = node.domain == CONTRIB and node.op_type in _HEAVY_IN_ORT
    return in_ort or is_standard(node, *_HEAVY)
