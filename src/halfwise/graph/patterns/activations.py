"""Decomposed activations, Softmax, LogSoftmax and attention.

An activation is x times a gate that depends only on x. A Softmax is found from the sum of its
exponentials, and an attention from the Softmax between its two products.
"""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.graph.reading import (
    NO_NODES,
    Nodes,
    Seen,
    behind,
    is_constant,
    maker,
    other_operand,
    readers,
    same,
    scalar,
    split_constant,
    way,
)

_SMALLEST_CUBIC = 4
"""c · (x + d · x³) takes at least Pow, Mul, Add, Mul; fewer nodes are not Gelu's tanh form."""
_MASKS = ("Add", "Sub", "Mul", "Div", "Where", "Clip", "Max", "Min")
"""Operators between the scores and the softmax: scale, bias, mask."""
_LONGEST_WAY = 8
"""Most nodes between product and softmax; exporters write at most Mul, Sub, Mul, Add, Clip."""


def gelus(network: Network) -> Iterator[Nodes]:
    """Yield x · (1 + erf(x / √2)) / 2 and x · (1 + tanh(c · (x + d · x³))) / 2.

    Factors may come in any order. Source of both: Hendrycks and Gimpel 2016, "Gaussian Error Linear
    Units".
    """
    for node in network.nodes():
        if node.op_type not in ("Erf", "Tanh") or node.inputs[0] is None:
            continue
        for one, slot, passed in readers(node.outputs[0]):
            if one.op_type != "Add" or scalar(other_operand(one, slot)) != 1.0:
                continue
            for x in _factors(one.outputs[0]):
                inside = _inside(node, x)
                product = _times(one.outputs[0], x, scaled=True)
                if inside and product:
                    yield inside | passed | product | {node, one}
                    break


def _inside(gate: ir.Node, x: ir.Value) -> Nodes:
    value = gate.inputs[0]
    if gate.op_type == "Erf":
        scaled = split_constant(value, "Mul", "Div")
        return scaled[0].nodes if scaled and same(scaled[0].value, x) else NO_NODES
    cubic = _polynomial(value, x)
    return cubic if cubic and len(cubic) >= _SMALLEST_CUBIC else NO_NODES


def _polynomial(value: ir.Value | None, x: ir.Value, depth: int = 8) -> Nodes | None:
    """Return the nodes that compute `value` from x and constants alone; None if it needs others."""
    if value is None or depth == 0:
        return None
    if same(value, x) or is_constant(value):
        return NO_NODES
    node = maker(value, "Add", "Mul", "Pow", "Div")
    if node is None:
        return None
    nodes = way(value)
    for operand in node.inputs:
        part = _polynomial(operand, x, depth - 1)
        if part is None:
            return None
        nodes |= part
    return nodes


def swishes(network: Network) -> Iterator[Nodes]:
    """Yield x · sigmoid(x), also with the factor of ONNX's Swish, and x / (1 + exp(-x))."""
    for node in network.nodes():
        if node.op_type == "Sigmoid" and node.inputs[0] is not None:
            scaled = split_constant(node.inputs[0], "Mul", "Div")
            for seen in (Seen(node.inputs[0]), *((scaled[0],) if scaled else ())):
                if product := _times(node.outputs[0], seen.value, scaled=False):
                    yield seen.nodes | product | {node}
                    break
        elif node.op_type == "Exp" and (minus := maker(node.inputs[0], "Neg")):
            for one, slot, passed in readers(node.outputs[0]):
                if one.op_type != "Add" or scalar(other_operand(one, slot)) != 1.0:
                    continue
                for end, place, between in readers(one.outputs[0]):
                    if end.op_type == "Div" and place == 1 and same(end.inputs[0], minus.inputs[0]):
                        yield passed | between | {minus, node, one, end}


def hard_swishes(network: Network) -> Iterator[Nodes]:
    """Yield x · HardSigmoid(x) and x · clip(x + 3, 0, 6) / 6, factors in any order.

    Source: Howard et al. 2019, "Searching for MobileNetV3", equation for h-swish.
    """
    for node in network.nodes():
        if node.op_type == "HardSigmoid" and node.inputs[0] is not None:
            if product := _times(node.outputs[0], node.inputs[0], scaled=False):
                yield product | {node}
        elif node.op_type in ("Clip", "Min") and (inner := _clipped(node)):
            added = split_constant(inner.value, "Add")
            if added is None or added[1] != 3.0:
                continue
            if product := _times(node.outputs[0], added[0].value, scaled=True):
                yield inner.nodes | added[0].nodes | product | {node}


def _clipped(node: ir.Node) -> Seen | None:
    """Return the x of `Clip(x, 0, 6)` or `Min(Relu(x), 6)`."""
    x = node.inputs[0]
    if node.op_type == "Clip":
        bounds = [scalar(v) for v in node.inputs[1:]]
        bounds += [node.attributes[k].as_float() for k in ("min", "max") if k in node.attributes]
        return Seen(x) if x is not None and bounds == [0.0, 6.0] else None
    bounded = split_constant(node.outputs[0], "Min")
    relu = maker(bounded[0].value, "Relu") if bounded and bounded[1] == 6.0 else None
    if bounded is None or relu is None or relu.inputs[0] is None:
        return None
    return Seen(relu.inputs[0], way(bounded[0].value))


def softpluses(network: Network) -> Iterator[Nodes]:
    """Yield log(1 + exp(x)) and max(x, 0) + log(1 + exp(-|x|))."""
    for node in network.nodes():
        if node.op_type != "Log" or not (one := split_constant(node.inputs[0], "Add")):
            continue
        exp = maker(one[0].value, "Exp")
        if exp is None or one[1] != 1.0:
            continue
        nodes = one[0].nodes | way(one[0].value) | {node}
        yield _stable(node, exp, nodes) or nodes


def _stable(log: ir.Node, exp: ir.Node, nodes: Nodes) -> Nodes:
    minus = maker(exp.inputs[0], "Neg")
    size = maker(minus.inputs[0], "Abs") if minus else None
    if minus is None or size is None:
        return NO_NODES
    for end, slot, passed in readers(log.outputs[0]):
        other = other_operand(end, slot)
        positive = maker(other, "Relu", "Max")
        if end.op_type != "Add" or positive is None or other is None:
            continue
        if any(same(v, size.inputs[0]) for v in positive.inputs):
            return nodes | passed | way(other) | {minus, size, end}
    return NO_NODES


def mishes(network: Network) -> Iterator[Nodes]:
    """Yield x · tanh(softplus(x)), with a native or decomposed Softplus.

    Source: Misra 2019, "Mish: A Self Regularized Non-Monotonic Activation Function".
    """
    written: dict[ir.Value, Nodes] = {}
    for nodes in softpluses(network):
        written |= {n.outputs[0]: nodes for n in nodes if n.op_type in ("Log", "Add")}
    for node in network.nodes():
        if node.op_type != "Tanh" or node.inputs[0] is None:
            continue
        soft = maker(node.inputs[0], "Softplus", "Log", "Add")
        if soft is None or (soft.op_type != "Softplus" and soft.outputs[0] not in written):
            continue
        inner = written.get(soft.outputs[0], frozenset((soft,)))
        for x in _factors(node.outputs[0]):
            if x in _sources(inner) and (product := _times(node.outputs[0], x, scaled=False)):
                yield inner | product | {node}
                break


def _sources(nodes: Nodes) -> set[ir.Value]:
    made = {v for n in nodes for v in n.outputs}
    return {v for n in nodes for v in n.inputs if v is not None and v not in made}


def _factors(gate: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that may multiply the gate: operands of the next two products."""
    for node, slot, _ in readers(gate):
        other = other_operand(node, slot)
        if node.op_type == "Mul" and other is not None and not is_constant(other):
            yield other
            if scaled := split_constant(other, "Mul", "Div"):
                yield scaled[0].value
        elif node.op_type in ("Mul", "Div") and scalar(other) is not None:
            for after, place, _ in readers(node.outputs[0]):
                factor = other_operand(after, place)
                if after.op_type == "Mul" and factor is not None and not is_constant(factor):
                    yield factor


def _times(gate: ir.Value, x: ir.Value, *, scaled: bool) -> Nodes:
    """Return the nodes that multiply `gate` by x and, if `scaled`, a constant; empty if none do."""
    for node, slot, passed in readers(gate):
        other = other_operand(node, slot)
        nodes = passed | {node}
        if node.op_type == "Mul" and same(other, x):
            rest = _scaling(node.outputs[0]) if scaled else NO_NODES
            if rest or not scaled:
                return nodes | rest
        elif node.op_type == "Mul" and scaled and (half := split_constant(other, "Mul", "Div")):
            if same(half[0].value, x):
                return nodes | half[0].nodes
        elif (
            scaled and node in _scaling(gate) and (rest := _times(node.outputs[0], x, scaled=False))
        ):
            return nodes | rest
    return NO_NODES


def _scaling(value: ir.Value) -> Nodes:
    """Return the nodes that multiply or divide `value` by a constant."""
    for node, slot, passed in readers(value):
        if scalar(other_operand(node, slot)) is None:
            continue
        if node.op_type == "Mul" or (node.op_type == "Div" and slot == 0):
            return passed | {node}
    return NO_NODES


def softmaxes(network: Network) -> Iterator[Nodes]:
    """Yield exp(z) / Σ exp(z), with z = x or x - max(x), and perhaps an eps added to Σ."""
    for node in network.nodes():
        if node.op_type != "ReduceSum" or (exp := maker(node.inputs[0], "Exp")) is None:
            continue
        if (end := _divided(node.outputs[0], exp)) and node.inputs[0] is not None:
            yield end | {node} | way(node.inputs[0]) | _shifted(exp.inputs[0])[1]


def _divided(total: ir.Value, exp: ir.Node, *, eps: bool = True) -> Nodes:
    """Return the nodes from the sum to exp / sum; if `eps`, one bound or addend may be between."""
    for node, slot, passed in readers(total):
        other = other_operand(node, slot)
        nodes = passed | {node}
        if node.op_type == "Div" and slot == 1 and same(other, exp.outputs[0]):
            return nodes
        if eps and node.op_type in ("Add", "Max") and scalar(other) is not None:
            if rest := _divided(node.outputs[0], exp, eps=False):
                return nodes | rest
        elif _inverts(node, slot):
            for product, place, between in readers(node.outputs[0]):
                factor = other_operand(product, place)
                if product.op_type == "Mul" and same(factor, exp.outputs[0]):
                    return nodes | between | {product}
    return NO_NODES


def _inverts(node: ir.Node, slot: int) -> bool:
    if node.op_type == "Div":
        return slot == 1 and scalar(node.inputs[0]) == 1.0
    return node.op_type == "Reciprocal"


def _shifted(value: ir.Value | None) -> tuple[ir.Value | None, Nodes]:
    """Return x and the nodes of `value = x - max(x)`; otherwise `value` and no nodes."""
    node = maker(value, "Sub")
    if value is None or node is None or node.inputs[1] is None:
        return value, NO_NODES
    # JAX writes max(-inf, max(x)).
    bounded = split_constant(node.inputs[1], "Max")
    found = bounded[0] if bounded else Seen(node.inputs[1])
    largest = maker(found.value, "ReduceMax")
    if largest is None or not same(largest.inputs[0], node.inputs[0]):
        return value, NO_NODES
    return node.inputs[0], way(value) | found.nodes | way(found.value)


def log_softmaxes(network: Network) -> Iterator[Nodes]:
    """Yield z - log Σ exp(z), x - (max + log Σ exp(z)), x - ReduceLogSumExp(x), log(Softmax(x))."""
    divisions: dict[ir.Value, Nodes] = {}
    for nodes in softmaxes(network):
        divisions |= {n.outputs[0]: nodes for n in nodes if n.op_type in ("Div", "Mul")}
    for node in network.nodes():
        if node.op_type == "Log" and node.inputs[0] is not None:
            before = behind(node.inputs[0])
            if maker(node.inputs[0], "Softmax"):
                yield way(node.inputs[0]) | {node}
            elif before.value in divisions:
                yield divisions[before.value] | before.nodes | {node}
            elif nodes := _from_log_of_sum(node):
                yield nodes
        elif node.op_type == "ReduceLogSumExp":
            for end, slot, passed in readers(node.outputs[0]):
                if end.op_type == "Sub" and slot == 1 and same(end.inputs[0], node.inputs[0]):
                    yield passed | {node, end}


def _from_log_of_sum(log: ir.Node) -> Nodes:
    total = maker(log.inputs[0], "ReduceSum")
    exp = maker(total.inputs[0], "Exp") if total else None
    if total is None or exp is None or log.inputs[0] is None or total.inputs[0] is None:
        return NO_NODES
    x, shift = _shifted(exp.inputs[0])
    nodes = way(log.inputs[0]) | way(total.inputs[0]) | shift | {log}
    for node, slot, passed in readers(log.outputs[0]):
        other = other_operand(node, slot)
        if node.op_type == "Sub" and slot == 1 and same(other, exp.inputs[0]):
            return nodes | passed | {node}
        largest = maker(other, "ReduceMax")
        if node.op_type == "Add" and largest is not None and same(largest.inputs[0], x):
            for end, place, between in readers(node.outputs[0]):
                if end.op_type == "Sub" and place == 1 and same(end.inputs[0], x):
                    return nodes | passed | between | {node, end}
    return NO_NODES


def attentions(network: Network) -> Iterator[Nodes]:
    """Yield softmax(scale · Q Kᵀ + mask) V, where both products read only computed values.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1. A product with a constant
    is not part of attention. Softmax must be one node.
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
    """Return the nodes from the product that feeds `value` to it; empty if there is none."""
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
