"""Attention that is written out: two products with a softmax between them."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.graph.patterns.reading import NO_NODES, Nodes, is_constant, maker, readers, way

_MASKS = ("Add", "Sub", "Mul", "Div", "Where", "Clip", "Max", "Min")
"""Operators between the scores and the softmax: scale, bias, mask."""
_LONGEST_WAY = 8
"""Nodes between product and softmax; exporters write at most Mul, Sub, Mul, Add, Clip."""


def attentions(network: Network) -> Iterator[Nodes]:
    """Yield softmax(scale · Q Kᵀ + mask) V, of two products that both read computed values.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1. A product with a constant
    is none of attention. Softmax has to be one node.
    """
    for node in network.nodes():
        if node.op_type != "Softmax" or not node.inputs or node.inputs[0] is None:
            continue
        scores = _scores(node.inputs[0], _LONGEST_WAY)
        if not scores:
            continue
        for end, slot, passed in readers(node.outputs[0]):
            masked = end.op_type == "Where"
            uses = readers(end.outputs[0]) if masked else [(end, slot, NO_NODES)]
            for product, place, between in uses:
                if product.op_type == "MatMul" and place == 0 and not is_constant(_second(product)):
                    yield scores | passed | between | {node, end, product}


def _scores(value: ir.Value, steps: int) -> Nodes:
    """Return the nodes from the product that `value` comes from to it; none without."""
    product = maker(value, "MatMul")
    if product is not None:
        computed = not any(is_constant(operand) for operand in product.inputs)
        return way(value) if computed else NO_NODES
    node = maker(value, *_MASKS)
    if node is None or not steps:
        return NO_NODES
    for operand in node.inputs:
        if operand is not None and (found := _scores(operand, steps - 1)):
            return found | way(value)
    return NO_NODES


def _second(product: ir.Node) -> ir.Value | None:
    return product.inputs[1] if len(product.inputs) > 1 else None
