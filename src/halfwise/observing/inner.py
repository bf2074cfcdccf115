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
from halfwise.emulation.rounding import Steps
from halfwise.formats import Format
from halfwise.graph.model import (
    Network,
    add_constant,
    is_standard,
    node_name,
    opset_of,
    small_constant,
    tensor_name,
)
from halfwise.graph.reading import moves, scalar, split_constant
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


def _subtraction(node: ir.Node, steps: Steps, opset: int) -> tuple[ir.Value, ir.Value] | None:
    """Return max(|a|, |b|), computed by new steps, and a ± b where a node adds or subtracts.

    None if the node subtracts nothing that varies, and before opset 8, where Max takes only
    operands of one shape.
    """
    if opset < 8:
        return None
    if is_standard(node, "Add", "Sub"):
        a, b = node.inputs
        if not (varies(a) or varies(b)) or not (is_float(a) and is_float(b)):
            return None
        return _largest(a, b, steps), node.outputs[0]
    value = node.inputs[0] if is_standard(node, *CENTRING) else None
    if value is None or not is_float(value):
        return None
    last = 2
    if node.op_type == "LayerNormalization":
        axis, last = {"axis": node.attributes.get_int("axis", -1)}, 1
        row = steps.op("Flatten", [value], axis)
    else:
        # Of each sample, the elements of one channel or group; 0 copies a size.
        groups = node.attributes.get_int("num_groups", 0)
        sizes = [*(value.shape or ())][1 if groups else 2 :]
        known = [size for size in sizes if isinstance(size, int)]
        # A size is not inferred where another may be 0, as that of a batch.
        rest = math.prod(known) // (groups or 1) if value.shape and known == sizes else -1
        row = steps.op("Reshape", [value, steps.integers([0, groups, rest])])
    if node.op_type == "BatchNormalization":
        means, graph = small_constant(node.inputs[3]), node.graph
        if means is None or not isinstance(graph, ir.Graph):
            return None
        mean = add_constant(graph, steps.next_name("mean"), means.reshape(-1, 1))
    else:
        mean = steps.reduced("ReduceMean", row, [last], opset)
    return _largest(row, mean, steps), steps.op("Sub", [row, mean])


def _largest(a: ir.Value | None, b: ir.Value | None, steps: Steps) -> ir.Value:
    return steps.op("Max", [_magnitude(a, steps), _magnitude(b, steps)])


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
            case "Pow" if (scalar(node.inputs[1]) or 0.0) >= 2:
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
        steps = Steps(f"halfwise::sum::{name}")
        if (total := _summing_twin(node, steps, opset)) is not None:
            model.graph.insert_after(node, steps.nodes)
            sums[tensor_name(total)] = name
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
        steps = Steps(f"halfwise::cancelled::{name}")
        made = _subtraction(copy, steps, opset)
        if made is None:
            return None
        model.graph.insert_after(copy, steps.nodes)
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

        tensors = tuple(map(tensor_name, made))
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
        value, steps = values[tensor], Steps(f"halfwise::smallest::{tensor}")
        counts = steps.op("Cast", [value], {"to": int(ir.DataType.BOOL)}, ir.DataType.BOOL)
        nonzero = steps.op("Where", [counts, steps.op("Abs", [value]), none])
        least = steps.op("ReduceMin", [nonzero])
        producer = value.producer()
        if producer is None:
            graph.insert_before(graph[0], steps.nodes)
        else:
            graph.insert_after(producer, steps.nodes)
        smallest[tensor] = tensor_name(least)
    return smallest


def _summing_twin(node: ir.Node, steps: Steps, opset: int) -> ir.Value | None:
    """Return the sums of `node`, computed by new steps; None if it has no sums."""
    ins = list(node.inputs)
    match node.op_type:
        case "MatMul" | "Conv" | "Gemm":
            return _product_sum(node, steps, opset)
        case "ReduceSum":
            magnitudes = steps.op("Abs", ins[:1])
            return steps.op("ReduceSum", [magnitudes, *ins[1:]], node.attributes)
        case "ReduceMean":
            return steps.op("ReduceL1", ins, node.attributes)
        case "GlobalAveragePool" if ins[0] is not None and ins[0].shape is not None:
            return steps.reduced("ReduceL1", ins[0], range(2, ins[0].shape.rank()), opset)
        case "Softmax":
            value, axis = node.outputs[0], node.attributes.get_int("axis", 1 if opset < 13 else -1)
            if opset < 13:
                # In these opsets, Softmax flattens its input to two axes.
                value, axis = steps.op("Flatten", [value], {"axis": axis}), 1
            return steps.op("Reciprocal", [steps.reduced("ReduceMax", value, [axis], opset)])
    return None


def _product_sum(node: ir.Node, steps: Steps, opset: int) -> ir.Value:
    ins, attributes = list(node.inputs), dict(node.attributes)
    factors = [_magnitude(value, steps) for value in ins[:2]]
    bias: list[ir.Value | None] = []
    if node.op_type == "Gemm":
        # Before opset 11 the bias is required.
        bias = ins[2:] if opset < 11 else []
        attributes |= {"alpha": ir.AttrFloat32("alpha", 1.0), "beta": ir.AttrFloat32("beta", 0.0)}
    return steps.op(node.op_type, [*factors, *bias], attributes)


def _magnitude(value: ir.Value | None, steps: Steps) -> ir.Value:
    """Return |value|; a small constant's is computed once."""
    array, graph = small_constant(value), value.graph if value is not None else None
    if value is None or array is None or not isinstance(graph, ir.Graph):
        return steps.op("Abs", [value])
    name = f"halfwise::abs::{value.name}"
    return graph.initializers.get(name) or add_constant(graph, name, np.abs(array))
