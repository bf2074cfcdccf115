"""Patterns that could be one node: each gets a replacement, or a reason why it stays."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.dataflow import nodes_between
from halfwise.graph.model import (
    Attribute,
    Names,
    Network,
    Writer,
    graphs_of,
    node_name,
    tensor_name,
    values_of,
)
from halfwise.graph.norms import Normalisation, read_normalisations
from halfwise.graph.reading import activations
from halfwise.graph.written_out import read_softmaxes
from halfwise.records import NodeName, TensorName


@dataclass(frozen=True, eq=False)
class Replacement:
    """A node that computes `output` from `x`.

    Attributes:
        op: Its operator, of the default domain.
        x: Name of its first input in the network.
        output: Name of its output, which it takes over.
        attributes: Its attributes.
        constants: Its other inputs, f32, by the last part of their names.
    """

    op: str
    x: TensorName
    output: TensorName
    attributes: Mapping[str, Attribute]
    constants: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True)
class Replaced:
    """What a replacement did to the graph.

    Attributes:
        removed: Removed nodes, in graph order.
        added: Added nodes, in graph order.
    """

    removed: tuple[NodeName, ...]
    added: tuple[NodeName, ...]


def replace_all(model: ir.Model, replacements: Iterable[Replacement]) -> list[Replaced]:
    """Make the replacements, in place; return what each did.

    Nodes that become unused are removed with the first replacement that leaves them unused. Other
    nodes and values keep their names.
    """
    values = {v.name: v for graph in graphs_of(model) for v in values_of(graph)}
    names = Names(graphs_of(model))
    done = []
    for replacement in replacements:
        output = values[replacement.output]
        new, result = _made(replacement, values[replacement.x], model, names)
        values[replacement.output] = result
        removed = put_in_place(output, new, result, names)
        done.append(Replaced(removed, tuple(node_name(n) for n in new)))
    return done


def put_in_place(
    output: ir.Value, new: Sequence[ir.Node], result: ir.Value, names: Names
) -> tuple[NodeName, ...]:
    """Replace the nodes that compute `output` by `new`, whose `result` takes its name.

    Returns:
        The removed nodes, whose outputs nothing reads any more, in graph order.
    """
    root = output.producer()
    assert root is not None
    root.prepend(new)
    result.type, result.shape = output.type, output.shape
    name = output.name
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    output.name, result.name = names.take(f"{name}_before"), name
    return tuple(node_name(n) for n in _remove_unused(root))[::-1]


def _made(
    made: Replacement, x: ir.Value, model: ir.Model, names: Names
) -> tuple[list[ir.Node], ir.Value]:
    writer = Writer(model, _stem(made.output), names)
    constants = [writer.constant(part, array) for part, array in made.constants.items()]
    result = writer.op(made.op, x, *constants, **made.attributes)
    return writer.made, result


def _stem(output: TensorName) -> str:
    """Return the prefix of node names: the tensor's path without the operator."""
    path = output.rsplit("/", 1)[0]
    return path or str(output)


def _remove_unused(root: ir.Node) -> Iterator[ir.Node]:
    """Remove `root` and all nodes before it that become unused; yield them, last first."""
    graph, waiting = root.graph, [root]
    assert graph is not None
    while waiting:
        node = waiting.pop(0)
        if node.graph is not graph or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        before = [v.producer() for v in node.inputs if v is not None]
        yield node
        graph.remove(node, safe=True)
        waiting += [n for n in before if n is not None]


FIRST_OPSET = {"LayerNormalization": 17, "Gelu": 20, "RMSNormalization": 23}
"""The operators that replace patterns, with their first opset (ONNX operator changelog)."""
OF_ANY_OPSET = ("InstanceNormalization", "LogSoftmax", "Softmax")
"""Others that do."""


_Planned = tuple[ir.Value, ir.Value, str, Replacement | str]
"""Input, output, operator, and the replacement or the reason why the pattern stays."""


def _gelus(network: Network) -> Iterator[_Planned]:
    for gelu in activations(network, "Gelu"):
        tanh = any(node.op_type == "Tanh" for node in gelu.nodes)
        attributes = {"approximate": "tanh"} if tanh else {}
        x, output = tensor_name(gelu.x), tensor_name(gelu.output)
        yield gelu.x, gelu.output, "Gelu", Replacement("Gelu", x, output, attributes)


def _softmaxes(network: Network) -> Iterator[_Planned]:
    for softmax in read_softmaxes(network):
        if softmax.axis is None:
            continue
        attributes = {"axis": softmax.axis}
        x, output = tensor_name(softmax.x), tensor_name(softmax.output)
        yield softmax.x, softmax.output, softmax.op, Replacement(softmax.op, x, output, attributes)


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
    network: Network, available: Collection[str], *, opset: int | None = None
) -> list[Candidate]:
    """Return the patterns of a network.

    Args:
        network: The model.
        available: The target's operators among `FIRST_OPSET` and `OF_ANY_OPSET`.
        opset: The opset of the result; None for the model's own.
    """
    opset = network.opset if opset is None else opset
    places = {node: place for place, node in enumerate(network.all_nodes())}
    ends = {value for node in places for value in node.outputs}
    planned: list[_Planned] = [
        *((n.x, n.output, n.kind, _norm_plan(n, available)) for n in read_normalisations(network)),
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
    return made


def _why_not(op: str, x: ir.Value, opset: int, available: Collection[str]) -> str:
    if x.dtype != ir.DataType.FLOAT:
        return f"it computes in {'an unknown type' if x.dtype is None else x.dtype.name}"
    if op not in available:
        return f"the target has no {op}"
    first = FIRST_OPSET.get(op, 1)
    return f"{op} needs opset {first}; the model has {opset}" if opset < first else ""


def _norm_plan(norm: Normalisation, available: Collection[str]) -> Replacement | str:
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
    if norm.axes != last:
        axes = ", ".join(map(str, norm.axes))
        return f"it normalises over axis {axes} of {rank}, and {norm.kind} over the last axes"
    constants = {"weight": _whole(norm.weight, norm, sizes)}
    if norm.bias is not None:
        constants["bias"] = _whole(norm.bias, norm, sizes)
    return Replacement(
        norm.kind,
        tensor_name(norm.x),
        tensor_name(norm.output),
        {"axis": -len(norm.axes), "epsilon": norm.eps},
        constants,
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
