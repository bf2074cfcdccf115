"""Replace many nodes by one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.model import Names, add_constant, graphs_of, node_name
from halfwise.graph.roles import bodies
from halfwise.records import NodeName, TensorName

_LARGEST_PART = 1000
"""Nodes between two values above which they are not run alone."""

Attribute = float | int | str | Sequence[int]


@dataclass(frozen=True, eq=False)
class Replacement:
    """A node that computes `output` from `x`.

    Attributes:
        op: Its operator, of the default domain.
        x: Name of its first input in the network.
        output: Name of its output, which it takes over.
        attributes: Its attributes.
        constants: Its other inputs, f32, by the last part of their names.
        order: Permutation of the axes of x before the node, undone after it; None if not needed.
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
    values = {
        v.name: v for v in (*model.graph.inputs, *(o for n in model.graph for o in n.outputs))
    }
    names = Names(graphs_of(model))
    done = []
    for replacement in replacements:
        output = values[replacement.output]
        new, result = _made(replacement, values[replacement.x], model.graph, names)
        values[replacement.output] = result
        removed = put_in_place(model.graph, output, new, result, names)
        done.append(Replaced(removed, tuple(node_name(n) for n in new)))
    return done


def put_in_place(
    graph: ir.Graph, output: ir.Value, new: Sequence[ir.Node], result: ir.Value, names: Names
) -> tuple[NodeName, ...]:
    """Replace the nodes that compute `output` by `new`, whose `result` takes its name.

    Returns:
        The removed nodes, whose outputs nothing reads any more, in graph order.
    """
    root = put_before(graph, output, new, result, names)
    return tuple(node_name(n) for n in _remove_unused(graph, root))[::-1]


def put_before(
    graph: ir.Graph, output: ir.Value, new: Sequence[ir.Node], result: ir.Value, names: Names
) -> ir.Node:
    """Make all readers of `output` read `result`, computed by `new`, under the same name instead.

    Returns:
        The node that computes `output`, which stays behind the new nodes, unread.
    """
    root = output.producer()
    assert root is not None
    graph.insert_before(root, new)
    result.type, result.shape = output.type, output.shape
    name = output.name
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    output.name, result.name = names.take(f"{name}_before"), name
    return root


def exactly(made: Replacement, x: NDArray[np.float32]) -> NDArray[np.float64] | None:
    """Return the result of a LayerNorm or RMSNorm on f32[*shape of x], computed in FP64.

    None for other operators. NaN and infinities propagate as in NumPy.
    """
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
    """Return a model of the replacement's nodes only, from `x` to its output.

    Args:
        replacement: The replacement.
        x: The value in `source` that it reads, with type and shape.
        source: The model that it reads from; supplies the versions of the operator sets.
    """
    start = ir.Value(name=x.name, type=x.type, shape=x.shape)
    graph = ir.Graph([start], [], nodes=[], opset_imports=dict(source.opset_imports), name="alone")
    model = ir.Model(graph, ir_version=source.ir_version)
    nodes, result = _made(replacement, start, graph, Names(graphs_of(model)))
    graph.extend(nodes)
    result.name, result.type = replacement.output, x.type
    graph.outputs.append(result)
    return model


def between(
    graph: ir.Graph, x: ir.Value, output: ir.Value, places: Mapping[ir.Node, int]
) -> ir.Graph | None:
    """Return a copy of the part of `graph` that computes `output` from `x` and constants alone.

    It takes time for that part only; ONNX IR's `extract` takes time for the whole graph.

    Args:
        graph: The graph of both values.
        x: The start.
        output: The end.
        places: Each node's place in the graph.

    Returns:
        The part; None if there is none, if it is large, or if a node of it has bodies.
    """
    constants, nodes = set[ir.Value](), set[ir.Node]()
    waiting = [output]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value is x or node in nodes:
            continue
        if value.is_initializer():
            constants.add(value)
        elif node is None or bodies(node) or len(nodes) == _LARGEST_PART:
            return None
        else:
            nodes.add(node)
            waiting += [v for v in node.inputs if v is not None]
    part = ir.GraphView(
        [x],
        [output],
        nodes=sorted(nodes, key=places.__getitem__),
        initializers=tuple(constants),
        opset_imports=graph.opset_imports,
        name=graph.name,
    )
    return part.clone()


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
    """Return the prefix of node names: the tensor's path without the operator."""
    path = output.rsplit("/", 1)[0]
    return path or str(output)


def _remove_unused(graph: ir.Graph, root: ir.Node) -> Iterator[ir.Node]:
    """Remove `root` and all nodes before it that become unused; yield them, last first."""
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        if node.graph is not graph or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        before = [v.producer() for v in node.inputs if v is not None]
        yield node
        graph.remove(node, safe=True)
        waiting += [n for n in before if n is not None]
