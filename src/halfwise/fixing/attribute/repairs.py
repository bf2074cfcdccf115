"""Repairs that preserve the function, at places where they do."""

from collections.abc import Iterable

import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.graph.dataflow import moves
from halfwise.graph.model import node_name
from halfwise.graph.reading import square_of
from halfwise.graph.roles import is_float
from halfwise.wording import listed

LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Operators whose result is proportional to their weights, except for a bias."""
_HOMOGENEOUS = frozenset(
    ("AveragePool", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Neg", "ReduceMean", "Relu")
)
"""Operators with f(s·x) = s·f(x) for every s > 0."""
_NORMS = frozenset(
    ("GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization")
)
"""Operators that divide by √(variance + epsilon), the variance growing with the square of x."""
_MOST = 64
"""Maximum number of tensors that one factor may reach: nobody would scale more by hand."""

Nodes = dict[ir.Node, None]


def rescaling(evidence: Evidence, value: ir.Value, *, up: bool) -> str:
    """Return how weights can scale `value` without changing the function; "" if none can.

    Everything that makes it has to be linear in weights, and everything that reads it linear in
    weights too, or a norm, along any path by which operators pass the factor on. A norm divides the
    factor out again only if its epsilon has the factor squared.

    Args:
        evidence: The network.
        value: A tensor that is too large or too small.
        up: Whether it is too small.
    """
    makers, readers = _around(evidence, value)
    if not makers or not readers or makers.keys() & readers.keys():
        return ""
    way, back = ("up", "down") if up else ("down", "up")
    norms = [n for n in readers if n.op_type in _NORMS]
    weighted = [n for n in readers if n.op_type not in _NORMS]
    undo = f", and the weights alone of {_named(weighted)} {back} by it" if weighted else ""
    eps = f", and the epsilon of {_named(norms)} {way} by its square" if norms else ""
    return f"Scale weights and bias of {_named(makers)} {way} by a power of two{undo}{eps}."


def _named(nodes: Iterable[ir.Node]) -> str:
    return listed([node_name(n) for n in nodes], most=3)


def _has_weights(node: ir.Node) -> bool:
    """Return whether `node` is linear: one factor a constant and the other not."""
    factors = [v for v in node.inputs[:2] if v is not None]
    return node.op_type in LINEAR and sum(v.const_value is not None for v in factors) == 1


def _around(evidence: Evidence, value: ir.Value) -> tuple[Nodes, Nodes]:
    """Return the makers and readers of all tensors scaled along with `value`; else nothing."""
    nothing: tuple[Nodes, Nodes] = ({}, {})
    makers: Nodes = {}
    readers: Nodes = {}
    waiting, scaled = [value], {value}
    while waiting:
        current = waiting.pop()
        maker = current.producer()
        if maker is None or current.is_graph_output() or len(scaled) > _MOST:
            return nothing
        handed: list[ir.Value | None] = []
        if _has_weights(maker):
            makers[maker] = None
        elif moves(maker, evidence.roles) or maker.op_type in _HOMOGENEOUS:
            handed += maker.inputs
        else:
            return nothing
        for node, slot in ((u.node, u.idx) for u in current.uses()):
            if (node.op_type in _NORMS and slot == 0) or (_has_weights(node) and slot < 2):
                readers[node] = None
            elif moves(node, evidence.roles) or node.op_type in _HOMOGENEOUS:
                handed += node.outputs
            else:
                return nothing
        new = [v for v in handed if v is not None and is_float(v) and v not in scaled]
        waiting += new
        scaled |= set(new)
    return makers, readers


def folding(node: ir.Node) -> str:
    """Return how a BatchNormalization can be folded into its surroundings."""
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    alone = before is not None and len(list(before.outputs[0].uses())) == 1
    if before is not None and alone and _has_weights(before):
        return f"Fold the BatchNormalization into {node_name(before)}, computed in FP32."
    return (
        "Fold the BatchNormalization into a Mul and an Add: weight / √(variance + eps), and bias − "
        "mean times that, computed in FP32."
    )


def weight_scaling(nodes: list[ir.Node], value: ir.Value) -> str:
    """Return how to scale a constant if all its readers are linear in it, else ""."""
    if all(n.op_type in LINEAR and value in n.inputs[:2] for n in nodes):
        return f"Scale {value.name} by a power of two, and the result before a bias by the inverse."
    return ""


def subtracting(node: ir.Node) -> str:
    """Return how to write a difference of means of squares without cancellation, else ""."""
    makers = [v.producer() for v in node.inputs if v is not None]
    means = [
        m for m in makers if m is not None and m.op_type in ("ReduceMean", "GlobalAveragePool")
    ]
    squares = [m for m in means if m.inputs[0] is not None and square_of(m.inputs[0])]
    mean_squared = any(v is not None and square_of(v) for v in node.inputs)
    if node.op_type == "Sub" and squares and mean_squared:
        return "Subtract the mean first, where the values are exact, and square afterwards."
    return ""


def scaled_operand(node: ir.Node) -> str:
    """Return how to scale a small operand and correct the result, "" if that is not simple."""
    return {
        "Div": "Scale the divisor up by a power of two, and the result by the same factor.",
        "Log": "Scale what it reads up by a power of two s, and subtract log s from the result.",
        "Reciprocal": "Scale what it reads up by a power of two, and the result by the same "
        "factor.",
        "Sqrt": "Scale what it reads up by a power of four, and the result down by that power's "
        "root.",
    }.get(node.op_type, "")
