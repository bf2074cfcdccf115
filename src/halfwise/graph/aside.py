"""Parts of a network that are not run here: set aside for judging, and written back untouched.

One notion serves operators that only the target has (TensorRT's plugins), draws of random numbers,
and an If whose condition the inputs fix. What such a part reads becomes an output, and is judged;
what it computes becomes an input that judging supplies, or what follows is set aside with it.
"""

from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir
from msgspec import Struct
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.bodies import difference_behind
from halfwise.graph.dataflow import reached
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.loading import infer_again
from halfwise.graph.model import (
    Names,
    Network,
    add_constant,
    cast_of,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    tensor_name,
    values_of,
    with_bodies,
)
from halfwise.graph.roles import RANDOM, RANDOM_PREFIX
from halfwise.records import NodeName, TensorName, replace

NOT_JUDGED = "halfwise.not_judged"
"""Metadata of outputs that the user's model lacks: no run returns them unless asked by name."""
_LIKE = ("RandomNormalLike", "RandomUniformLike")


class Aside(Struct, frozen=True, eq=False):
    """What was set aside of a network.

    Attributes:
        whole: The network with it.
        nodes: The nodes of its main graph that are not run.
        foreign: Those of them that ONNX Runtime does not run; the others draw, or follow.
        lacking: The operators that it lacks there, in bodies too.
        draws: Those of them that draw random numbers, in bodies too.
        supplied: Inputs that judging supplies: what these nodes compute.
        read: Values that these nodes read, which are judged.
        shapes: Values of which they read the size alone, each with the output that keeps it.
        branches: The attribute that holds the branch that is judged, by If.
    """

    whole: Network
    nodes: frozenset[NodeName]
    foreign: tuple[NodeName, ...] = ()
    lacking: tuple[str, ...] = ()
    draws: tuple[NodeName, ...] = ()
    supplied: tuple[TensorName, ...] = ()
    read: tuple[TensorName, ...] = ()
    shapes: Mapping[TensorName, TensorName] = {}
    branches: Mapping[NodeName, str] = {}

    @property
    def outputs(self) -> tuple[TensorName, ...]:
        """The model's outputs that are not judged: these nodes compute them."""
        ends = ((v, v.producer()) for v in self.whole.graph.outputs)
        apart = (v for v, made in ends if made is not None and node_name(made) in self.nodes)
        return () if self.branches else tuple(map(tensor_name, apart))

    def differs(self, candidate: Network) -> str | None:
        """Return where what was set aside differs in a candidate; None if nowhere.

        See `difference_behind`; an output or a supplied value that the candidate lacks differs.
        """
        ours = {v.name: v for v in values_of(self.whole.graph)}
        theirs = {v.name: v for v in values_of(candidate.graph)}
        ends = (*self.outputs, *self.supplied)
        if lacking := [name for name in ends if name not in theirs]:
            return lacking[0]
        known = {*self.read, *self.shapes}
        return difference_behind(((ours[name], theirs[name]) for name in ends), known)


def draws(node: ir.Node) -> bool:
    """Return whether a node's outputs are random numbers; Dropout's are if it may be training."""
    if is_standard(node, "Dropout") and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = node.inputs[2].const_value
        return training is None or bool(training.numpy().any())
    return is_standard(node) and (node.op_type in RANDOM or node.op_type.startswith(RANDOM_PREFIX))


def seeded(model: ir.Model) -> ir.Model:
    """Return a copy in which every draw has a seed: its own, or its place."""
    copy = model.clone()
    for place, node in enumerate(copy.graph.all_nodes()):
        if draws(node) and "seed" not in node.attributes:
            seed = ir.AttrInt64 if node.op_type == "Dropout" else ir.AttrFloat32
            node.attributes["seed"] = seed("seed", place + 1)
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
        CaseError: nothing remains to be judged.
    """
    foreign = [n for n in network.nodes() if not all(map(runs, with_bodies(n)))]
    drawing = [n for n in network.nodes() if n not in foreign and any(map(draws, with_bodies(n)))]
    if not foreign and not drawing:
        return network, None
    supplied = [v for n in drawing for v in n.outputs if v.uses() or v.is_graph_output()]
    supplied += [v for n in foreign for v in n.outputs if v.name in stand_ins]
    owners = _owners(network.graph)

    def following(node: ir.Node) -> list[ir.Node]:
        values = [v for v in node.outputs if v not in supplied]
        return [owners[use.node] for v in values for use in v.uses()]

    apart = reached([*foreign, *drawing], following)
    names = frozenset(map(node_name, apart))
    supplied = [v for v in supplied if any(owners[u.node] not in apart for u in v.uses())]
    lacking = (n.op_type for one in foreign for n in with_bodies(one) if not runs(n))
    aside = Aside(
        network,
        names,
        foreign=tuple(map(node_name, foreign)),
        lacking=tuple(dict.fromkeys(lacking)),
        draws=tuple(map(node_name, drawing)),
        supplied=tuple(map(tensor_name, supplied)),
    )
    return _judged(aside, stand_ins)


def _owners(graph: ir.Graph) -> dict[ir.Node, ir.Node]:
    """Return the node of a main graph that is or holds each node."""
    return {inner: node for node in graph for inner in with_bodies(node)}


def outermost(network: Network) -> tuple[ir.Node, ...]:
    """Return the nodes If of the main graph that compute nothing but outputs of the model."""
    return tuple(
        node
        for node in network.nodes()
        if is_standard(node, "If")
        and all(v.is_graph_output() and not v.uses() for v in node.outputs if v.name)
    )


def ending_in_ifs(network: Network) -> Network:
    """Return a network without the Identities between its Ifs and its outputs.

    Exporters name outputs with them (spox, with which Silero's voice detector is made).
    """
    if not any(_names_an_output(node) for node in network.graph):
        return network
    model = network.copy()
    for node in [n for n in model.graph if _names_an_output(n)]:
        (source,), (output,) = node.inputs, node.outputs
        assert source is not None
        name, place = output.name, model.graph.outputs.index(output)
        output.replace_all_uses_with(source, replace_graph_outputs=True)
        remove_nodes(model.graph, [node])
        source.name, source.type, source.shape = name, output.type, output.shape
        model.graph.outputs[place] = source
    return replace(network, model=model)


def _names_an_output(node: ir.Node) -> bool:
    """Return whether all that a node does is to give an output of an If out."""
    source = node.inputs[0] if is_standard(node, "Identity") else None
    if source is None or not node.outputs[0].is_graph_output() or source.is_graph_output():
        return False
    producer = source.producer()
    return producer is not None and is_standard(producer, "If") and len(source.uses()) == 1


def resolve(network: Network, branches: Mapping[NodeName, str]) -> tuple[Network, Aside]:
    """Return a network with one branch in the place of each If, and what was set aside.

    Args:
        network: In normal form; not changed.
        branches: The attribute that holds the branch, by If.
    """
    return _judged(Aside(network, frozenset(branches), branches=branches), {})


def _inline(graph: ir.Graph, node: ir.Node, branch: str) -> None:
    """Put the nodes of an If's branch in front of it, under the names of its outputs."""
    body = node.attributes.pop(branch).as_graph()
    ends, nodes, constants = list(body.outputs), list(body), list(body.initializers.values())
    body.outputs.clear()
    body.remove(nodes)
    body.initializers.clear()
    for value in constants:
        graph.register_initializer(value)
    graph.insert_before(node, nodes)
    for end, output in zip(ends, node.outputs, strict=True):
        if end.producer() not in nodes or ends.count(end) > 1:
            copy = ir.node("Identity", [end], name=f"{output.name}_identity")
            graph.insert_before(node, copy)
            (end,) = copy.outputs  # noqa: PLW2901 - a value of its own
            end.type, end.shape = output.type, output.shape
        name, output.name = output.name, None
        output.replace_all_uses_with(end, replace_graph_outputs=True)
        end.name = name


def _fold(graph: ir.Graph, node: ir.Node, branch: str, names: Names) -> None:
    """Move what only the outputs of an If need from `graph` into one of its branches."""
    given = {v.name: v for v in graph.outputs}
    ends = {v.name: given[v.name] for v in node.outputs if v.name}
    graph.outputs[:] = [v for v in graph.outputs if v.name not in ends]
    inside: dict[ir.Node, None] = {}
    owners = _owners(graph)
    for one in reversed(graph):
        users = [owners[use.node] for v in one.outputs for use in v.uses()]
        is_end = any(v is end for v in one.outputs for end in ends.values())
        kept = any(v.is_graph_output() for v in one.outputs)
        if not kept and (users or is_end) and all(user in inside for user in users):
            inside[one] = None
    nodes = list(inside)[::-1]
    graph.remove(nodes)
    body = ir.Graph([], [], nodes=nodes, name=f"{node.name}_{branch}")
    outputs = []
    for output, end in zip([v for v in node.outputs if v.name], ends.values(), strict=True):
        result = _cast(body, end, output.dtype, names)
        if result.producer() is None or result.producer() not in (*body,):
            copy = ir.node("Identity", [result], name=names.take(f"{output.name}_identity"))
            body.append(copy)
            (result,) = copy.outputs
            result.type, result.shape = output.type, output.shape
        result.name = names.take(f"{output.name}_{branch}")
        outputs.append(result)
    body.outputs.extend(outputs)
    node.attributes[branch] = ir.AttrGraph(branch, body)


def _judged(aside: Aside, stand_ins: Mapping[TensorName, ir.DataType]) -> tuple[Network, Aside]:
    model = aside.whole.copy()
    graph = model.graph
    apart = [n for n in graph if node_name(n) in aside.nodes]
    for value in [v for n in apart for v in n.outputs if v.name in aside.supplied]:
        dtype = stand_ins.get(tensor_name(value)) or value.dtype or ir.DataType.FLOAT
        given = ir.Value(name=value.name, shape=value.shape, type=ir.TensorType(dtype))
        value.replace_all_uses_with(given, replace_graph_outputs=True)
        graph.inputs.append(given)
    for node in apart:
        if node_name(node) in aside.branches:
            _inline(graph, node, aside.branches[node_name(node)])
    shapes: dict[TensorName, TensorName] = {}
    read: dict[ir.Value, None] = {}
    names = Names(graphs_of(model))
    for node in apart:
        for _, _, value in _reads_of(node, graph):
            if value.producer() is None or value.producer() in apart:
                continue
            if not is_standard(node, *_LIKE):
                read[value] = None
                continue
            shapes[tensor_name(value)] = _give_size(graph, node, value, names)
    lost = {v for n in apart for v in n.outputs}
    graph.outputs[:] = [v for v in graph.outputs if v not in lost]
    graph.outputs.extend(v for v in read if not v.is_graph_output())
    remove_nodes(graph, apart)
    if not graph.outputs:
        ops = {node_name(n): _full_name(n) for n in apart}
        first = sorted({ops[name] for name in (*aside.foreign, *aside.draws)})
        raise CaseError(
            "Nothing remains to be judged without what ONNX Runtime lacks or what draws random "
            f"numbers: {', '.join(first)}.",
            "Give the library with them (--ort-library), or numbers for their outputs "
            "(--plugin-outputs).",
        )
    aside = replace(aside, read=tuple(map(tensor_name, read)), shapes=shapes)
    network = replace(aside.whole, model=model)
    if stand_ins:
        infer_again(network)
    return network, aside


def _give_size(graph: ir.Graph, node: ir.Node, value: ir.Value, names: Names) -> TensorName:
    """Return a new output with the size of `value`, which has to stay; no run returns it."""
    producer = value.producer()
    assert producer is not None
    size = ir.node("Shape", [value], name=names.take(f"{node.name}_size"))
    (length,) = size.outputs
    length.name = names.take(f"{node.name}_size_of")
    length.type = ir.TensorType(ir.DataType.INT64)
    length.metadata_props[NOT_JUDGED] = ""
    graph.insert_after(producer, size)
    graph.outputs.append(length)
    return tensor_name(length)


def _take_sizes(
    graph: ir.Graph, sizes: Mapping[TensorName, TensorName]
) -> dict[TensorName, ir.Value]:
    """Remove the outputs of `_give_size`; return the values that they are the sizes of."""
    found: dict[TensorName, ir.Value] = {}
    for name, size in sizes.items():
        (length,) = (v for v in graph.outputs if v.name == size)
        node = length.producer()
        assert node is not None
        assert node.inputs[0] is not None
        found[name] = node.inputs[0]
        graph.outputs.remove(length)
        graph.remove(node, safe=True)
    return found


def remove_nodes(graph: ir.Graph, nodes: Collection[ir.Node]) -> None:
    """Remove nodes whose outputs nobody reads, with all that they read alone."""
    for one in (one for node in nodes for one in with_bodies(node)):
        for slot in range(len(one.inputs)):
            one.replace_input_with(slot, None)
    graph.remove(nodes, safe=False)
    drop_unused_constants((graph,))


def _full_name(node: ir.Node) -> str:
    return node.op_type if is_standard(node) else f"{node.domain}::{node.op_type}"


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
    there = {tensor_name(v): v for v in values_of(graph) if v.name}
    there |= _take_sizes(graph, aside.shapes)
    apart = [n for n in whole.graph if node_name(n) in aside.nodes]
    ends = [tensor_name(v) for v in whole.graph.outputs]
    whole.graph.outputs.clear()
    whole.graph.remove(apart, safe=False)
    made = {tensor_name(v): v for n in apart for v in n.outputs if v.name}
    for node in apart:
        if branch := aside.branches.get(node_name(node)):
            _fold(graph, node, branch, names)
        for one, slot, value in _reads_of(node, whole.graph):
            here = there.get(tensor_name(value)) if value.const_value is None else None
            if here is None:
                name = names.take(f"{value.name}_aside")
                here = add_constant(graph, name, constant_array(value))
            one.replace_input_with(slot, _cast(graph, here, value.dtype, names))
        if is_standard(node, *_LIKE):
            node.attributes["dtype"] = ir.AttrInt64("dtype", int(node.outputs[0].dtype or 1))
        graph.append(node)
    for value in [v for v in graph.inputs if v.name in aside.supplied]:
        graph.inputs.remove(value)
        drawn = _cast(graph, made[tensor_name(value)], value.dtype, names)
        value.replace_all_uses_with(drawn, replace_graph_outputs=True)
    graph.outputs[:] = [made.get(name) or there[name] for name in ends]
    passes.TopologicalSortPass()(result)
    drop_unused_constants((graph,))
    return result


def _reads_of(node: ir.Node, graph: ir.Graph) -> list[tuple[ir.Node, int, ir.Value]]:
    """Return what a node and those in its bodies read of `graph`, each with reader and slot."""
    return [
        (one, slot, value)
        for one in with_bodies(node)
        for slot, value in enumerate(one.inputs)
        if value is not None and value.graph is graph
    ]


def _cast(graph: ir.Graph, value: ir.Value, dtype: ir.DataType | None, names: Names) -> ir.Value:
    """Return `value` in a type, through a Cast if it has another."""
    if dtype is None or value.dtype in (None, dtype):
        return value
    node = cast_of(value, dtype, names)
    graph.append(node)
    return node.outputs[0]
