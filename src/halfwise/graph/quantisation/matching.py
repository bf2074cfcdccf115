"""Match nodes and tensors of a quantised model to those of the original.

Quantisers rename what they touch, fold BatchNormalization into convolutions, fuse a MatMul and an
Add into one Gemm, and write integer operators.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.graph.model import Names, Network, graphs_of, is_standard, node_name, tensor_name
from halfwise.graph.quantisation.pairs import moves_before
from halfwise.graph.roles import is_float
from halfwise.records import NodeName, TensorName

_FAMILIES = dict.fromkeys(
    ("DynamicQuantizeMatMul", "Gemm", "MatMulNBits", "MatMulToFloat", "QGemm"), "MatMul"
)
"""Products that quantisers turn into one another."""
_FOLDED = frozenset(("Add", "BatchNormalization", "Div", "Mul", "Sub"))
"""Operators that quantisers fold into the product before them if their operands are constant."""


@dataclass(frozen=True)
class Matching:
    """Names in a quantised model by the names in its original.

    Attributes:
        nodes: Nodes of the main graphs; integer operators match the float operators they replace.
        tensors: Float tensors that nodes of both main graphs compute, before any Q after them;
            graph outputs match by name.
    """

    nodes: Mapping[NodeName, NodeName]
    tensors: Mapping[TensorName, TensorName]


def matching(original: Network, quantised: Network) -> Matching:
    """Return the matching: nodes by name, else by output, else by order.

    Only nodes of the same kind of operator match, and only if their constants have equally many
    elements. All remaining nodes of an operator match in order if both models have equally many
    left. If nodes were folded into a product, its tensor is the output of the last of them.
    """
    pairs = _matched(original, quantised)
    ends = {value: _end(one, pairs) for one in pairs for value in one.outputs[:1]}
    outputs = {tensor_name(v) for v in original.graph.outputs}
    outputs &= {tensor_name(v) for v in quantised.graph.outputs}
    tensors = {name: name for name in outputs}
    for one, other in pairs.items():
        for mine, made in zip(one.outputs, other.outputs, strict=False):
            end = ends.get(mine, mine)
            if mine.name and made.name and is_float(end) and is_float(made):
                tensors.setdefault(tensor_name(end), tensor_name(made))
    given = set(tensors.values())
    folded = {tensor_name(value) for value, end in ends.items() if value is not end}
    computed = {tensor_name(v) for n in quantised.nodes() for v in n.outputs if is_float(v)}
    for value in (v for n in original.nodes() for v in n.outputs if v.name and is_float(v)):
        name = tensor_name(value)
        if name in computed - given - folded:
            tensors.setdefault(name, name)
    return Matching({node_name(a): node_name(b) for a, b in pairs.items()}, tensors)


def renamed(quantised: Network, tensors: Mapping[TensorName, TensorName]) -> ir.Model:
    """Return a copy of a quantised model whose tensors have the original's names.

    Another tensor that already has such a name gets a numbered one.

    Args:
        quantised: The model; inputs and outputs keep their names.
        tensors: Names in it by names in the original (see `Matching`).
    """
    model = quantised.copy()
    inner = [v for n in model.graph for v in n.outputs if v.name and not v.is_graph_output()]
    own = {their: name for name, their in tensors.items()}
    names = Names(graphs_of(model))
    for name in tensors:
        names.take(name)
    for value in inner:
        name = tensor_name(value)
        if name in own:
            value.name = own[name]
        elif name in tensors:
            value.name = names.take(name)
    return model


def _matched(original: Network, quantised: Network) -> dict[ir.Node, ir.Node]:
    found: dict[ir.Node, ir.Node] = {}
    ours, theirs = list(original.nodes()), list(quantised.nodes())
    keys: tuple[Callable[[ir.Node], str | None], ...] = (node_name, lambda n: n.outputs[0].name)
    for key in keys:
        known = {(key(n), _family(n)): n for n in theirs if n not in set(found.values())}
        for node in ours:
            other = known.get((key(node), _family(node)))
            if node not in found and other is not None and _fits(node, other):
                found[node] = other
    left = _by_family(n for n in theirs if n not in set(found.values()))
    for family, nodes in _by_family(n for n in ours if n not in found).items():
        others = left.get(family, [])
        if len(nodes) == len(others) and all(map(_fits, nodes, others)):
            found |= zip(nodes, others, strict=True)
    return found


def _by_family(nodes: Iterable[ir.Node]) -> dict[str, list[ir.Node]]:
    found: dict[str, list[ir.Node]] = {}
    for node in nodes:
        found.setdefault(_family(node), []).append(node)
    return found


def _family(node: ir.Node) -> str:
    """Return the kind of operator, whether it computes in floats or integers."""
    op = node.op_type.removeprefix("QLinear").replace("Integer", "")
    return _FAMILIES.get(op, op)


def _fits(node: ir.Node, other: ir.Node) -> bool:
    """Return whether the weights of two nodes, if both have any, have equally many elements."""
    sizes = [_weights(one) for one in (node, other)]
    return None in sizes or sizes[0] == sizes[1]


def _weights(node: ir.Node) -> int | None:
    """Return the size of the largest constant that a node reads, also through Q and DQ.

    None if it reads none, and for nodes outside ONNX's domain, which pack several into one.
    """
    if not is_standard(node):
        return None
    sizes = [_constant(node, slot) for slot in range(len(node.inputs))]
    return max((size for size in sizes if size is not None), default=None)


def _constant(node: ir.Node, slot: int) -> int | None:
    moves = moves_before(node, slot)
    value = moves[-1].inputs[0] if moves else node.inputs[slot]
    while value is not None and (maker := value.producer()) is not None:
        if "QuantizeLinear" not in maker.op_type and "DequantizeLinear" not in maker.op_type:
            return None
        value = maker.inputs[0]
    constant = None if value is None else value.const_value
    return None if constant is None else constant.size


def _end(node: ir.Node, matched: Mapping[ir.Node, ir.Node]) -> ir.Value:
    """Return what the matched node outputs: the output of the last node folded into it, if any."""
    value = node.outputs[0]
    while not value.is_graph_output() and len(uses := tuple(value.uses())) == 1:
        reader = uses[0].node
        others = (v for v in reader.inputs if v is not None and v is not value)
        if reader in matched or reader.op_type not in _FOLDED or reader.graph is not node.graph:
            break
        if any(v.const_value is None for v in others):
            break
        value = reader.outputs[0]
    return value
