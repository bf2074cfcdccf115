"""Which nodes decide, which tensors only select constants, and where infinities inside end."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir
from msgspec import Struct, field

from halfwise.graph.bodies import carried
from halfwise.graph.dataflow import (
    ancestors,
    moves,
    operands,
    reached,
    reaching,
    uses_in,
)
from halfwise.graph.model import Network, bodies, is_standard, node_name, tensor_name
from halfwise.graph.roles import DATA_MOVEMENT, TYPE_BLIND, Role, Roles, is_float
from halfwise.records import NodeName, Observation, TensorName, replace

PICKING = ("Abs", "Max", "Min", "Neg", "ReduceMax", "ReduceMin")
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
        if moves(node, roles) or is_standard(node, *PICKING):
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


MASK_SHARE = 0.25
"""Share of the range from which a constant counts as a mask: below -0.25 · max, sums of a few masks
and scores leave the range. -1e4, the usual choice for FP16, is smaller in magnitude
(huggingface/transformers PR 17306)."""


class End(Struct, frozen=True):
    """A node of a mixed model that gives finite results of a tensor's infinities.

    Attributes:
        value: The tensor.
        node: The node.
        hands_on: Whether other results are infinite, too: what reads them is an end of its own.
    """

    value: ir.Value
    node: ir.Node
    hands_on: bool = False


class Fate(Struct):
    """The fate of one tensor's infinities.

    Attributes:
        ends: Where they end.
        harmful: Names of nodes that compute with them and end them wrongly, or pass them to nodes
            that do; data movement and inserted Casts are left out.
        is_harmless: Whether they all end, none wrongly.
    """

    ends: dict[End, None] = field(default_factory=dict)
    harmful: dict[NodeName, None] = field(default_factory=dict)
    is_harmless: bool = True


def fates(
    graph: ir.Graph,
    infinite: Collection[TensorName],
    own: Collection[NodeName],
    wrong: Collection[End] = (),
) -> dict[TensorName, Fate]:
    """Return the fate of each infinite tensor of a mixed model.

    What a body of If, Loop or Scan gives out is read as the output of its node is; what becomes the
    state of a Loop or Scan counts as harmful there: its next run reads that.

    Args:
        graph: Main graph of the mixed model.
        infinite: Tensors with NaN or infinities that the reference does not have, in bodies too.
        own: Names of the nodes of the original; other nodes are inserted Casts.
        wrong: Ends at which the reference has something else.
    """
    given_out = _given_out(graph)
    states = {v: node_name(node) for node in graph.all_nodes() for v in carried(node)}
    all_fates: dict[TensorName, Fate] = {}
    for node in _readers_first(graph):
        for value in (v for v in node.outputs if v.name in infinite):
            fate = all_fates[tensor_name(value)] = Fate()
            for held in reaching([value], lambda one: given_out.get(one, ())):
                if held.is_graph_output():
                    fate.is_harmless &= held.graph is not graph
                if held in states:
                    fate.is_harmless = False
                    fate.harmful[states[held]] = None
                for use in held.uses():
                    _add(fate, all_fates, End(held, use.node), own, wrong)
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
    all_fates: Mapping[TensorName, Fate],
    end: End,
    own: Collection[NodeName],
    wrong: Collection[End],
) -> None:
    """Add what a reader does to the fate of what it reads."""
    node, name = end.node, node_name(end.node)
    copies = name not in own or is_standard(node, *DATA_MOVEMENT)
    onward = [all_fates[tensor_name(v)] for v in node.outputs if v.name in all_fates]
    for behind in onward:
        fate.ends |= behind.ends
        if not behind.is_harmless:
            fate.is_harmless = False
            fate.harmful |= behind.harmful if copies else {name: None}
    # What a finite float was copied from is another element.
    if is_standard(node, *TYPE_BLIND) or (copies and (onward or is_float(node.outputs[0]))):
        return
    if onward and bodies(node):
        return
    # 1 / x gives zero of an infinity, and an infinity of what vanished.
    end = replace(end, hands_on=bool(onward))
    if end in wrong or bodies(node):
        fate.is_harmless = False
        fate.harmful[name] = None
    else:
        fate.ends[end] = None


def products_of(end: End) -> list[ir.Node]:
    """Return the products and quotients that read what a node gives.

    Directly, or through nodes that read nothing else, data movement among them.
    """

    def readers(node: ir.Node) -> list[ir.Node]:
        alone = len(node.inputs) == 1 or is_standard(node, *DATA_MOVEMENT)
        if not alone and node is not end.node:
            return []
        return [use.node for value in node.outputs for use in value.uses()]

    return [n for n in reaching(readers(end.node), readers) if is_standard(n, "Mul", "Div")]
