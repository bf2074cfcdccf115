"""The graph of a model as columns: nodes, tensors, and which nodes read and write which tensors."""

from collections.abc import Container, Iterator, Sequence

import onnx_ir as ir

from halfwise.evidence.sources import Sources, scope_of
from halfwise.graph.bodies import bodies_of
from halfwise.graph.model import node_name, tensor_name
from halfwise.records import Graph, NodeName
from halfwise.wording import dimensions

Places = dict[ir.Value, int]


def graph_of(model: ir.Model, own: Container[NodeName], sources: Sources) -> Graph:
    """Return the structure of a model in normal form, including nodes in bodies.

    Args:
        model: The model.
        own: The nodes of the user's model.
        sources: Collects the sources of the nodes.
    """
    nodes = list(model.graph.all_nodes())
    names = tuple(map(node_name, nodes))
    values: Places = {}
    inputs = _placed(model.graph.inputs, values)
    reads = tuple(_placed(node.inputs, values) for node in nodes)
    gives = tuple(_placed(node.outputs, values) for node in nodes)
    outputs = _placed(model.graph.outputs, values)
    scopes, shapes = _interned(_scopes(nodes)), _interned(map(_shape, values))
    return Graph(
        nodes=names,
        ops=tuple(f"{n.domain}::{n.op_type}" if n.domain else n.op_type for n in nodes),
        scopes=scopes[0],
        scope_names=scopes[1],
        reads=reads,
        gives=gives,
        bodies=_owners(nodes),
        added=tuple(i for i, name in enumerate(names) if name not in own),
        sources=tuple(map(sources.of, nodes)),
        tensors=tuple(map(tensor_name, values)),
        types=tuple("" if v.dtype is None else v.dtype.name for v in values),
        shapes=shapes[0],
        shape_names=shapes[1],
        constants=tuple(i for v, i in values.items() if v.is_initializer()),
        inputs=inputs,
        outputs=outputs,
    )


def _placed(values: Sequence[ir.Value | None], places: Places) -> tuple[int, ...]:
    """Return the indices of values, appending new ones; omitted values have none."""
    return tuple(places.setdefault(v, len(places)) for v in values if v is not None and v.name)


def _interned(texts: Iterator[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return each text's index among the distinct texts, and these."""
    places: dict[str, int] = {}
    return tuple(places.setdefault(text, len(places)) for text in texts), tuple(places)


def _shape(value: ir.Value) -> str:
    sizes = None if value.shape is None else [_size(size) for size in value.shape]
    return dimensions(sizes)


def _size(size: int | ir.SymbolicDim) -> int | str | None:
    return size if isinstance(size, int) else size.value


def _owners(nodes: Sequence[ir.Node]) -> dict[int, int]:
    """Return, for nodes in bodies, the index of the node with the body."""
    owner = {body: i for i, node in enumerate(nodes) for _, body in bodies_of(node)}
    return {i: owner[n.graph] for i, n in enumerate(nodes) if n.graph in owner}


def _scopes(nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield the scope of each node; one without takes that of its first input's producer."""
    known: dict[ir.Node, str] = {}
    for node in nodes:
        scope = scope_of(node)
        if scope is None:
            makers = (v.producer() for v in node.inputs if v is not None)
            scope = next((known[m] for m in makers if m in known), "")
        known[node] = scope
        yield scope
