"""What happens inside an op but shows in none of its tensors: squares, sums, cancellation, margins.

Squares follow from extrema. Sums are computed in the model: each op that sums gets a twin on
magnitudes. Cancellation and margins need elements, so they are views of tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.probe import View
from halfwise.emulation.rounding import new_node
from halfwise.formats import Format
from halfwise.graph.model import (
    Network,
    add_constant,
    constant_array,
    node_name,
    opset_of,
    small_constant,
    tensor_name,
)
from halfwise.graph.roles import Roles, is_float
from halfwise.observing.cancelling import cancellation_view
from halfwise.observing.statistics import margin_view
from halfwise.records import InnerObservation, NodeName, TensorName

Kind = Literal["square", "sum", "cancellation", "margin", "roundoff"]


@dataclass
class InnerNumbers:
    """The worst number of each kind per node so far: the largest, or for margins the smallest."""

    _worst: dict[NodeName, dict[Kind, tuple[float, int]]] = field(default_factory=dict)

    def add(self, node: NodeName, kind: Kind, value: float, sample: int) -> None:
        """Add a number; NaN is ignored."""
        if np.isnan(value):
            return
        kinds = self._worst.setdefault(node, {})
        known = kinds.get(kind)
        if known is None or (value < known[0] if kind == "margin" else value > known[0]):
            kinds[kind] = (value, sample)

    def worst(self, node: NodeName, kind: Kind) -> float:
        """Return the worst number so far; -inf if there is none."""
        return self._worst.get(node, {}).get(kind, (-np.inf, 0))[0]

    def records(self, network: Network) -> tuple[InnerObservation, ...]:
        """Return the records in graph order."""
        return tuple(
            InnerObservation(
                node=node_name(node),
                op=node.op_type,
                kind=kind,
                value=value,
                worst_sample=sample,
            )
            for node in network.nodes()
            for kind, (value, sample) in self._worst.get(node_name(node), {}).items()
        )


def squares(
    network: Network, roles: Roles, absmax: Mapping[TensorName, tuple[float, int]]
) -> Iterator[tuple[NodeName, float, int]]:
    """Yield (node, largest square inside it, sample) for every node that squares and may be low.

    Pow with a constant exponent of 2 or more and Mul(x, x) square their input; the output of
    ReduceSumSquare is Σx², that of ReduceL2 its root.

    Args:
        network: The model.
        roles: Role per node.
        absmax: The largest finite magnitude of each tensor, and the sample that holds it.
    """
    for node in _low_nodes(network, roles):
        match node.op_type:
            case "Pow" if _constant_max(node.inputs[1]) >= 2:
                squared, power = node.inputs[0], 2
            case "Mul" if node.inputs[0] is node.inputs[1]:
                squared, power = node.inputs[0], 2
            case "ReduceSumSquare":
                squared, power = node.outputs[0], 1
            case "ReduceL2":
                squared, power = node.outputs[0], 2
            case _:
                continue
        if squared is not None and squared.name in absmax:
            value, sample = absmax[tensor_name(squared)]
            yield node_name(node), value**power, sample


def with_sums(network: Network, roles: Roles) -> tuple[ir.Model, dict[TensorName, NodeName]]:
    """Return a model without outputs that also bounds running sums, and the node of each bound.

    Each node that sums and may be low gets a twin of the same operator on |inputs|, without bias
    (added after the sum): Σ|a||b| for MatMul, Gemm and Conv, Σ|x| for ReduceSum, ReduceMean and
    GlobalAveragePool.
    Softmax subtracts the maximum first, so its sum is 1 / its largest probability. Exact up to FP32
    rounding; one run costs about twice plain inference.
    """
    model = network.copy()
    opset = opset_of(model)
    sums: dict[TensorName, NodeName] = {}
    for node in list(model.graph):
        name = node_name(node)
        if not (roles[name].free and is_float(node.inputs[0] if node.inputs else None)):
            continue
        twin = _summing_twin(node, f"halfwise::sum::{name}", opset)
        if twin:
            model.graph.insert_after(node, twin)
            sums[tensor_name(twin[-1].outputs[0])] = name
    # Callers want only the sums; an output would be fetched on every run.
    model.graph.outputs.clear()
    return model, sums


def views(
    network: Network,
    roles: Roles,
    fmt: Format,
    inner: InnerNumbers,
    chosen: Sequence[int],
) -> dict[NodeName, View]:
    """Return the views that measure cancellation and margins, by node.

    Args:
        network: The model.
        roles: Role per node; only nodes that may be low and NonMaxSuppression are measured.
        fmt: The low format, the unit of margins.
        inner: Collects the numbers.
        chosen: The samples to view.
    """

    def add(node: NodeName, kind: Kind, value: float, place: int) -> None:
        inner.add(node, kind, value, chosen[place])

    found: dict[NodeName, View] = {}
    for node in network.nodes():
        name = node_name(node)
        view = None
        # NonMaxSuppression takes no FP16, but its input scores may have been rounded.
        if roles[name].free or node.op_type == "NonMaxSuppression":
            view = margin_view(node, fmt, partial(add, name, "margin"))
        if roles[name].free and view is None:
            worst = partial(inner.worst, name, "cancellation")
            view = cancellation_view(node, partial(add, name, "cancellation"), worst)
        if view is not None:
            found[name] = view
    return found


def _low_nodes(network: Network, roles: Roles) -> Iterator[ir.Node]:
    return (node for node in network.nodes() if roles[node_name(node)].free)


def _constant(value: ir.Value) -> NDArray[np.float32]:
    return np.asarray(constant_array(value), np.float32)


def _constant_max(value: ir.Value | None) -> float:
    if value is None or value.const_value is None or not value.is_initializer():
        return float("nan")
    return float(np.max(_constant(value), initial=-np.inf))


def _summing_twin(node: ir.Node, prefix: str, opset: int) -> list[ir.Node]:
    """Return new nodes, the last of which computes the sums of `node`; empty if it has no sums."""
    ins = list(node.inputs)
    match node.op_type:
        case "MatMul" | "Conv" | "Gemm":
            return _product_sum(node, prefix, opset)
        case "ReduceSum":
            a = new_node("Abs", ins[:1], f"{prefix}::a")
            return [a, new_node("ReduceSum", [a.outputs[0], *ins[1:]], prefix, node.attributes)]
        case "ReduceMean":
            return [new_node("ReduceL1", ins, prefix, node.attributes)]
        case "GlobalAveragePool" if ins[0] is not None and ins[0].shape is not None:
            axes, given, attributes = _axes(range(2, ins[0].shape.rank()), prefix, opset)
            return [*axes, new_node("ReduceL1", [ins[0], *given], prefix, attributes)]
        case "Softmax":
            return _softmax_sum(node, prefix, opset)
    return []


def _product_sum(node: ir.Node, prefix: str, opset: int) -> list[ir.Node]:
    ins, attributes = list(node.inputs), dict(node.attributes)
    (of_a, a), (of_b, b) = _magnitude(ins[0], f"{prefix}::a"), _magnitude(ins[1], f"{prefix}::b")
    bias: list[ir.Value | None] = []
    if node.op_type == "Gemm":
        # Before opset 11 the bias is required.
        bias = ins[2:] if opset < 11 else []
        attributes |= {"alpha": ir.AttrFloat32("alpha", 1.0), "beta": ir.AttrFloat32("beta", 0.0)}
    return [*of_a, *of_b, new_node(node.op_type, [a, b, *bias], prefix, attributes)]


def _magnitude(value: ir.Value | None, name: str) -> tuple[list[ir.Node], ir.Value]:
    """Return the nodes that compute |value|, and |value|; a small constant's is computed once."""
    array, graph = small_constant(value), value.graph if value is not None else None
    if value is None or array is None or not isinstance(graph, ir.Graph):
        node = new_node("Abs", [value], name)
        return [node], node.outputs[0]
    name = f"halfwise::abs::{value.name}"
    return [], graph.initializers.get(name) or add_constant(graph, name, np.abs(array))


def _axes(
    axes: Sequence[int], prefix: str, opset: int
) -> tuple[list[ir.Node], list[ir.Value], dict[str, list[int]]]:
    """Return the axes of a reduction as new nodes, operands and attributes."""
    if opset < 18:
        return [], [], {"axes": list(axes)}
    array = ir.tensor(np.array(axes, np.int64))
    node = new_node("Constant", [], f"{prefix}::axes", {"value": array}, ir.DataType.INT64)
    return [node], [node.outputs[0]], {}


def _softmax_sum(node: ir.Node, prefix: str, opset: int) -> list[ir.Node]:
    nodes = []
    inputs: list[ir.Value | None] = [node.outputs[0]]
    axis = node.attributes.get_int("axis", 1 if opset < 13 else -1)
    if opset < 13:
        # In these opsets, Softmax flattens its input to two axes.
        nodes = [new_node("Flatten", inputs, f"{prefix}::flat", {"axis": axis})]
        inputs, axis = [nodes[0].outputs[0]], 1
    axes, given, attributes = _axes([axis], prefix, opset)
    largest = new_node("ReduceMax", [*inputs, *given], f"{prefix}::max", attributes)
    return [*nodes, *axes, largest, new_node("Reciprocal", [largest.outputs[0]], prefix)]
