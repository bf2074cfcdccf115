"""Parts of a network that are not run here: set aside for judging, and written back untouched.

One notion serves operators that only the target has (TensorRT's plugins), draws of random numbers,
and an If whose condition the inputs fix. What such a part reads becomes an output, and is judged;
what it computes becomes an input that judging supplies, or what follows is set aside with it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.loading import infer_again
from halfwise.graph.model import (
    Names,
    Network,
    add_constant,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    tensor_name,
    values_of,
)
from halfwise.graph.roles import RANDOM, RANDOM_PREFIX
from halfwise.records import NodeName, TensorName

_LIKE = ("RandomNormalLike", "RandomUniformLike")


@dataclass(frozen=True, eq=False)
class Aside:
    """What was set aside of a network.

    Attributes:
        whole: The network with it.
        nodes: The nodes of its main graph that are not run.
        foreign: Those of them that ONNX Runtime does not run; the others draw, or follow.
        draws: Those of them that draw random numbers.
        supplied: Inputs that judging supplies: what these nodes compute.
        read: Values that these nodes read, which are judged.
        shapes: Values of which they read the size alone, each with the output that keeps it.
    """

    whole: Network
    nodes: frozenset[NodeName]
    foreign: tuple[NodeName, ...] = ()
    draws: tuple[NodeName, ...] = ()
    supplied: tuple[TensorName, ...] = ()
    read: tuple[TensorName, ...] = ()
    shapes: Mapping[TensorName, TensorName] = field(default_factory=dict)


def draws(node: ir.Node) -> bool:
    """Return whether a node's outputs are random numbers."""
    return is_standard(node) and (node.op_type in RANDOM or node.op_type.startswith(RANDOM_PREFIX))


def seeded(model: ir.Model) -> ir.Model:
    """Return a copy in which every draw of the main graph has a seed: its own, or its place."""
    copy = model.clone()
    for place, node in enumerate(copy.graph):
        if draws(node) and "seed" not in node.attributes:
            node.attributes["seed"] = ir.AttrFloat32("seed", float(place + 1))
    return copy


def set_aside(
    network: Network, runs: Callable[[ir.Node], bool], stand_ins: Mapping[TensorName, ir.DataType]
) -> tuple[Network, Aside | None]:
    """Return the part of a network that is judged, and what was set aside of it, if anything.

    Args:
        network: In normal form; not changed.
        runs: Whether ONNX Runtime has a node's operator.
        stand_ins: Outputs of operators that it lacks for which the user gives numbers, with their
            types. What follows of other such outputs is set aside too.

    Raises:
        CaseError: a node in a body draws random numbers, or nothing remains to be judged.
    """
    foreign = [n for n in network.nodes() if not all(map(runs, _with_bodies(n)))]
    drawing = [n for n in network.nodes() if draws(n)]
    if not foreign and not drawing:
        return network, None
    supplied = [v for n in drawing for v in n.outputs if v.uses() or v.is_graph_output()]
    supplied += [v for n in foreign for v in n.outputs if v.name in stand_ins]
    apart = _followed([*foreign, *drawing], supplied)
    names = frozenset(map(node_name, apart))
    supplied = [v for v in supplied if any(u.node not in apart for u in v.uses())]
    aside = Aside(
        network,
        names,
        foreign=tuple(map(node_name, foreign)),
        draws=tuple(map(node_name, drawing)),
        supplied=tuple(map(tensor_name, supplied)),
    )
    return _judged(aside, stand_ins)


def _with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.as_graph().all_nodes()


def _followed(nodes: Collection[ir.Node], supplied: Collection[ir.Value]) -> dict[ir.Node, None]:
    """Return nodes and all that depends on their outputs, except on those that are supplied."""
    apart: dict[ir.Node, None] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in apart:
            continue
        apart[node] = None
        for value in node.outputs:
            if value not in supplied:
                waiting += [_outer(use.node, node.graph) for use in value.uses()]
    return apart


def _outer(node: ir.Node, graph: object) -> ir.Node:
    """Return the node of `graph` that is or holds `node`."""
    while node.graph is not graph:
        assert isinstance(node.graph, ir.Graph)
        assert node.graph.parent_node is not None
        node = node.graph.parent_node
    return node


def _judged(aside: Aside, stand_ins: Mapping[TensorName, ir.DataType]) -> tuple[Network, Aside]:
    model = aside.whole.copy()
    graph = model.graph
    apart = [n for n in graph if node_name(n) in aside.nodes]
    for value in [v for n in apart for v in n.outputs if v.name in aside.supplied]:
        dtype = stand_ins.get(tensor_name(value)) or value.dtype or ir.DataType.FLOAT
        given = ir.Value(name=value.name, shape=value.shape, type=ir.TensorType(dtype))
        value.replace_all_uses_with(given, replace_graph_outputs=True)
        graph.inputs.append(given)
    shapes: dict[TensorName, TensorName] = {}
    read: dict[ir.Value, None] = {}
    names = Names(graphs_of(model))
    for node in apart:
        for value in _read(node):
            producer = value.producer()
            if producer is None or producer.graph is not graph or producer in apart:
                continue
            if not is_standard(node, *_LIKE):
                read[value] = None
                continue
            # Only its size counts: it is not judged, but has to stay.
            size = ir.node("Shape", [value], name=names.take(f"{node.name}_size"))
            (length,) = size.outputs
            length.name = names.take(f"{node.name}_size_of")
            length.type = ir.TensorType(ir.DataType.INT64)
            graph.insert_after(producer, size)
            graph.outputs.append(length)
            shapes[tensor_name(value)] = tensor_name(length)
    lost = {v for n in apart for v in n.outputs}
    graph.outputs[:] = [v for v in graph.outputs if v not in lost]
    graph.outputs.extend(v for v in read if not v.is_graph_output())
    for one in (one for node in apart for one in _with_bodies(node)):
        for slot in range(len(one.inputs)):
            one.replace_input_with(slot, None)
    graph.remove(apart, safe=False)
    drop_unused_constants((graph,))
    if not graph.outputs:
        raise CaseError(
            "ONNX Runtime has none of the operators at the model's start: "
            f"{', '.join(sorted({n.op_type for n in apart}))}; nothing remains to be judged.",
            "Give the library with them (--ort-library), or numbers for their outputs "
            "(--plugin-outputs).",
        )
    aside = replace(aside, read=tuple(map(tensor_name, read)), shapes=shapes)
    network = replace(aside.whole, model=model)
    if stand_ins:
        infer_again(network)
    return network, aside


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes in its bodies read."""
    yield from (v for one in _with_bodies(node) for v in one.inputs if v is not None)


def write_back(model: ir.Model, aside: Aside | None) -> ir.Model:
    """Return a mixed model with what was set aside, in FP32; not changed without that.

    Where the mixed model has another type, a Cast is inserted.

    Args:
        model: Made from the judged network; not changed.
        aside: What was set aside of it.
    """
    if aside is None:
        return model
    result, whole = model.clone(), aside.whole.copy()
    names = Names((*graphs_of(result), *graphs_of(whole)))
    for domain, version in whole.opset_imports.items():
        result.opset_imports.setdefault(domain, version)
    graph = result.graph
    there = {v.name: v for v in values_of(graph)}
    for name, size in aside.shapes.items():
        (length,) = (v for v in graph.outputs if v.name == size)
        node = length.producer()
        assert node is not None
        assert node.inputs[0] is not None
        there[name] = node.inputs[0]
        graph.outputs.remove(length)
        graph.remove(node, safe=True)
    apart = [n for n in whole.graph if node_name(n) in aside.nodes]
    ends = [v.name for v in whole.graph.outputs]
    whole.graph.outputs.clear()
    whole.graph.remove(apart, safe=False)
    made = {v.name: v for n in apart for v in n.outputs}
    for node in apart:
        for one in _with_bodies(node):
            for slot, value in enumerate(one.inputs):
                if value is not None and value.graph is whole.graph:
                    here = there.get(value.name) if value.const_value is None else None
                    brought = _constant(graph, value, names) if here is None else here
                    one.replace_input_with(slot, _cast(graph, brought, value.dtype, names))
        if is_standard(node, *_LIKE):
            node.attributes["dtype"] = ir.AttrInt64("dtype", int(node.outputs[0].dtype or 1))
        graph.append(node)
    for value in [v for v in graph.inputs if v.name in aside.supplied]:
        graph.inputs.remove(value)
        value.replace_all_uses_with(_cast(graph, made[value.name], value.dtype, names))
    graph.outputs[:] = [made.get(name) or there[name] for name in ends]
    passes.TopologicalSortPass()(result)
    drop_unused_constants((graph,))
    return result


def _constant(graph: ir.Graph, value: ir.Value, names: Names) -> ir.Value:
    """Return a constant of `graph` equal to one of another graph."""
    assert value.const_value is not None
    return add_constant(graph, names.take(f"{value.name}_aside"), constant_array(value))


def _cast(graph: ir.Graph, value: ir.Value, dtype: ir.DataType | None, names: Names) -> ir.Value:
    """Return `value` in a type, through a Cast if it has another."""
    if dtype is None or value.dtype in (None, dtype):
        return value
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=names.take(f"{value.name}_cast"))
    (made,) = node.outputs
    made.name, made.shape = names.take(f"{value.name}_{dtype.name.lower()}"), value.shape
    made.type = ir.TensorType(dtype)
    graph.append(node)
    return made
