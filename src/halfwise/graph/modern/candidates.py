"""Patterns that could be one node: each gets a replacement, or a reason why it stays.

Decomposed Softmax and LogSoftmax are read here, exactly: one axis, nothing added to the sum.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.dataflow import nodes_between
from halfwise.graph.model import Network, constant_array, is_standard, node_name, tensor_name
from halfwise.graph.modern.replacing import Replacement
from halfwise.graph.norms import GroupNorm, Normalisation, Unread, read_groups, read_normalisations
from halfwise.graph.patterns.activations import gelus
from halfwise.graph.reading import Nodes, axes_of, is_constant, scalar
from halfwise.records import NodeName

BY_AXIS = 13
"""From this opset on, Softmax reduces one axis; before, it reduced all axes from its axis on."""


@dataclass(frozen=True, eq=False)
class WrittenSoftmax:
    """A Softmax or LogSoftmax that was read; `axis` is not negative."""

    op: str
    x: ir.Value
    output: ir.Value
    axis: int


def read_softmaxes(network: Network) -> Iterator[WrittenSoftmax]:
    """Yield exp(x) / Σ exp(x), exp(x) · (1 / Σ exp(x)) and x - log Σ exp(x), in graph order."""
    for node in network.nodes():
        exp = exponential_of(node)
        axis = None if exp is None else summed_axis(node)
        if exp is None or axis is None:
            continue
        x, total = exp.inputs[0], node.outputs[0]
        assert x is not None
        assert x.shape is not None
        if network.opset < BY_AXIS and axis != x.shape.rank() - 1:
            continue
        for output, op in _ends(total, exp, x):
            yield WrittenSoftmax(op, x, output, axis)


def exponential_of(node: ir.Node) -> ir.Node | None:
    """Return the Exp whose result a ReduceSum sums; None for others."""
    value = node.inputs[0] if is_standard(node, "ReduceSum") else None
    exp = None if value is None else value.producer()
    return exp if exp is not None and is_standard(exp, "Exp") and exp.inputs[0] else None


def summed_axis(node: ir.Node) -> int | None:
    """Return the axis, not negative, of a reduction over one axis that it keeps; else None."""
    x, axes = node.inputs[0], axes_of(node)
    if x is None or not x.shape or axes is None or len(axes) != 1:
        return None
    given = node.inputs[1] if len(node.inputs) > 1 else None
    known = given is None or (given.const_value is not None and constant_array(given).size == 1)
    kept = bool(node.attributes.get_int("keepdims", 1))
    return axes[0] % x.shape.rank() if kept and known else None


def _ends(total: ir.Value, exp: ir.Node, x: ir.Value) -> Iterator[tuple[ir.Value, str]]:
    """Yield the results of a sum of exponentials, and which operator of x each is."""
    for use in total.uses():
        node, result = use.node, use.node.outputs[0]
        if is_standard(node, "Div") and list(node.inputs) == [exp.outputs[0], total]:
            yield result, "Softmax"
        elif is_standard(node, "Reciprocal") or (
            is_standard(node, "Div") and use.idx == 1 and scalar(node.inputs[0]) == 1.0
        ):
            yield from (
                (u.node.outputs[0], "Softmax")
                for u in result.uses()
                if is_standard(u.node, "Mul") and set(u.node.inputs) == {exp.outputs[0], result}
            )
        elif is_standard(node, "Log"):
            yield from (
                (u.node.outputs[0], "LogSoftmax")
                for u in result.uses()
                if is_standard(u.node, "Sub") and list(u.node.inputs) == [x, result]
            )


FIRST_OPSET = {
    "LayerNormalization": 17,
    "Gelu": 20,
    "GroupNormalization": 21,
    "RMSNormalization": 23,
}
"""The operators that replace patterns, with their first opset (ONNX operator changelog).

GroupNormalization came in opset 18 with weights per group; ONNX's checker refuses that version.
"""


_Planned = tuple[ir.Value, ir.Value, str, Replacement | str]
"""Input, output, operator, and the replacement or the reason why the pattern stays."""


def _gelus(network: Network) -> Iterator[_Planned]:
    """Yield the GELUs of the main graph that have one input and one output.

    They are recognised by form alone; only a comparison shows whether the constants are GELU's.
    """
    for nodes in gelus(network):
        inputs, outputs = _borders(nodes)
        if len(inputs) == 1 == len(outputs):
            x, output = inputs.pop(), outputs.pop()
            tanh = any(n.op_type == "Tanh" for n in nodes)
            attributes = {"approximate": "tanh"} if tanh else {}
            plan = Replacement("Gelu", tensor_name(x), tensor_name(output), attributes)
            yield x, output, "Gelu", plan


def _softmaxes(network: Network) -> Iterator[_Planned]:
    for found in read_softmaxes(network):
        attributes = {"axis": found.axis}
        x, output = tensor_name(found.x), tensor_name(found.output)
        yield found.x, found.output, found.op, Replacement(found.op, x, output, attributes)


def _borders(nodes: Nodes) -> tuple[set[ir.Value], set[ir.Value]]:
    """Return the non-constant values that nodes read from outside, and those read outside."""
    made = {v for n in nodes for v in n.outputs}
    read = {v for n in nodes for v in n.inputs if v is not None}
    outside = {v for v in made if v.is_graph_output() or any(u.node not in nodes for u in v.uses())}
    return {v for v in read - made if not is_constant(v)}, outside


@dataclass(frozen=True, eq=False)
class Candidate:
    """A pattern that is, or looks like, a single operator.

    Attributes:
        op: The operator.
        nodes: The known nodes of the pattern, in graph order.
        replacement: What replaces it; None if it stays.
        reason: Why it stays; empty if it is replaced.
    """

    op: str
    nodes: tuple[NodeName, ...]
    replacement: Replacement | None
    reason: str = ""


def candidates(
    network: Network,
    available: Collection[str],
    *,
    transposes: bool = False,
    opset: int | None = None,
) -> list[Candidate]:
    """Return the patterns of the main graph.

    Args:
        network: The model.
        available: The target's operators among the keys of `FIRST_OPSET`, plus
            InstanceNormalization, Softmax and LogSoftmax if wanted.
        transposes: Whether a norm over other than the last axes may get Transposes around it.
        opset: The opset of the result; None for the model's own.
    """
    opset = network.opset if opset is None else opset
    found = list(read_normalisations(network))
    groups = list(read_groups(network, found))
    grouped = "GroupNormalization" in available and opset >= FIRST_OPSET["GroupNormalization"]
    inside = {g.normal for g in groups} if grouped else set()
    read = [n for n in found if isinstance(n, Unread) or n.output not in inside]
    unread = [
        Candidate("normalisation", (node_name(n.root),), None, _unread(n))
        for n in read
        if isinstance(n, Unread)
    ]
    places = {node: place for place, node in enumerate(network.nodes())}
    ends = {value for node in places for value in node.outputs}
    planned: list[_Planned] = [
        *(
            (n.x, n.output, n.kind, _norm_plan(n, available, transposes=transposes))
            for n in read
            if isinstance(n, Normalisation)
        ),
        *map(_group, groups),
        *_gelus(network),
        *(_softmaxes(network) if "Softmax" in available else ()),
    ]
    made = []
    for x, output, op, plan in planned:
        inner = nodes_between(x, output) & places.keys() if output in ends else ()
        nodes = tuple(node_name(n) for n in sorted(inner, key=places.__getitem__))
        reason = _why_not(plan.op if isinstance(plan, Replacement) else op, x, opset, available)
        reason = reason or (plan if isinstance(plan, str) else "")
        usable = plan if isinstance(plan, Replacement) and not reason else None
        made.append(Candidate(op, nodes, usable, reason))
    return made + unread


def _unread(found: Unread) -> str:
    over = "" if found.axes is None else f" over axes {', '.join(map(str, found.axes))}"
    return f"its exact form{over} is not recognised"


def _why_not(op: str, x: ir.Value, opset: int, available: Collection[str]) -> str:
    if x.dtype != ir.DataType.FLOAT:
        return f"it computes in {'an unknown type' if x.dtype is None else x.dtype.name}"
    if op not in available:
        return f"the target has no {op}"
    first = FIRST_OPSET.get(op, 1)
    return f"{op} needs opset {first}; the model has {opset}" if opset < first else ""


def _norm_plan(
    norm: Normalisation, available: Collection[str], *, transposes: bool
) -> Replacement | str:
    """Return the replacement of a normalisation, or why there is none."""
    if not norm.exact:
        return "it is bounded, or computes in lower precision inside"
    assert norm.x.shape is not None
    rank = norm.rank
    last = tuple(range(rank - len(norm.axes), rank))
    sizes = tuple(norm.x.shape[axis] for axis in norm.axes)
    if not all(isinstance(size, int) for size in sizes):
        return "a normalised axis is dynamic, so the size of the weight is unknown"
    if rank >= 4 and norm.axes == tuple(range(2, rank)) and norm.varying <= {1}:
        return _instance(norm, available)
    if not norm.varying.issubset(norm.axes):
        return "its weight varies along an axis that is not normalised"
    order = None
    if norm.axes != last:
        if not transposes:
            axes = ", ".join(map(str, norm.axes))
            return (
                f"it normalises over axis {axes} of {rank}: {norm.kind} then needs a "
                "Transpose on either side (--transpose)"
            )
        order = (*(axis for axis in range(rank) if axis not in norm.axes), *norm.axes)
    constants = {"weight": _whole(norm.weight, norm, sizes)}
    if norm.bias is not None:
        constants["bias"] = _whole(norm.bias, norm, sizes)
    return Replacement(
        norm.kind,
        tensor_name(norm.x),
        tensor_name(norm.output),
        {"axis": -len(norm.axes), "epsilon": norm.eps},
        constants,
        order,
    )


def _instance(norm: Normalisation, available: Collection[str]) -> Replacement | str:
    """Return the InstanceNormalization equal to a per-channel norm, or why there is none."""
    assert norm.x.shape is not None
    channels = norm.x.shape[1]
    if "InstanceNormalization" not in available or norm.kind != "LayerNormalization":
        return "it normalises each channel separately, as InstanceNormalization does"
    if not isinstance(channels, int):
        return "the number of channels is dynamic, so the size of the weight is unknown"
    bias = np.zeros(1) if norm.bias is None else norm.bias
    constants = {"weight": norm.weight, "bias": bias}
    return Replacement(
        "InstanceNormalization",
        tensor_name(norm.x),
        tensor_name(norm.output),
        {"epsilon": norm.eps},
        {
            name: np.broadcast_to(a.reshape(-1), (channels,)).astype(np.float32)
            for name, a in constants.items()
        },
    )


def _whole(
    array: NDArray[np.float64], norm: Normalisation, sizes: tuple[Any, ...]
) -> NDArray[np.float32]:
    """Return a weight in the shape of the normalised axes."""
    assert norm.x.shape is not None
    full = array.reshape((1,) * (norm.x.shape.rank() - array.ndim) + array.shape)
    inner = full.reshape(tuple(full.shape[axis] for axis in norm.axes))
    return np.ascontiguousarray(np.broadcast_to(inner, sizes), np.float32)


def _group(norm: GroupNorm) -> _Planned:
    op = "GroupNormalization"
    plan = Replacement(
        op,
        tensor_name(norm.x),
        tensor_name(norm.output),
        {"epsilon": norm.eps, "num_groups": norm.groups},
        {"weight": norm.weight.astype(np.float32), "bias": norm.bias.astype(np.float32)},
    )
    return norm.x, norm.output, op, plan
