"""Where an infinity inside a model ends: in a saturating operator, a masked Softmax, or nowhere.

This considers only structure. Data must show that the reference saturates at the same elements.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from halfwise.graph.bodies import carried
from halfwise.graph.dataflow import Uses, uses_in
from halfwise.graph.functions import activations
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.reading import is_constant, scalar
from halfwise.graph.roles import DATA_MOVEMENT, TYPE_BLIND, Roles
from halfwise.graph.sensitivity import selects_constants
from halfwise.records import NodeName, Observation, TensorName

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


@dataclass(frozen=True)
class End:
    """A reader at which infinities of a tensor end, if data confirm it.

    Attributes:
        reader: The reader's name.
        tensor: What it reads.
        result: Its finite result, as the mixed model names it.
    """

    reader: NodeName
    tensor: TensorName
    result: TensorName


@dataclass
class Fate:
    """The fate of one tensor's infinities.

    Attributes:
        ends: Where they end, if data confirm it.
        harmful: Names of nodes that compute with them and neither end them nor pass them to nodes
            that do; data movement and inserted Casts are left out.
        given_out: Whether an output of the model holds them.
        seen: Whether data showed that the reference is at the limit at each of the ends.
        wrong: Whether the reference is not there, and the values were wrong before: in FP32, the
            same nodes give the same limit.
    """

    ends: dict[End, None] = field(default_factory=dict)
    harmful: dict[NodeName, None] = field(default_factory=dict)
    given_out: bool = False
    seen: bool = False
    wrong: bool = False

    @property
    def is_harmless(self) -> bool:
        """Whether all readers end them."""
        return not self.harmful and not self.given_out


def saturating_activations(network: Network) -> frozenset[NodeName]:
    """Return the nodes of decomposed activations whose gate saturates: GELU, Swish, Mish."""
    ops = ("Gelu", "HardSwish", "Mish", "Swish")
    return frozenset(node_name(n) for op in ops for f in activations(network, op) for n in f.nodes)


def original(value: ir.Value, own: Collection[NodeName]) -> ir.Value:
    """Return the tensor before the Casts that the rewriter inserted, or `value` without such Casts.

    Args:
        value: A tensor of the mixed model.
        own: Names of the nodes of the original; other nodes are inserted Casts.
    """
    while (node := value.producer()) is not None and node_name(node) not in own:
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
        value: A tensor of the network's main graph.
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

    Bodies of If, Loop and Scan are not searched: a node whose body reads such a tensor counts as
    harmful, and so does one whose state it is: its next run reads that.

    Args:
        graph: Main graph of the mixed model.
        infinite: Its tensors with NaN or infinities that the reference does not have.
        own: Names of the nodes of the original; other nodes are inserted Casts.
        gates: Names of nodes of decomposed activations (`activations`).
        masked: Returns whether the infinities of a tensor come from mask constants.
    """
    reader = _Reader(frozenset(infinite), own, frozenset(gates), masked, uses_in(graph))
    found: dict[TensorName, Fate] = {}
    for node in reversed(graph):
        for value in node.outputs:
            if value.name in reader.infinite:
                fate = found[tensor_name(value)] = Fate(given_out=value.is_graph_output())
                if value in carried(node):
                    fate.harmful[node_name(node)] = None
                for user, slot in reader.uses.get(value, ()):
                    _add(fate, reader, found, value, user, slot)
    return {name: found[name] for name in infinite if name in found}


def _add(
    fate: Fate,
    reader: "_Reader",
    found: dict[TensorName, Fate],
    value: ir.Value,
    node: ir.Node,
    slot: int,
) -> None:
    """Add one reader's effect to the fate of `value`."""
    name = node_name(node)
    onward = [found[tensor_name(v)] for v in node.outputs if v.name in found]
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


@dataclass(frozen=True)
class _Reader:
    """How nodes of a mixed model treat infinities."""

    infinite: frozenset[TensorName]
    own: Collection[NodeName]
    gates: frozenset[NodeName]
    masked: Callable[[ir.Value], bool]
    uses: Uses

    def computing(self, nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
        """Yield `nodes`, with those that only move data replaced by their readers."""
        waiting = list(nodes)
        seen = set(waiting)
        while waiting:
            current = waiting.pop()
            if node_name(current) in self.own and not is_standard(current, *DATA_MOVEMENT):
                yield current
                continue
            uses = (use for v in current.outputs for use in self.uses.get(v, ()))
            readers = [node for node, _ in uses if node not in seen]
            seen |= set(readers)
            waiting += readers

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
            return fixed and slot == 0 and not _is_negative(others[0], node.op_type)
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
            readers = dict.fromkeys(n for n, _ in self.uses.get(node.outputs[0], ()))
            return _grows_exponentially(value) or all(
                is_standard(n, *_NO_FACTOR) for n in self.computing(readers)
            )
        return divides and node_name(node) in self.gates


def _is_fixed(value: ir.Value | None) -> bool:
    return value is None or is_constant(value)


def _is_negative(exponent: ir.Value | None, op: str) -> bool:
    """Return whether `exponent` may turn infinity into zero."""
    return op == "Pow" and not (scalar(exponent) or 0.0) > 0


def _grows_exponentially(value: ir.Value) -> bool:
    """Return whether `value` is an exponential plus a constant: its inverse beats any factor."""
    for _ in range(8):
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
