"""Parts of a model: what some tensors need, and what lies between tensors that are given."""

from collections.abc import Collection, Iterable

import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.graph.captured import operands
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.records import NodeName, TensorName

GIVEN = "::given"
"""What the names of tensors end in that a region takes in place of computing them."""


def giving_out(model: ir.Model, names: Iterable[TensorName]) -> ir.Model:
    """Return a copy that gives out the tensors `names` alone, without the nodes they do not need.

    Its inputs stay. Names of no tensor of the main graph are passed over; tensors are shared.
    """
    copy = model.clone()
    computed = {v.name: v for node in copy.graph for v in node.outputs if v.name}
    copy.graph.outputs[:] = [computed[name] for name in names if name in computed]
    passes.RemoveUnusedNodesPass()(copy)
    return copy


def region_model(
    network: Network, targets: Iterable[TensorName], given: Collection[TensorName]
) -> ir.Model:
    """Return a model that computes `targets`, each from the nearest of the tensors `given`.

    A tensor `t` of `given` is an input called "t::given", and what reads `t` reads that; so a
    target that is given too is computed, and those behind it start from what is given.

    Args:
        network: The model; not changed.
        targets: Tensors that nodes of the main graph compute.
        given: Likewise; what no one needs is left out.
    """
    copy = network.copy()
    graph = copy.graph
    computed = {v.name: v for node in graph for v in node.outputs if v.name}
    graph.outputs[:] = []
    for name in given:
        value = computed[name]
        start = ir.val(f"{name}{GIVEN}")
        # Without a shape: a faulty candidate may give another one.
        start.type = value.type
        value.replace_all_uses_with(start)
        if start.uses():
            graph.inputs.append(start)
    graph.outputs[:] = [computed[name] for name in targets]
    passes.RemoveUnusedNodesPass()(copy)
    unused = [v for v in graph.inputs if str(v.name).endswith(GIVEN) and not v.uses()]
    for value in unused:
        graph.inputs.remove(value)
    return copy


class Ancestry:
    """What computes what in a network; it is read once."""

    def __init__(self, network: Network) -> None:
        """Take the network."""
        nodes = list(network.nodes())
        self._producers = {tensor_name(v): node for node in nodes for v in node.outputs if v.name}
        self._places = {node_name(node): place for place, node in enumerate(nodes)}
        self.varying = varying_tensors(network)

    def between(self, given: Collection[TensorName], target: TensorName) -> tuple[NodeName, ...]:
        """Return the nodes that compute `target` from the nearest tensors `given`, in graph order.

        Nodes that no graph input reaches are left out: what they give is constant.
        """
        found: set[NodeName] = set()
        waiting = [target]
        while waiting:
            name = waiting.pop()
            node = self._producers.get(name)
            if node is None or node_name(node) in found or name not in self.varying:
                continue
            found.add(node_name(node))
            waiting += [v for v in read_by(node) if v not in given]
        return tuple(sorted(found, key=self._places.__getitem__))


def read_by(node: ir.Node) -> tuple[TensorName, ...]:
    """Return the tensors that a node reads, those that its bodies take from outside included."""
    return tuple(dict.fromkeys(tensor_name(v) for v in operands(node)))


def varying_tensors(network: Network) -> frozenset[TensorName]:
    """Return the tensors that depend on a graph input; the others are constant."""
    found = {tensor_name(v) for v in network.graph.inputs}
    for node in network.nodes():
        if found.intersection(read_by(node)):
            found.update(tensor_name(v) for v in node.outputs if v.name)
    return frozenset(found)
