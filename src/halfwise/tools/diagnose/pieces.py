"""Cut parts out of a model into one file, each fed the true values of its inputs.

Disjoint parts sit side by side: one engine runs all. Values that follow only from shapes become
constants, as do integers and Booleans from outside a part: builders refuse many of these as inputs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.graph.dataflow import GIVEN, read_by
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import Network, add_constant, is_standard, node_name, tensor_name
from halfwise.graph.roles import bodies, is_float
from halfwise.records import NodeName, TensorName

Values = Mapping[Any, NDArray[Any]]
Part = frozenset[NodeName]


@dataclass(frozen=True)
class Piece:
    """Parts of a model, side by side.

    Attributes:
        model: The model: every shape fixed, in the order of the original.
        feed: Its inputs for one sample.
        outputs: Each part's outputs to other parts or the outside, floats only.
    """

    model: ir.Model
    feed: dict[str, NDArray[Any]]
    outputs: dict[Part, tuple[TensorName, ...]]


@dataclass(frozen=True)
class Pieces:
    """Cuts parts out of a model.

    Attributes:
        network: The model; not changed.
        values: Returns tensors' values on one sample, including the model's inputs.
    """

    network: Network
    values: Callable[[Sequence[TensorName]], Values]

    @cached_property
    def varying(self) -> frozenset[TensorName]:
        """The tensors that depend on the inputs' values, not only on their shapes."""
        found = {tensor_name(v) for v in self.network.graph.inputs}
        for node in self.network.nodes():
            if not is_standard(node, "Shape", "Size") and found.intersection(read_by(node)):
                found.update(tensor_name(v) for v in node.outputs if v.name)
        return frozenset(found)

    @cached_property
    def reads(self) -> dict[NodeName, tuple[NodeName, ...]]:
        """The nodes that compute from values, and which of these each reads."""
        made: dict[TensorName, NodeName] = {}
        found: dict[NodeName, tuple[NodeName, ...]] = {}
        for node in self.network.nodes():
            outputs = self.varying.intersection(tensor_name(v) for v in node.outputs if v.name)
            if outputs:
                name = node_name(node)
                before = [made[tensor] for tensor in read_by(node) if tensor in made]
                found[name] = tuple(dict.fromkeys(before))
                made |= dict.fromkeys(outputs, name)
        return found

    def cut(self, parts: Collection[Part], *, read: bool = False) -> Piece:
        """Return a model of disjoint `parts` on the true values of their inputs.

        A tensor that a part takes keeps its name, or becomes "t::given" if another part computes
        `t`. Outputs are the model's outputs, and a part's outputs that it does not read itself: any
        other output may end a fusion. With `read`, a Neg reads each, and the model outputs
        "t::negated" instead.

        Raises:
            CaseError: a part would need an input that is not a tensor.
        """
        copy = self.network.copy()
        owners = {name: part for part in parts for name in part}
        inside = {node: owners[node_name(node)] for node in copy.graph if node.name in owners}
        owned = _owners(copy.graph)
        finals = set(copy.graph.outputs)
        copy.graph.outputs[:] = []
        outputs: dict[Part, tuple[TensorName, ...]] = {}
        taken: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
        for value in self._tensors(copy):
            made = value.producer()
            home = None if made is None else inside.get(made)
            readers = [(use, inside.get(owned[use.node])) for use in value.uses()]
            away = [use for use, place in readers if place is not None and place != home]
            if away:
                taken[value] = [(use.node, use.idx) for use in away]
            last = bool(readers) and all(place != home for _, place in readers)
            if home is not None and is_float(value) and (value in finals or last):
                outputs[home] = (*outputs.get(home, ()), tensor_name(value))
                copy.graph.outputs.append(value)
        feed = self._feed(copy, taken, inside)
        for node in reversed(copy.graph):
            if node not in inside:
                copy.graph.remove(node, safe=True)
        drop_unused_constants((copy.graph,))
        if read:
            copy.graph.outputs[:] = [_negated(copy.graph, value) for value in copy.graph.outputs]
        return Piece(copy, feed, outputs)

    def _tensors(self, model: ir.Model) -> Iterator[ir.Value]:
        yield from model.graph.inputs
        for node in model.graph:
            yield from (v for v in node.outputs if v.name)
            for v in node.outputs:
                # Sizes fixed now would contradict inferred ones.
                v.shape = None

    def _feed(
        self,
        model: ir.Model,
        taken: Mapping[ir.Value, Sequence[tuple[ir.Node, int]]],
        inside: Collection[ir.Node],
    ) -> dict[str, NDArray[Any]]:
        """Connect parts to their outside inputs; return the model's inputs."""
        if other := next((v for v in taken if not isinstance(v.type, ir.TensorType)), None):
            raise CaseError(
                f"{other.name} is not a tensor, so it cannot be given.", "Keep it inside."
            )
        values = self.values([tensor_name(value) for value in taken])
        model.graph.inputs[:] = []
        feed: dict[str, NDArray[Any]] = {}
        for value, uses in taken.items():
            name = tensor_name(value)
            assert value.dtype is not None
            array = values[name].astype(value.dtype.numpy(), copy=False)
            given = name if value.producer() not in inside else TensorName(f"{name}{GIVEN}")
            if given == name:
                value.name = f"{name}{_OLD}"
            if name in self.varying and is_float(value):
                start = ir.val(given, type=value.type, shape=ir.Shape(array.shape))
                model.graph.inputs.append(start)
                feed[given] = array
            else:
                start = add_constant(model.graph, given, array)
            for node, slot in uses:
                node.replace_input_with(slot, start)
        return feed


_OLD = "::old"
NEGATED = "::negated"


def _negated(graph: ir.Graph, value: ir.Value) -> ir.Value:
    name = f"{value.name}{NEGATED}"
    output = ir.val(name, type=value.type)
    graph.append(ir.node("Neg", [value], outputs=[output], name=name))
    return output


def _owners(graph: ir.Graph) -> dict[ir.Node, ir.Node]:
    """Return, for each node, itself or the main-graph node whose body holds it."""
    inner = {n: node for node in graph for body in bodies(node) for n in body.all_nodes()}
    return {**{node: node for node in graph}, **inner}
