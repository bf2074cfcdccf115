"""Find operators that an exporter decomposed into several nodes.

Norms (`graph.norms`) and activations (`graph.reading`) are recognised by their values. A Softmax is
found from the sum of its exponentials, and an attention from the Softmax between its two products:
division or multiplication by a reciprocal, operands in either order, axes as attribute or input,
and data movement anywhere in between.
"""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.graph.dataflow import LONGEST_WAY, nodes_between
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.norms import NORMALISATIONS, normalisations
from halfwise.graph.reading import (
    ACTIVATIONS,
    NO_NODES,
    Function,
    Nodes,
    activations,
    axes_of,
    is_constant,
    maker,
    other_operand,
    readers,
    same,
    scalar,
    split_constant,
    way,
)
from halfwise.records import NodeName

_ARITHMETIC = ("Add", "Clip", "Div", "Max", "Min", "Mul", "Sub", "Sum", "Where")
"""Operators between an attention's products and its softmax: scale, bias, mask."""
_PRODUCTS = ("Einsum", "Gemm", "MatMul")
BY_AXIS = 13
"""From this opset on, Softmax reduces one axis; before, it reduced all axes from its axis on."""
_OF_SOFTMAX = frozenset(("Div", "Exp", "Mul", "Reciprocal", "ReduceSum", "Sub"))
"""Operators of the forms that compute exactly what one node does."""


class WrittenSoftmax(Function, frozen=True, eq=False):
    """A Softmax that was read.

    Attributes:
        x: Its argument; where the largest element is subtracted first, the difference.
        nodes: All its nodes, that subtraction included.
        axis: The axis, not negative, of the one node that computes the same from x; None if none
            does: with something added to the sum, say, or data movement in between.
    """

    axis: int | None


def read_softmaxes(network: Network) -> Iterator[WrittenSoftmax]:
    """Yield every Softmax of more than one node, in graph order.

    These are exp(x) / Σ exp(x), perhaps with an eps added to Σ; x may be z - max(z).
    """
    for node in network.all_nodes():
        exp = maker(node.inputs[0], "Exp") if is_standard(node, "ReduceSum") else None
        x = None if exp is None else exp.inputs[0]
        if x is None:
            continue
        for output in _quotients(node.outputs[0], x):
            exact = all(is_standard(n, *_OF_SOFTMAX) for n in nodes_between(x, output))
            axis = summed_axis(node) if exact else None
            by_axis = network.opset >= BY_AXIS or (x.shape and axis == x.shape.rank() - 1)
            whole = nodes_between(_unshifted(x), output)
            yield WrittenSoftmax(x, output, whole, axis if by_axis else None)


def _quotients(total: ir.Value, x: ir.Value, *, eps: bool = True) -> Iterator[ir.Value]:
    """Yield exp(x) / total, whichever node computes exp(x); if `eps`, total may have an addend."""

    def is_exp(value: ir.Value | None) -> bool:
        exp = maker(value, "Exp")
        return exp is not None and exp.inputs[0] is x

    for node, slot, _ in readers(total):
        other = other_operand(node, slot)
        if is_standard(node, "Div") and slot == 1 and is_exp(other):
            yield node.outputs[0]
        elif eps and is_standard(node, "Add", "Max") and scalar(other) is not None:
            yield from _quotients(node.outputs[0], x, eps=False)
        elif is_standard(node, "Reciprocal") or (
            is_standard(node, "Div") and slot == 1 and scalar(other) == 1.0
        ):
            for product, place, _ in readers(node.outputs[0]):
                factor = other_operand(product, place)
                if is_standard(product, "Mul") and is_exp(factor):
                    yield product.outputs[0]


def _unshifted(x: ir.Value) -> ir.Value:
    """Return z of x = z - max(z), else x."""
    node = maker(x, "Sub")
    z, subtracted = node.inputs if node else (x, None)
    # JAX writes max(-inf, max(x)).
    bounded = split_constant(subtracted, "Max")
    largest = maker(bounded[0].value if bounded else subtracted, "ReduceMax")
    return z if z is not None and largest is not None and same(largest.inputs[0], z) else x


def summed_axis(node: ir.Node) -> int | None:
    """Return the axis, not negative, of a reduction over one axis that it keeps; else None."""
    x, axes = node.inputs[0], axes_of(node)
    if x is None or not x.shape or axes is None or len(axes) != 1:
        return None
    kept = bool(node.attributes.get_int("keepdims", 1))
    return axes[0] % x.shape.rank() if kept else None


def attentions(network: Network) -> Iterator[Nodes]:
    """Yield softmax(scale · Q Kᵀ + mask) V, where the products read only computed values.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1. A product with a constant
    is not part of attention. The softmax is one node or several, and a constant factor of Q or K
    belongs to it.
    """
    native = [n for n in network.all_nodes() if is_standard(n, "Softmax")]
    softmaxes = [(n.inputs[0], n.outputs[0], frozenset((n,))) for n in native]
    softmaxes += [(s.x, s.output, s.nodes) for s in read_softmaxes(network)]
    for x, output, nodes in softmaxes:
        scores, weighted = _scores(x, LONGEST_WAY), _weighted(output, LONGEST_WAY)
        if scores and weighted:
            yield nodes | scores | weighted


def _scores(value: ir.Value | None, steps: int) -> Nodes:
    """Return the nodes from the products that feed `value` to it; empty if there are none."""
    node = maker(value, *_PRODUCTS, *_ARITHMETIC)
    if node is None or value is None or not steps:
        return NO_NODES
    if is_standard(node, *_PRODUCTS):
        factors = [(v, maker(v, "Mul", "Div")) for v in node.inputs[:2] if v is not None]
        scales = [way(v) for v, by in factors if by and any(map(is_constant, by.inputs))]
        return way(value).union(*scales) if _is_computed(node) else NO_NODES
    before = NO_NODES.union(*(_scores(v, steps - 1) for v in node.inputs))
    return before | way(value) if before else NO_NODES


def _weighted(value: ir.Value, steps: int) -> Nodes:
    """Return the nodes from `value` to the products that read it; empty if there are none."""
    after = NO_NODES
    for node, _, passed in readers(value) if steps else ():
        if is_standard(node, *_PRODUCTS) and _is_computed(node):
            after |= passed | {node}
        elif is_standard(node, *_ARITHMETIC) and (rest := _weighted(node.outputs[0], steps - 1)):
            after |= passed | {node} | rest
    return after


def _is_computed(product: ir.Node) -> bool:
    return not any(map(is_constant, product.inputs[:2]))


PATTERNS: tuple[str, ...] = tuple(sorted((*NORMALISATIONS, "Softmax", *ACTIVATIONS, "Silu")))
"""Operators whose decomposed forms are known; `Silu` is another name for ONNX's `Swish`."""


def written_out(network: Network, op: str) -> list[frozenset[NodeName]]:
    """Return the groups of nodes that form a decomposed operator `op`.

    Not returned: one-node (native) forms, and groups with an operator of a custom domain.

    Args:
        network: The model.
        op: One of `PATTERNS`.

    Returns:
        One set of node names per occurrence, in graph order. Sets of one operator are usually
        disjoint, but two norms may share a mean.

    Raises:
        KeyError: `op` is not in `PATTERNS`.
    """
    groups: Iterator[Nodes]
    if op in NORMALISATIONS:
        groups = (nodes for kind, nodes in normalisations(network) if kind == op)
    elif op == "Softmax":
        groups = (softmax.nodes for softmax in read_softmaxes(network))
    else:
        written = activations(network, "Swish" if op == "Silu" else op)
        groups = (function.nodes for function in written)
    # Names of operators alone are compared above; another domain's may compute anything.
    standard = (nodes for nodes in groups if all(map(is_standard, nodes)))
    return list(dict.fromkeys(frozenset(node_name(n) for n in nodes) for nodes in standard))
