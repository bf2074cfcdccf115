"""What happens inside an op but shows in none of its tensors: sums, cancellation, margins.

Sums are computed in the model: each op that sums gets a twin on
magnitudes. Cancellation and margins need elements, so they are views of tensors. Fused operators
give out what they compute inside: a twin is asked for the scores of an attention, the sum of a
SkipLayerNormalization.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from itertools import starmap
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.emulation.probe import View
from halfwise.emulation.rounding import Steps
from halfwise.formats import Format
from halfwise.graph.dataflow import ancestors
from halfwise.graph.model import (
    Network,
    add_constant,
    is_standard,
    node_name,
    opset_of,
    small_constant,
    tensor_name,
)
from halfwise.graph.reading import moves
from halfwise.graph.roles import Roles, is_float
from halfwise.observing.statistics import margin_view, varies
from halfwise.records import InnerKind, InnerObservation, NodeName, TensorName

CENTRING = frozenset(
    ("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization")
)
"""Operators that subtract a mean from what they read."""

SPLIT_BY_INPUT = 13
"""The first opset whose Split takes sizes as an input."""

EXPONENTS = (-8.0, 12.0)
"""Exponents between which an exponential neither vanishes beside 1 nor overflows in FP16: e⁻⁸ is
below FP16's unit roundoff 2⁻¹¹, and e¹² is beyond 65504."""


def cancellation(
    largest: NDArray[np.float32],
    total: NDArray[np.float32],
    *,
    constant: bool = False,
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
        if not counts.all():
            largest, total = largest[counts], total[counts]
        ratio = np.divide(largest, 1.0 if exponent else np.abs(total), dtype=np.float64)
    # If the median exceeds `beyond`, so do at least half of the elements.
    if not ratio.size or 2 * np.count_nonzero(ratio > beyond) < ratio.size:
        return float("nan")
    # NumPy's own median imports masked arrays first.
    middle = [(ratio.size - 1) // 2, ratio.size // 2]
    median = float(np.partition(ratio, middle, axis=None)[middle].mean())
    return median if median > beyond else float("nan")


def _subtraction(node: ir.Node, steps: Steps, opset: int) -> tuple[ir.Value, ir.Value] | None:
    """Return max(|a|, |b|) where a node adds or subtracts, and the result a ± b.

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
        row, last = steps.op("Flatten", [value], {"axis": node.attributes.get_int("axis", -1)}), 1
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
        mean = add_constant(graph, f"{steps.prefix}::mean", means.reshape(-1, 1))
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


PRODUCTS = ("Conv", "Gemm", "MatMul")
"""Operators that add up products."""
_SPECTRAL = (*PRODUCTS, "Abs", "Add", "Clip", "Max", "Mul", "Pow", "ReduceSum", "Sqrt")
"""Operators between a signal and the logarithm of its spectrum."""


class InnerNumbers(Struct):
    """The worst number of each kind per node so far: the largest, or for margins the smallest."""

    _worst: dict[NodeName, dict[InnerKind, tuple[float, int]]] = {}

    def add(self, node: NodeName, kind: InnerKind, value: float, sample: int) -> None:
        """Add a number; NaN is ignored."""
        if np.isnan(value):
            return
        kinds = self._worst.setdefault(node, {})
        extreme = kinds.get(kind)
        if extreme is None or (value < extreme[0] if kind == "margin" else value > extreme[0]):
            kinds[kind] = (value, sample)

    def worst(self, node: NodeName, kind: InnerKind) -> float:
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


Twins = Callable[[ir.Node, Steps, int], dict[InnerKind, ir.Value]]
"""Collects nodes that compute numbers of a node at an opset, and returns these by kind."""


def with_twins(
    network: Network, roles: Roles, twins: Twins
) -> tuple[ir.Model, dict[TensorName, tuple[NodeName, InnerKind]]]:
    """Return a model without outputs that also computes numbers of nodes that may be low.

    Returns:
        The model, and the node and kind of each of these numbers.
    """
    model = network.copy()
    opset = opset_of(model)
    numbers: dict[TensorName, tuple[NodeName, InnerKind]] = {}
    for node in list(model.graph):
        name = node_name(node)
        if roles[name].free and is_float(node.inputs[0] if node.inputs else None):
            steps = Steps(f"halfwise::twin::{name}")
            found = twins(node, steps, opset)
            model.graph.insert_after(node, steps.nodes)
            numbers |= {tensor_name(value): (name, kind) for kind, value in found.items()}
    # Callers want only the numbers; an output would be fetched on every run.
    model.graph.outputs.clear()
    return model, numbers


def sums(node: ir.Node, steps: Steps, opset: int) -> dict[InnerKind, ir.Value]:
    """Return what bounds the running sums of a node that sums; empty for others.

    That is a twin of the same operator on |inputs|, without bias (added after the sum): Σ|a||b| for
    MatMul, Gemm and Conv, Σ|x| for ReduceSum, ReduceMean and GlobalAveragePool.
    Softmax subtracts the maximum first, so its sum is 1 / its largest probability. Exact up to FP32
    rounding; one run costs about twice plain inference.
    """
    ins = list(node.inputs)
    match node.op_type:
        case "MatMul" | "Conv" | "Gemm":
            total = _product_sum(node, steps, opset)
        case "ReduceSum":
            total = steps.op("ReduceSum", [steps.op("Abs", ins[:1]), *ins[1:]], node.attributes)
        case "ReduceMean":
            total = steps.op("ReduceL1", ins, node.attributes)
        case "GlobalAveragePool" if ins[0] is not None and ins[0].shape is not None:
            total = steps.reduced("ReduceL1", ins[0], range(2, ins[0].shape.rank()), opset)
        case "Softmax":
            total = _softmax_sum(node, steps, opset)
        case _:
            return {}
    return {"sum": total}


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


def _softmax_sum(node: ir.Node, steps: Steps, opset: int) -> ir.Value:
    value, axis = node.outputs[0], node.attributes.get_int("axis", 1 if opset < 13 else -1)
    if opset < 13:
        # In these opsets, Softmax flattens its input to two axes.
        value, axis = steps.op("Flatten", [value], {"axis": axis}), 1
    return steps.op("Reciprocal", [steps.reduced("ReduceMax", value, [axis], opset)])


_MICROSOFT = "com.microsoft"
_ASKED: Mapping[tuple[str, str], tuple[InnerKind, Container[int], Mapping[str, float]]] = {
    ("", "Attention"): ("score", (3,), {"qk_matmul_output_mode": 0}),
    (_MICROSOFT, "GroupQueryAttention"): ("score", (10, 11), {"qk_output": 1, "softcap": 0.0}),
    (_MICROSOFT, "MultiHeadAttention"): ("score", (4, 5), {"unidirectional": 0}),
    (_MICROSOFT, "SkipLayerNormalization"): ("residual", (), {}),
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): ("residual", (), {}),
}
"""Operators whose fourth output is what they compute inside, with its kind. Without some inputs
and with some attributes, scores are those before masks, biases and caps."""


def insides(node: ir.Node, steps: Steps, opset: int) -> dict[InnerKind, ir.Value]:
    """Return what a fused node computes inside: scores, sums, means of squares; empty for others.

    A twin is asked for it. ONNX Runtime's kernels for the CPU answer, those for GPUs may fail. Its
    Attention is a product, a Split, and a MultiHeadAttention; it is left out if it rotates or the
    number of its weights is unknown.
    """
    op_type, inputs, attributes = node.op_type, list(node.inputs), dict(node.attributes)
    if (node.domain, op_type) == (_MICROSOFT, "Attention"):
        op_type, inputs = "MultiHeadAttention", _separate(node, steps, opset)
        attributes = {n: a for n, a in attributes.items() if n in ("num_heads", "scale")}
    if (node.domain, op_type) not in _ASKED or not inputs:
        return {}
    kind, left_out, changed = _ASKED[node.domain, op_type]
    read = [None if slot in left_out else value for slot, value in enumerate(inputs)]
    # Norms give no statistics on the CPU.
    names = ("y", "", "", kind) if kind == "residual" else ("y", "key", "value", kind)
    outputs = [ir.val(n and f"{steps.prefix}::{n}", ir.DataType.FLOAT) for n in names]
    twin = ir.node(
        op_type,
        read,
        {**attributes, **changed},
        domain=node.domain,
        outputs=outputs,
        name=steps.prefix,
    )
    steps.nodes.append(twin)
    if kind == "score":
        return {kind: outputs[-1]}
    squares = steps.op("Mul", [outputs[-1], outputs[-1]])
    return {kind: outputs[-1], "mean-square": steps.reduced("ReduceMean", squares, [-1], opset)}


def _separate(node: ir.Node, steps: Steps, opset: int) -> list[ir.Value | None]:
    """Return the inputs of the MultiHeadAttention in an Attention; none if it has another form."""
    x, weights, bias, _, past = (*node.inputs, None, None, None)[:5]
    width = weights.shape[-1] if weights is not None and weights.shape is not None else None
    if node.attributes.get_int("do_rotary", 0) or not isinstance(width, int):
        return []
    sizes = node.attributes.get_ints("qkv_hidden_sizes", [width // 3] * 3)
    by_input = opset >= SPLIT_BY_INPUT
    read = [steps.op("MatMul", [x, weights]), *([steps.integers(sizes)] if by_input else [])]
    attributes = {"axis": 2} | ({} if by_input else {"split": sizes})
    outputs = [ir.val(f"{steps.prefix}::{name}", ir.DataType.FLOAT) for name in ("q", "k", "v")]
    steps.nodes.append(ir.node("Split", read, attributes, outputs=outputs))
    if past is None:
        return [*outputs, bias]
    cache = [steps.op("Gather", [past, steps.integers(place)]) for place in (0, 1)]
    return [*outputs, bias, None, None, *cache]


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
    opset, spectra = opset_of(model), _read_by_logarithms(network, roles)

    def add(node: NodeName, kind: InnerKind, value: float, place: int) -> None:
        inner.add(node, kind, value, chosen[place])

    def cancelling(node: ir.Node, copy: ir.Node) -> View | None:
        name, result = node_name(node), node.outputs[0]
        steps = Steps(f"halfwise::cancelled::{name}")
        made = _subtraction(copy, steps, opset)
        if node in spectra:
            made = _product_sum(copy, steps, opset), copy.outputs[0]
        if made is None:
            return None
        model.graph.insert_after(copy, steps.nodes)
        is_sum = node.op_type in ("Add", "Sub")
        counting = {
            "constant": is_sum and not all(map(varies, node.inputs)),
            "exponent": is_sum and is_exponent(result),
        }

        def visit(place: int, largest: NDArray[np.float32], total: NDArray[np.float32]) -> None:
            beyond = inner.worst(name, "cancellation")
            ratio = cancellation(largest, total, **counting, beyond=beyond)
            add(name, "cancellation", ratio, place)

        return View(tuple(map(tensor_name, made)), visit, drawn=drawn.get(tensor_name(result), 0))

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


def _read_by_logarithms(network: Network, roles: Roles) -> set[ir.Node]:
    """Return the products whose results a logarithm reads, however small: bins of a spectrum.

    Beside loud ones, quiet ones are sums of large terms that cancel.
    """

    def before(node: ir.Node) -> list[ir.Node | None]:
        passes = is_standard(node, "Log", *_SPECTRAL) or moves(node)
        return [v.producer() for v in node.inputs if v is not None and is_float(v)] * passes

    def counts(node: ir.Node) -> bool:
        return is_standard(node, *PRODUCTS) and roles[node_name(node)].free

    logarithms = (node for node in network.nodes() if is_standard(node, "Log"))
    return {node for log in logarithms for node in ancestors([log], before, counts)}
