"""Residual sums that the kernel of an INT8 convolution can compute.

TensorRT fuses a convolution, the Add that reads it and a Relu behind that. The kernel writes INT8
only if the other operand of the Add, too, comes through Q and DQ; Q and DQ between convolution and
Add separate the two ("Explicit Quantization", https://docs.nvidia.com/deeplearning/tensorrt/latest/
inference-library/quantized-types-explicit-quantization.html, figures on residual connections). The
documentation says nothing about matrix products, or about an activation between convolution and
Add, so neither counts here.
"""

from collections.abc import Container, Mapping
from functools import cache
from typing import NamedTuple

import onnx_ir as ir

from halfwise.graph.model import Network, is_standard, node_name
from halfwise.records import NodeName


class Residual(NamedTuple):
    """How a residual sum is computed.

    Attributes:
        product: The convolution whose kernel adds.
        slot: The slot of the other operand.
    """

    product: NodeName
    slot: int


def residuals(
    network: Network, products: Container[NodeName] | None = None
) -> Mapping[NodeName, Residual]:
    """Return the residual sums of the main graph, in graph order.

    Each adds the result of a Conv, perhaps through a BatchNormalization, that nothing else reads,
    and another computed tensor of the same shape. If both operands are such results, the kernel
    of the one with more nodes before it adds: the other one is the shortcut.

    Args:
        network: The model, quantised or not.
        products: The convolutions that count; None for all.
    """
    depth = cache(lambda: _depths(network))
    found: dict[NodeName, Residual] = {}
    for node in network.nodes():
        if not is_standard(node, "Add"):
            continue
        ends = [None if value is None else _product(value) for value in node.inputs]
        slots = [
            slot
            for slot, end in enumerate(ends)
            if end is not None and (products is None or node_name(end) in products)
        ]
        if slots and _is_sum(node):
            own = max(slots, key=lambda slot: depth()[ends[slot]]) if len(slots) > 1 else slots[0]
            product = ends[own]
            assert product is not None
            found[node_name(node)] = Residual(node_name(product), 1 - own)
    return found


def _product(value: ir.Value) -> ir.Node | None:
    """Return the Conv whose result is added alone; None if there is none."""
    maker = value.producer()
    if maker is not None and is_standard(maker, "BatchNormalization") and _is_alone(value):
        (value, *_) = (v for v in maker.inputs if v is not None)
        maker = value.producer()
    is_conv = maker is not None and is_standard(maker, "Conv") and _is_alone(value)
    return maker if is_conv else None


def _is_alone(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _is_sum(node: ir.Node) -> bool:
    """Return whether an Add adds two computed tensors, neither of them broadcast as declared."""
    shapes = [value.shape for value in node.inputs if value is not None]
    if any(value is None or value.producer() is None for value in node.inputs):
        return False
    known = [shape for shape in shapes if shape is not None]
    return len(known) < len(shapes) or _alike(*known)


def _alike(one: ir.Shape, other: ir.Shape) -> bool:
    """Return whether two shapes are, or may be, the same; a 1 next to a free size is broadcast."""
    return len(one) == len(other) and all(
        a == b or (1 not in (a, b) and not (isinstance(a, int) and isinstance(b, int)))
        for a, b in zip(one, other, strict=True)
    )


def _depths(network: Network) -> Mapping[ir.Node | None, int]:
    """Return the number of nodes on the longest path to each node."""
    found: dict[ir.Node | None, int] = {None: 0}
    for node in network.nodes():
        makers = (value.producer() for value in node.inputs if value is not None)
        found[node] = 1 + max((found.get(maker, 0) for maker in makers), default=0)
    return found
