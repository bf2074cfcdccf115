"""What could be one node: found, read, given a replacement or a reason against it, and replaced."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.dataflow import reached
from halfwise.graph.model import Network, add_constant, graphs_of, node_name, tensor_name
from halfwise.graph.modern.groups import GroupNorm, read_groups
from halfwise.graph.modern.reading import Normalisation, Unread, read_normalisations
from halfwise.graph.normal_form import Names
from halfwise.graph.patterns.activations import gelus
from halfwise.graph.patterns.reading import Nodes, is_constant
from halfwise.records import NodeName, TensorName

Attribute = float | int | str | Sequence[int]
FIRST_OPSET = {
    "LayerNormalization": 17,
    "Gelu": 20,
    "GroupNormalization": 21,
    "RMSNormalization": 23,
}
"""The operators that patterns become, and where ONNX has them first (its operator changelog).

GroupNormalization came at 18 with weights by group, and ONNX's checker refuses that version.
"""


@dataclass(frozen=True, eq=False)
class Replacement:
    """A node that gives `output` from `x`.

    Attributes:
        op: Its operator, of the default domain.
        x: Its first input, as it is called in the network.
        output: The tensor that it gives, which keeps its name.
        attributes: Its attributes.
        constants: Its further inputs by the last part of their names: f32.
        order: Permutation of the axes of x before it, undone after it; None for none.
    """

    op: str
    x: TensorName
    output: TensorName
    attributes: Mapping[str, Attribute]
    constants: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Replaced:
    """What a replacement did to the graph.

    Attributes:
        removed: Nodes that are gone, in graph order.
        added: Nodes that came, in graph order.
    """

    removed: tuple[NodeName, ...]
    added: tuple[NodeName, ...]


def replace_all(model: ir.Model, replacements: Iterable[Replacement]) -> list[Replaced]:
    """Make the replacements, in place; return what each did.

    Nodes that nothing reads any more go with the first replacement that leaves them so. Names of
    other nodes and values stay.
    """
    values = {
        v.name: v for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))
    }
    names = Names(graphs_of(model))
    done = []
    for replacement in replacements:
        output = values[replacement.output]
        new, result = _made(replacement, values[replacement.x], model.graph, names)
        root = output.producer()
        assert root is not None
        model.graph.insert_before(root, new)
        result.type, result.shape = output.type, output.shape
        name = output.name
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        output.name, result.name = names.take(f"{name}_before"), name
        values[replacement.output] = result
        removed = [node_name(n) for n in _remove_unused(model.graph, root)]
        done.append(Replaced(tuple(removed[::-1]), tuple(node_name(n) for n in new)))
    return done


def exactly(made: Replacement, x: NDArray[np.float32]) -> NDArray[np.float64] | None:
    """Return what a LayerNorm or RMSNorm gives, computed in FP64; None for other operators."""
    if made.op not in ("LayerNormalization", "RMSNormalization"):
        return None
    axis, eps = made.attributes["axis"], made.attributes["epsilon"]
    assert isinstance(axis, int)
    assert isinstance(eps, float)
    axes = tuple(range(axis, 0))
    wide = x.astype(np.float64)
    wide = wide if made.order is None else wide.transpose(made.order)
    if made.op == "LayerNormalization":
        wide = wide - wide.mean(axes, keepdims=True)
    weight, bias = made.constants["weight"], made.constants.get("bias", np.zeros(1))
    root = np.sqrt((wide**2).mean(axes, keepdims=True) + eps)
    y: NDArray[np.float64] = wide / root * weight + bias
    return y if made.order is None else y.transpose(np.argsort(made.order))


def alone(replacement: Replacement, x: ir.Value, source: ir.Model) -> ir.Model:
    """Return a model of the replacement's nodes alone, from `x` to its output.

    Args:
        replacement: The replacement.
        x: The value in `source` that it reads, with type and shape.
        source: Gives the versions of the operator sets.
    """
    start = ir.Value(name=x.name, type=x.type, shape=x.shape)
    graph = ir.Graph([start], [], nodes=[], opset_imports=dict(source.opset_imports), name="alone")
    model = ir.Model(graph, ir_version=source.ir_version)
    nodes, result = _made(replacement, start, graph, Names(graphs_of(model)))
    graph.extend(nodes)
    result.name, result.type = replacement.output, x.type
    graph.outputs.append(result)
    return model


def _made(
    made: Replacement, x: ir.Value, graph: ir.Graph, names: Names
) -> tuple[list[ir.Node], ir.Value]:
    stem = _stem(made.output)
    nodes = []

    def add(op: str, operands: list[ir.Value], attributes: Mapping[str, Attribute]) -> ir.Value:
        name = names.take(f"{stem}/{op}")
        node = ir.node(op, operands, attributes=dict(attributes), name=name)
        node.outputs[0].name = names.take(f"{name}_output")
        nodes.append(node)
        return node.outputs[0]

    constants = []
    for part, array in made.constants.items():
        constants.append(add_constant(graph, names.take(f"{stem}/{part}"), array))
    if made.order is not None:
        x = add("Transpose", [x], {"perm": made.order})
    result = add(made.op, [x, *constants], made.attributes)
    if made.order is not None:
        back = tuple(int(axis) for axis in np.argsort(made.order))
        result = add("Transpose", [result], {"perm": back})
    return nodes, result


def _stem(output: TensorName) -> str:
    """Return what nodes are named after: the path of the tensor, without the operator."""
    path = output.rsplit("/", 1)[0]
    return path or str(output)


def _remove_unused(graph: ir.Graph, root: ir.Node) -> Iterator[ir.Node]:
    """Remove `root` and all before it that nothing reads any more; yield them, last first."""
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        if node.graph is not graph or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        before = [v.producer() for v in node.inputs if v is not None]
        yield node
        graph.remove(node, safe=True)
        waiting += [n for n in before if n is not None]


_Planned = tuple[ir.Value, ir.Value, str, Replacement | str]
"""What it takes, what it gives, its operator, and what to put in its place or why nothing."""


def _gelus(network: Network) -> Iterator[_Planned]:
    """Yield the GELUs of the main graph that have one input and one output.

    They are told by their form; whether the constants are those of GELU is for a comparison to
    show.
    """
    for nodes in gelus(network):
        inputs, outputs = _borders(nodes)
        if len(inputs) == 1 == len(outputs):
            x, output = inputs.pop(), outputs.pop()
            tanh = any(n.op_type == "Tanh" for n in nodes)
            attributes = {"approximate": "tanh"} if tanh else {}
            plan = Replacement("Gelu", tensor_name(x), tensor_name(output), attributes)
            yield x, output, "Gelu", plan


def _borders(nodes: Nodes) -> tuple[set[ir.Value], set[ir.Value]]:
    """Return what nodes read from outside, constants apart, and what is read of them outside."""
    made = {v for n in nodes for v in n.outputs}
    read = {v for n in nodes for v in n.inputs if v is not None}
    outside = {v for v in made if v.is_graph_output() or any(u.node not in nodes for u in v.uses())}
    return {v for v in read - made if not is_constant(v)}, outside


@dataclass(frozen=True, eq=False)
class Candidate:
    """A pattern that is, or looks like, one operator.

    Attributes:
        op: The operator.
        nodes: Nodes of the pattern, as far as they are known, in graph order.
        replacement: What to put in its place; None where it is left alone.
        reason: Why it is left alone; empty where it is not.
    """

    op: str
    nodes: tuple[NodeName, ...]
    replacement: Replacement | None
    reason: str = ""


def candidates(
    network: Network, available: Collection[str], *, transposes: bool = False
) -> list[Candidate]:
    """Return the patterns of the main graph.

    Args:
        network: The model, at the opset that it shall have.
        available: Operators that the target has, among the keys of `FIRST_OPSET`.
        transposes: Whether a norm over other axes than the last may get Transposes around it.
    """
    found = list(read_normalisations(network))
    groups = list(read_groups(network, found))
    inside = {g.normal for g in groups}
    read = [n for n in found if isinstance(n, Unread) or n.output not in inside]
    unread = [
        Candidate("normalisation", (node_name(n.root),), None, _unread(n))
        for n in read
        if isinstance(n, Unread)
    ]
    places = {node: place for place, node in enumerate(network.nodes())}
    planned: list[_Planned] = [
        *(
            (n.x, n.output, n.kind, _norm_plan(n, transposes=transposes))
            for n in read
            if isinstance(n, Normalisation)
        ),
        *map(_group, groups),
        *_gelus(network),
    ]
    made = []
    for x, output, op, plan in planned:
        nodes = tuple(node_name(n) for n in _between(x, output, places))
        reason = _why_not(op, x, network.opset, available)
        reason = reason or (plan if isinstance(plan, str) else "")
        usable = plan if isinstance(plan, Replacement) and not reason else None
        made.append(Candidate(op, nodes, usable, reason))
    return made + unread


def _unread(found: Unread) -> str:
    over = "" if found.axes is None else f" over axes {', '.join(map(str, found.axes))}"
    return f"its spelling{over} could not be read exactly"


def _why_not(op: str, x: ir.Value, opset: int, available: Collection[str]) -> str:
    if x.dtype != ir.DataType.FLOAT:
        return f"it computes in {'an unknown type' if x.dtype is None else x.dtype.name}"
    if op not in available:
        return f"the target has no {op}"
    first = FIRST_OPSET[op]
    return f"{op} needs opset {first}, and the model has {opset}" if opset < first else ""


def _norm_plan(norm: Normalisation, *, transposes: bool) -> Replacement | str:
    """Return the replacement of a normalisation, or why there is none."""
    assert norm.x.shape is not None
    rank = norm.x.shape.rank()
    last = tuple(range(rank - len(norm.axes), rank))
    sizes = tuple(norm.x.shape[axis] for axis in norm.axes)
    if not all(isinstance(size, int) for size in sizes):
        return "a size of the normalised axes is dynamic, and the weight needs it"
    if rank >= 4 and norm.axes == tuple(range(2, rank)) and norm.weight.size == 1:
        return "it normalises each channel alone: that is an InstanceNormalization"
    order = None
    if norm.axes != last:
        if not transposes:
            axes = ", ".join(map(str, norm.axes))
            return (
                f"it normalises over axis {axes} of {rank}, which {norm.kind} cannot without a "
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


def _between(x: ir.Value, output: ir.Value, places: Mapping[ir.Node, int]) -> tuple[ir.Node, ...]:
    """Return the nodes on ways from `x` to `output`, in graph order."""
    end = output.producer()
    assert end is not None
    ahead = reached([u.node for u in x.uses()], lambda n: _readers(n, places, places[end]))
    back = reached([end], lambda n: (m for m in _makers(n) if m in ahead))
    return tuple(sorted(back.keys() & ahead, key=places.__getitem__))


def _readers(node: ir.Node, places: Mapping[ir.Node, int], last: int) -> Iterator[ir.Node]:
    for output in node.outputs:
        for use in output.uses():
            if places.get(use.node, last + 1) <= last:
                yield use.node


def _makers(node: ir.Node) -> Iterator[ir.Node]:
    return (n for v in node.inputs if v is not None and (n := v.producer()) is not None)
