"""What happens inside an op but shows in none of its tensors: squares, sums, cancellation, margins.

Squares follow from extrema. Sums are computed in the model: each op that sums gets a twin on
magnitudes. Cancellation and margins need elements, so they are views of tensors.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from types import MappingProxyType
from typing import Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.probe import View
from halfwise.emulation.rounding import cast, new_node
from halfwise.formats import Format
from halfwise.graph.model import (
    Network,
    add_constant,
    constant_array,
    is_standard,
    node_name,
    opset_of,
    small_constant,
    tensor_name,
)
from halfwise.graph.reading import moves, split_constant
from halfwise.graph.roles import Roles, is_float
from halfwise.observing.statistics import margin_view, varies
from halfwise.records import InnerObservation, NodeName, TensorName

CENTRING = frozenset(
    ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization")
)
"""Operators that subtract a mean from what they read."""

EXPONENTS = (-8.0, 12.0)
"""Exponents between which an exponential neither vanishes beside 1 nor overflows in FP16: e⁻⁸ is
below FP16's unit roundoff 2⁻¹¹, and e¹² is beyond 65504."""


def cancellation(
    largest: NDArray[np.float32],
    total: NDArray[np.float32],
    *,
    constant: bool = False,
    positive: bool = False,
    exponent: bool = False,
    beyond: float = -np.inf,
) -> float:
    """Return the median over elements of max(|a|, |b|) / |a ± b|.

    If the result is the exponent of e, the relative error of the power is the absolute one of the
    exponent: then of max(|a|, |b|) itself, over the exponents within `EXPONENTS` but zero, where
    both operands are the same number.

    Args:
        largest: max(|a|, |b|), f32[*shape].
        total: a ± b, f32[*shape]. It is exact where much cancels (Sterbenz, "Floating-Point
            Computation", 1974), else off by a relative 2⁻²⁴.
        constant: Whether an operand is a constant. Then results of zero do not count: a value equal
            to a constant, such as 1 in 1 - mask, rounds to the same number as the constant.
        positive: Whether only results above zero count, because readers clamp the others: for
            example, most pairs of boxes do not overlap, and their differences are dropped.
        exponent: Whether the result is only an exponent of e.
        beyond: Smaller medians are not computed: finding a median takes longer than all the rest.

    Returns:
        At least 0.5 unless `exponent`; inf if most results are zero. Elements do not count if an
        operand is not finite or both are zero; NaN if none are left, or if the median is at most
        `beyond`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        counts = np.isfinite(largest) & (largest > 0)
        if constant or exponent:
            counts &= total != 0
        if exponent:
            counts &= (total > EXPONENTS[0]) & (total < EXPONENTS[1])
        if positive:
            counts &= total > 0
        if not counts.all():
            largest, total = largest[counts], total[counts]
        ratio = np.divide(largest, 1.0 if exponent else np.abs(total), dtype=np.float64)
    # If the median exceeds `beyond`, so do at least half of the elements.
    if 2 * np.count_nonzero(ratio > beyond) < ratio.size:
        return float("nan")
    median = float(np.median(ratio)) if ratio.size else float("nan")
    return median if median > beyond else float("nan")


def _subtraction(node: ir.Node, prefix: str, opset: int) -> tuple[list[ir.Node], ir.Value] | None:
    """Return nodes that compute max(|a|, |b|) where a node adds or subtracts, and the result a ± b.

    The last of the nodes computes the maximum. None if the node subtracts nothing that varies, and
    before opset 8, where Max takes only operands of one shape.
    """
    if opset < 8:
        return None
    if is_standard(node, "Add", "Sub"):
        a, b = node.inputs
        if not (varies(a) or varies(b)) or not (is_float(a) and is_float(b)):
            return None
        return _largest(a, b, prefix), node.outputs[0]
    value = node.inputs[0] if is_standard(node, *CENTRING) else None
    if value is None or not is_float(value):
        return None
    last = 2
    if node.op_type == "LayerNormalization":
        axis, last = {"axis": node.attributes.get_int("axis", -1)}, 1
        rows = [new_node("Flatten", [value], f"{prefix}::rows", axis)]
    else:
        # Of each sample, the elements of one channel or group; 0 copies a size.
        groups = node.attributes.get_int("num_groups", 0)
        sizes = [*(value.shape or ())][1 if groups else 2 :]
        known = [size for size in sizes if isinstance(size, int)]
        # A size is not inferred where another may be 0, as that of a batch.
        rest = math.prod(known) // (groups or 1) if value.shape and known == sizes else -1
        array = {"value": ir.Tensor(np.array([0, groups, rest], np.int64))}
        shape = new_node("Constant", [], f"{prefix}::shape", array, ir.DataType.INT64)
        rows = [shape, new_node("Reshape", [value, shape.outputs[0]], f"{prefix}::rows")]
    row = rows[-1].outputs[0]
    if node.op_type == "BatchNormalization":
        means, graph = small_constant(node.inputs[3]), node.graph
        if means is None or not isinstance(graph, ir.Graph):
            return None
        mean, nodes = add_constant(graph, f"{prefix}::mean", means.reshape(-1, 1)), rows
    else:
        axes, by_input, attributes = _axes([last], prefix, opset)
        reduced = new_node("ReduceMean", [row, *by_input], f"{prefix}::mean", attributes)
        mean, nodes = reduced.outputs[0], [*rows, *axes, reduced]
    total = new_node("Sub", [row, mean], f"{prefix}::total")
    return [*nodes, total, *_largest(row, mean, prefix)], total.outputs[0]


def _largest(a: ir.Value | None, b: ir.Value | None, prefix: str) -> list[ir.Node]:
    (of_a, a), (of_b, b) = _magnitude(a, f"{prefix}::a"), _magnitude(b, f"{prefix}::b")
    return [*of_a, *of_b, new_node("Max", [a, b], prefix)]


def is_exponent(value: ir.Value) -> bool:
    """Return whether all that `value` does, moved or masked or not, is to be an exponent of e."""

    def raises(node: ir.Node, slot: int) -> bool:
        copies = slot > 0 if node.op_type == "Where" else slot == 0 and moves(node)
        return node.op_type == "Exp" or (copies and all(map(is_exponent, node.outputs)))

    uses = [(use.node, use.idx) for use in value.uses()]
    return bool(uses) and not value.is_graph_output() and all(starmap(raises, uses))


def _clamped_at_zero(value: ir.Value) -> bool:
    """Return whether every reader replaces negative elements of `value` with a constant."""
    uses = [(use.node, use.idx) for use in value.uses()]
    if any(node.op_type == "Clip" and slot for node, slot in uses):
        return False  # A bound: as the upper one, it passes on what is negative.
    bounds = [split_constant(n.outputs[0], "Max", "Clip") for n, _ in uses if n.op_type != "Relu"]
    is_read = bool(uses) and not value.is_graph_output()
    return is_read and all(b is not None and b[1] >= 0.0 for b in bounds)


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
        extreme = kinds.get(kind)
        if extreme is None or (value < extreme[0] if kind == "margin" else value > extreme[0]):
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
    for node in network.all_nodes():
        if not roles[node_name(node)].free:
            continue
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
    model: ir.Model,
    roles: Roles,
    fmt: Format,
    inner: InnerNumbers,
    chosen: Sequence[int],
    drawn: Mapping[TensorName, int] = MappingProxyType({}),
) -> dict[NodeName, View]:
    """Return the views that measure cancellation and margins, by node.

    Args:
        network: The model.
        model: A copy, to which nodes are added.
        roles: Role per node; only nodes that may be low and NonMaxSuppression are measured.
        fmt: The low format, the unit of margins.
        inner: Collects the numbers.
        chosen: The samples to view.
        drawn: Sizes of results of which cancellation is measured on drawn elements.
    """
    opset = opset_of(model)

    def add(node: NodeName, kind: Kind, value: float, place: int) -> None:
        inner.add(node, kind, value, chosen[place])

    def cancelling(node: ir.Node, copy: ir.Node) -> View | None:
        name, result = node_name(node), node.outputs[0]
        made = _subtraction(copy, f"halfwise::cancelled::{name}", opset)
        if made is None:
            return None
        nodes, total = made
        model.graph.insert_after(copy, nodes)
        is_sum = node.op_type in ("Add", "Sub")
        counting = {
            "constant": is_sum and not all(map(varies, node.inputs)),
            "positive": is_sum and _clamped_at_zero(result),
            "exponent": is_sum and is_exponent(result),
        }

        def visit(place: int, largest: NDArray[np.float32], total: NDArray[np.float32]) -> None:
            beyond = inner.worst(name, "cancellation")
            ratio = cancellation(largest, total, **counting, beyond=beyond)
            add(name, "cancellation", ratio, place)

        tensors = tensor_name(nodes[-1].outputs[0]), tensor_name(total)
        return View(tensors, visit, drawn=drawn.get(tensor_name(result), 0))

    measuring: dict[NodeName, View] = {}
    for node, copy in zip(network.nodes(), list(model.graph), strict=True):
        name = node_name(node)
        view = None
        # NonMaxSuppression takes no FP16, but its input scores may have been rounded.
        if roles[name].free or node.op_type == "NonMaxSuppression":
            view = margin_view(node, fmt, partial(add, name, "margin"))
        if roles[name].free and view is None:
            view = cancelling(node, copy)
        if view is not None:
            measuring[name] = view
    return measuring


def with_smallest(model: ir.Model, tensors: Iterable[TensorName]) -> dict[TensorName, TensorName]:
    """Add nodes that compute the smallest non-zero magnitude of tensors; return their outputs.

    The result is inf where all elements are zero; no element may be NaN. The model has opset 9 or
    later.
    """
    graph, smallest = model.graph, {}
    values = {v.name: v for v in (*graph.inputs, *(v for n in graph for v in n.outputs))}
    none = add_constant(graph, "halfwise::inf", np.array(np.inf, np.float32))
    for tensor in tensors:
        value, prefix = values[tensor], f"halfwise::smallest::{tensor}"
        magnitude = new_node("Abs", [value], f"{prefix}::abs")
        counts = cast(value, ir.DataType.BOOL, f"{prefix}::nonzero")
        wanted = [counts.outputs[0], magnitude.outputs[0], none]
        nonzero = new_node("Where", wanted, f"{prefix}::of")
        least = new_node("ReduceMin", nonzero.outputs, prefix)
        nodes = [magnitude, counts, nonzero, least]
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], nodes)
        else:
            graph.insert_after(producer, nodes)
        smallest[tensor] = tensor_name(least.outputs[0])
    return smallest


def _constant_max(value: ir.Value | None) -> float:
    if value is None or value.const_value is None or not value.is_initializer():
        return float("nan")
    return float(np.max(np.asarray(constant_array(value), np.float32), initial=-np.inf))


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
            axes, by_input, attributes = _axes(range(2, ins[0].shape.rank()), prefix, opset)
            return [*axes, new_node("ReduceL1", [ins[0], *by_input], prefix, attributes)]
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
    array = ir.Tensor(np.array(axes, np.int64))
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
    axes, by_input, attributes = _axes([axis], prefix, opset)
    largest = new_node("ReduceMax", [*inputs, *by_input], f"{prefix}::max", attributes)
    return [*nodes, *axes, largest, new_node("Reciprocal", [largest.outputs[0]], prefix)]
