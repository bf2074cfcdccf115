"""Where an infinity inside a model ends: in a saturating operator, a masked Softmax, or nowhere.

This considers only structure. Data must show that the reference saturates at the same elements.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from halfwise.graph.bodies import carried
from halfwise.graph.dataflow import (
    LONGEST_WAY,
    ancestors,
    moves,
    operands,
    reached,
    reaching,
    uses_in,
)
from halfwise.graph.model import Network, bodies, is_standard, node_name, tensor_name
from halfwise.graph.reading import activations, is_constant, scalar
from halfwise.graph.roles import DATA_MOVEMENT, TYPE_BLIND, Role, Roles, is_float
from halfwise.records import NodeName, Observation, TensorName

_PICKING = ("Abs", "Max", "Min", "Neg", "ReduceMax", "ReduceMin")
"""Operators whose results are as large as elements of their input."""
_STEPS = frozenset(("Ceil", "Floor", "Round", "Sign"))
"""Operators that give whole numbers as floats."""


def _makers(values: Iterable[ir.Value | None]) -> list[ir.Node | None]:
    return [v.producer() for v in values if v is not None and is_float(v)]


def decisions(network: Network) -> Iterator[ir.Node]:
    """Yield the main graph's nodes that turn computed floats into whole numbers or Booleans."""
    for node in network.nodes():
        floats = [v for v in operands(node) if is_float(v) and not v.is_initializer()]
        if floats and not is_standard(node, *TYPE_BLIND) and _decided(node):
            yield node


def decided(node: ir.Node) -> tuple[TensorName, ...]:
    """Return the discrete outputs of a decision that are read or are model outputs."""
    used = (v for v in _decided(node) if v.uses() or v.is_graph_output())
    return tuple(TensorName(v.name) for v in used if v.name)


def _decided(node: ir.Node) -> list[ir.Value]:
    if is_standard(node, *_STEPS):
        return list(node.outputs)
    return [
        v
        for v in node.outputs
        if v.dtype is not None and (v.dtype.is_integer() or v.dtype == ir.DataType.BOOL)
    ]


def first_of(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes among `nodes`, all of one graph, that do not depend on others of them."""
    every = list(nodes)
    uses = uses_in(every[0].graph or ()) if every else {}

    def readers(node: ir.Node) -> list[ir.Node]:
        return [reader for value in node.outputs for reader, _ in uses.get(value, ())]

    behind = reached([reader for node in every for reader in readers(node)], readers)
    return [node for node in every if node not in behind]


def leading_to(decision: ir.Node, roles: Roles) -> list[NodeName]:
    """Return the compute nodes behind a decision, itself included, nearest first.

    The walk follows only floats, through data movement, up to integers, constants and inputs; at
    most `FARTHEST` nodes.
    """
    computing = ancestors(
        [decision],
        lambda node: _makers(operands(node)),
        lambda node: roles[node_name(node)].role is Role.COMPUTE,
    )
    return [node_name(node) for node in computing]


def selects_constants(
    value: ir.Value, roles: Roles, seen: Mapping[TensorName, Observation], limit: float
) -> bool:
    """Return whether all elements of `value` that reach `limit` come from constants.

    They do so through data movement (Where, Concat and the like), maxima and minima, sums and
    differences of such tensors, and products with a 0/1 mask: a tensor with only 0 and 1 on the
    samples. Attention masks are such tensors: -65504 at twice the data is still -65504.

    Args:
        value: A tensor of the main graph.
        roles: Roles of the nodes.
        seen: Observations by tensor; without details, no tensor counts as a mask.
        limit: A magnitude (≥ 0).
    """
    waiting, visited = [(value, limit)], set[tuple[ir.Value, float]]()
    while waiting:
        current, least = waiting.pop()
        ends = (current, least) in visited or current.is_initializer()
        if ends or _reaches_less(current, seen, least):
            continue
        visited.add((current, least))
        node = current.producer()
        if node is None:
            return False
        floats = [v for v in node.inputs if v is not None and is_float(v)]
        masked = [v for v in floats if not _is_mask(v, seen)]
        if moves(node, roles) or is_standard(node, *_PICKING):
            if node.op_type == "Cast" and not floats and not _is_mask(current, seen):
                return False  # of positions, say
            waiting += [(v, least) for v in floats]
        elif is_standard(node, "Add", "Sub"):
            # A small term would move the sum with the data.
            waiting += [(v, 0.0) for v in floats]
        elif node.op_type == "Mul" and len(masked) < len(floats):
            waiting += [(v, least) for v in masked]
        else:
            return False
    return True


def _reaches_less(value: ir.Value, seen: Mapping[TensorName, Observation], limit: float) -> bool:
    observation = seen.get(tensor_name(value))
    return observation is not None and observation.absmax < limit


def _is_mask(value: ir.Value, seen: Mapping[TensorName, Observation]) -> bool:
    observation = seen.get(tensor_name(value))
    if observation is None or observation.detail is None:
        return False
    return observation.absmax == 1 == observation.detail.smallest_nonzero


_SATURATING = frozenset(
    (
        *("Atan", "Clip", "Erf", "HardSigmoid", "Max", "Min", "Sigmoid", "Sign", "Tanh"),
        *("Celu", "Elu", "Exp", "Relu", "Selu", "Softplus", "ThresholdedRelu"),
    )
)
"""Operators with a finite limit at infinity on at least one side. If the result at an infinity is
finite, it is that side's limit, and large finite inputs give it too."""
_COMPARISONS = frozenset(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
_MONOTONE = frozenset(
    ("Abs", "Exp", "Identity", "LeakyRelu", "Log", "Neg", "Relu", "Softplus", "Sqrt", "ReduceMax")
)
"""Operators that pass on an infinity of one operand and turn larger inputs into larger results."""
_SUMS = frozenset(("Add", "Sub", "Sum"))
_WITH_CONSTANTS = _SUMS | {"Div", "Max", "Min", "Mul", "Pow"}
_NO_FACTOR = _SUMS | _SATURATING | _COMPARISONS
"""Readers that do not enlarge a difference of 1/65504."""
MASK_SHARE = 0.25
"""Share of the range from which a constant counts as a mask: below -0.25 · max, sums of a few masks
and scores leave the range. -1e4, the usual choice for FP16, is smaller in magnitude
(huggingface/transformers PR 17306)."""


class End(Struct, frozen=True):
    """A reader at which infinities of a tensor end, if data confirm it.

    Attributes:
        reader: The reader's name.
        tensor: What it reads.
        result: Its finite result, as the mixed model names it.
    """

    reader: NodeName
    tensor: TensorName
    result: TensorName


class Fate(Struct):
    """The fate of one tensor's infinities.

    Attributes:
        ends: Where they end, if data confirm it.
        harmful: Names of nodes that compute with them and neither end them nor pass them to nodes
            that do; data movement and inserted Casts are left out.
        given_out: Whether an output of the model holds them.
        seen: Whether data showed that the reference is at the limit at each of the ends.
    """

    ends: dict[End, None] = {}
    harmful: dict[NodeName, None] = {}
    given_out: bool = False
    seen: bool = False

    @property
    def is_harmless(self) -> bool:
        """Whether all readers end them."""
        return not self.harmful and not self.given_out


def saturating_activations(network: Network) -> frozenset[NodeName]:
    """Return the nodes of decomposed activations whose gate saturates: GELU, Swish, Mish."""
    ops = ("Gelu", "HardSwish", "Mish", "Swish")
    return frozenset(node_name(n) for op in ops for f in activations(network, op) for n in f.nodes)


def original(value: ir.Value, names: Collection[NodeName]) -> ir.Value:
    """Return the tensor before the Casts that the rewriter inserted, or `value` without such Casts.

    Args:
        value: A tensor of the mixed model.
        names: Names of the nodes of the original; other nodes are inserted Casts.
    """
    while (node := value.producer()) is not None and node_name(node) not in names:
        source = node.inputs[0]
        assert source is not None
        value = source
    return value


def masked_by_constants(
    value: ir.Value, roles: Roles, seen: Mapping[TensorName, Observation], limit: float
) -> bool:
    """Return whether large elements of `value` are mask constants, alone or added to scores.

    So are those of an input that held nothing but zeros and one magnitude: a mask that the caller
    makes.

    Args:
        value: A tensor of the network.
        roles: Roles of its nodes.
        seen: Observations of the reference, with details.
        limit: Magnitude from which a constant counts as a mask.
    """
    waiting, visited = [value], set[ir.Value]()
    while waiting:
        current = waiting.pop()
        observed = None if current.name is None else seen.get(TensorName(current.name))
        if current in visited or (observed is not None and observed.absmax < limit):
            continue
        visited.add(current)
        node = current.producer()
        if node is None and observed is not None and _is_on_or_off(observed):
            return True
        if selects_constants(current, roles, seen, limit):
            return True
        if node is not None and is_standard(node, *_SUMS, *DATA_MOVEMENT):
            waiting += [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
    return False


def _is_on_or_off(seen: Observation) -> bool:
    return seen.detail is not None and seen.detail.smallest_nonzero == seen.absmax


def fates(
    graph: ir.Graph,
    infinite: Collection[TensorName],
    *,
    own: Collection[NodeName],
    gates: Collection[NodeName],
    masked: Callable[[ir.Value], bool],
) -> dict[TensorName, Fate]:
    """Return the fate of each infinite tensor of a mixed model.

    What a body of If, Loop or Scan gives out is read as the output of its node is; the state of a
    Loop or Scan counts as harmful there: its next run reads that.

    Args:
        graph: Main graph of the mixed model.
        infinite: Tensors with NaN or infinities that the reference does not have, in bodies too.
        own: Names of the nodes of the original; other nodes are inserted Casts.
        gates: Names of nodes of decomposed activations (`activations`).
        masked: Returns whether the infinities of a tensor come from mask constants.
    """
    reader = _Reader(frozenset(infinite), own, frozenset(gates), masked, _given_out(graph))
    states = {v: node_name(node) for node in graph.all_nodes() for v in carried(node)}
    all_fates: dict[TensorName, Fate] = {}
    for node in _readers_first(graph):
        for value in node.outputs:
            if value.name in reader.infinite:
                names = set(reader.names(value))
                fate = Fate(given_out=not names.isdisjoint(graph.outputs))
                fate.harmful |= {states[v]: None for v in names & states.keys()}
                all_fates[tensor_name(value)] = fate
                for one, user, slot in reader.uses(value):
                    _add(fate, reader, all_fates, one, user, slot)
    return {name: all_fates[name] for name in infinite if name in all_fates}


def _readers_first(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield all nodes, each behind those that read it; those in bodies behind their node."""
    for node in reversed(graph):
        yield node
        for body in bodies(node):
            yield from _readers_first(body)


def _given_out(graph: ir.Graph) -> dict[ir.Value, list[ir.Value]]:
    """Return the outputs of nodes that hold what a body gives out, by the body's value."""
    given: dict[ir.Value, list[ir.Value]] = {}
    for node in graph.all_nodes():
        for body in bodies(node):
            # A Loop's body gives out its condition first.
            inner = body.outputs[node.op_type == "Loop" :]
            for value, outer in zip(inner, node.outputs, strict=False):
                given.setdefault(value, []).append(outer)
    return given


def _add(
    fate: Fate,
    reader: "_Reader",
    all_fates: dict[TensorName, Fate],
    value: ir.Value,
    node: ir.Node,
    slot: int,
) -> None:
    """Add one reader's effect to the fate of `value`."""
    name = node_name(node)
    onward = [all_fates[tensor_name(v)] for v in node.outputs if v.name in all_fates]
    if onward:
        moves = name not in reader.own or is_standard(node, *DATA_MOVEMENT)
        for behind in onward:
            fate.ends |= behind.ends
            fate.given_out |= behind.given_out
            if moves:
                fate.harmful |= behind.harmful
        if not moves and not (
            reader.hands_on(node, value, slot) and all(f.is_harmless for f in onward)
        ):
            fate.harmful[name] = None
    elif is_standard(node, *TYPE_BLIND):
        return
    elif reader.may_end(node, value, slot):
        fate.ends[End(name, tensor_name(value), tensor_name(node.outputs[0]))] = None
    else:
        fate.harmful |= dict.fromkeys(map(node_name, reader.computing([node])))


class _Reader(Struct, frozen=True):
    """How nodes of a mixed model treat infinities."""

    infinite: frozenset[TensorName]
    own: Collection[NodeName]
    gates: frozenset[NodeName]
    masked: Callable[[ir.Value], bool]
    given_out: Mapping[ir.Value, Sequence[ir.Value]]

    def names(self, value: ir.Value) -> list[ir.Value]:
        """Return a value, and the outputs of nodes that hold it if bodies give it out."""
        outer = self.given_out.get(value, ())
        return [value, *(one for v in outer for one in self.names(v))]

    def uses(self, value: ir.Value) -> Iterator[tuple[ir.Value, ir.Node, int]]:
        """Yield who reads a value, under which of its `names`, and at which slot."""
        yield from ((v, use.node, use.idx) for v in self.names(value) for use in v.uses())

    def computing(self, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
        """Yield `nodes`, with those that only move data replaced by their readers."""

        def computes(node: ir.Node) -> bool:
            return node_name(node) in self.own and not is_standard(node, *DATA_MOVEMENT)

        def onward(node: ir.Node) -> Iterator[ir.Node]:
            made = () if computes(node) else node.outputs
            return (reader for value in made for _, reader, _ in self.uses(value))

        return filter(computes, reaching(nodes, onward))

    def hands_on(self, node: ir.Node, value: ir.Value, slot: int) -> bool:
        """Return whether larger elements of `value` give larger results, or masks."""
        if not is_standard(node):
            return False
        if node.op_type in _MONOTONE or node_name(node) in self.gates:
            return True
        if node.op_type not in _WITH_CONSTANTS:
            return False
        others = [v for i, v in enumerate(node.inputs) if i != slot]
        fixed = all(v is value or _is_fixed(v) for v in others)
        if node.op_type in ("Div", "Pow"):
            return fixed and slot == 0 and not _may_vanish(others[0], node.op_type)
        return fixed or (node.op_type in _SUMS and self.masked(value))

    def may_end(self, node: ir.Node, value: ir.Value, slot: int) -> bool:
        """Return whether larger elements would give the same finite results of `node`."""
        if not is_standard(node):
            return False
        if node.op_type in _SATURATING:
            return True
        if node.op_type in _COMPARISONS:
            return all(_is_fixed(v) for v in node.inputs if v is not value)
        if node.op_type in ("Softmax", "ReduceMax"):
            return self.masked(value)
        divides = node.op_type == "Div" and slot == 1
        if node.op_type == "Reciprocal" or (divides and _is_fixed(node.inputs[0])):
            readers = dict.fromkeys(n for _, n, _ in self.uses(node.outputs[0]))
            return _grows_exponentially(value) or all(
                is_standard(n, *_NO_FACTOR) for n in self.computing(readers)
            )
        return divides and node_name(node) in self.gates


def _is_fixed(value: ir.Value | None) -> bool:
    return value is None or is_constant(value)


def _may_vanish(exponent: ir.Value | None, op: str) -> bool:
    """Return whether `exponent` may turn infinity into zero."""
    return op == "Pow" and not (scalar(exponent) or 0.0) > 0


def _grows_exponentially(value: ir.Value) -> bool:
    """Return whether `value` is an exponential plus a constant: its inverse beats any factor."""
    for _ in range(LONGEST_WAY):
        node = value.producer()
        if node is None:
            return False
        if is_standard(node, "Exp"):
            return True
        if not is_standard(node, "Add", "Cast", "Identity"):
            return False
        moving = [v for v in node.inputs if v is not None and not is_constant(v)]
        if len(moving) != 1:
            return False
        value = moving[0]
    return False
