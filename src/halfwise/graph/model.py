"""Make nodes and constants, named after what they replace."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.records import NodeName, TensorName

ONNX_DOMAINS = ("", "ai.onnx")
QUANTISED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "QLinear",
    "MatMulInteger",
    "ConvInteger",
    "QGemm",
)
"""Prefixes of op types that quantise, dequantise or compute with quantised integers, in any domain;
for example, ONNX Runtime's QLinearAdd."""
SMALL_BYTES = 1 << 16
"""Largest array of which a copy is kept; a model of 1 GiB has at most 16,384 larger constants."""


class Network(Struct, frozen=True, eq=False, weakref=True):
    """A model in normal form. Never modified: rewriting starts from `copy()`.

    Attributes:
        model: The model.
        path: Its file; None if made in memory.
        sha256: Hash of the file and its external data.
        original_names: For each renamed node, its name in the user's file ("" for unnamed).
        mistyped: Contradictions between element types that were mended on reading, in words.
    """

    model: ir.Model
    path: Path | None
    sha256: str
    original_names: Mapping[NodeName, str]
    mistyped: tuple[str, ...] = ()

    def copy(self) -> ir.Model:
        """Return a copy whose graph may be changed; tensors are shared."""
        return self.model.clone()

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    @property
    def opset(self) -> int:
        """Version of the default ONNX operator set."""
        return opset_of(self.model)

    def nodes(self) -> Iterator[ir.Node]:
        """Yield the nodes of the main graph in topological order."""
        return iter(self.graph)

    def all_nodes(self) -> Iterator[ir.Node]:
        """Yield all nodes in topological order, those in bodies behind the node that holds them."""
        return self.graph.all_nodes()

    def graphs(self) -> tuple[ir.Graph, ...]:
        """Return the main graph and the bodies of If, Loop and Scan, at any depth."""
        return graphs_of(self.model)


def opset_of(model: ir.Model) -> int:
    """Return the version of the default ONNX operator set (1 if none is imported)."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))


def graphs_of(model: ir.Model) -> tuple[ir.Graph, ...]:
    """Return the main graph of `model` and the bodies of If, Loop and Scan, at any depth."""
    return (model.graph, *_inside(model.graph))


def _inside(graph: ir.Graph) -> Iterator[ir.Graph]:
    # Not `subgraphs`, which takes five times as long, and is asked for each session.
    for node in graph:
        for body in bodies(node):
            yield body
            yield from _inside(body)


def bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    """Return the bodies of an If, Loop or Scan; empty for most other nodes."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.type is ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type is ir.AttributeType.GRAPHS:
            graphs += attribute.as_graphs()
    return tuple(graphs)


def with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a node, and the nodes in its bodies at any depth."""
    yield node
    for body in bodies(node):
        yield from body.all_nodes()


def is_standard(node: ir.Node, *ops: str) -> bool:
    """Return whether the operator of `node` is ONNX's own, and one of `ops` if given."""
    return node.domain in ONNX_DOMAINS and (not ops or node.op_type in ops)


def node_name(node: ir.Node) -> NodeName:
    """Return the node's name, which the normal form guarantees."""
    assert node.name is not None
    return NodeName(node.name)


def tensor_name(value: ir.Value) -> TensorName:
    """Return the value's name, which the normal form guarantees."""
    assert value.name is not None
    return TensorName(value.name)


def constant_array(value: ir.Value) -> NDArray[np.generic]:
    """Return the array of an initializer; its dtype is from ml_dtypes if NumPy lacks the type."""
    assert value.const_value is not None
    return np.asarray(value.const_value.numpy())


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Return a new initializer of `graph` with `array`, of any shape and type."""
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def small_constant(value: ir.Value | None) -> NDArray[np.float32] | None:
    """Return f32[*shape] of a constant of at most `SMALL_BYTES`, else None.

    A node that reads only constants is ready at once, and ONNX Runtime walks its list of ready
    nodes whenever it adds one: with one such node per weight, loading takes n² steps. So it is
    better to store results computed from small constants. Large constants are few, and copies of
    all of them would not fit into memory.
    """
    tensor = value.const_value if value is not None else None
    if tensor is None or tensor.nbytes > SMALL_BYTES:
        return None
    return np.asarray(tensor.numpy(), np.float32)


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the inputs, initializers and computed values of a graph, without its bodies."""
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs


class Names:
    """Names in use, each with the last number tried."""

    def __init__(self, graphs: Iterable[ir.Graph] = ()) -> None:
        """Take the names of all nodes and values in `graphs`."""
        named = (one for graph in graphs for one in (*values_of(graph), *graph))
        self._taken = {one.name: 0 for one in named if one.name}

    def take(self, wanted: str) -> str:
        """Return `wanted`, numbered if already in use, and mark it as used."""
        name = wanted
        while name in self._taken:
            self._taken[wanted] += 1
            name = f"{wanted}_{self._taken[wanted]}"
        self._taken[name] = 0
        return name


def cast_of(value: ir.Value, dtype: ir.DataType, names: Names) -> ir.Node:
    """Return a new Cast of `value`, which is in no graph yet; its names are taken from `names`."""
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=names.take(f"{value.name}_cast"))
    (made,) = node.outputs
    made.name = names.take(f"{value.name}_{dtype.name.lower()}")
    made.type, made.shape = ir.TensorType(dtype), value.shape
    return node


SUMMED_AXES_ARE_READ, REDUCED_AXES_ARE_READ = 13, 18
"""First operator sets in which ReduceSum, and all reductions, take their axes as an input."""

Attribute = float | int | str | Sequence[int] | ir.Attr


class Writer:
    """Makes nodes for a model; the caller inserts them into any of its graphs.

    Attributes:
        graph: The main graph; constants go into it at once.
        opset: Version of the default operator set.
        stem: Prefix of the names.
        names: The names in use.
        made: The nodes so far, in order. Their outputs have no types until inference.
    """

    def __init__(self, model: ir.Model, stem: str, names: Names) -> None:
        """Take the model, the prefix of names, and the names in use."""
        self.graph, self.opset = model.graph, opset_of(model)
        self.stem, self.names = stem, names
        self.made: list[ir.Node] = []

    def op(self, op: str, *read: ir.Value, **attributes: Attribute) -> ir.Value:
        """Return the output of a new node."""
        name = self.names.take(f"{self.stem}/{op}")
        node = ir.node(op, list(read), attributes=attributes, name=name)
        (output,) = node.outputs
        output.name = self.names.take(f"{name}_output")
        self.made.append(node)
        return output

    def constant(self, what: str, array: NDArray[Any]) -> ir.Value:
        """Return a new constant."""
        return add_constant(self.graph, self.names.take(f"{self.stem}/{what}"), array)

    def reduced(self, op: str, value: ir.Value, *axes: int, keep: bool = True) -> ir.Value:
        """Return a reduction over `axes`, kept with size 1 if `keep`."""
        if self.opset < (SUMMED_AXES_ARE_READ if op == "ReduceSum" else REDUCED_AXES_ARE_READ):
            return self.op(op, value, axes=axes, keepdims=int(keep))
        array = self.constant("axes", np.array(axes, np.int64))
        return self.op(op, value, array, keepdims=int(keep))
