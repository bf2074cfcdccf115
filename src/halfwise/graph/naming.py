"""Give every node and every value a name that nothing else in the model has, bodies included."""

from collections.abc import Iterator

import onnx_ir as ir


def name_uniquely(model: ir.Model) -> dict[str, str]:
    """Rename nodes and values in place where they have no name of their own.

    ONNX lets bodies of If, Loop and Scan share names with each other, and nodes share any. The
    names of graph inputs and outputs stay, then those of the main graph come first. An output that
    is left out stays without a name.

    Returns:
        The former node name by the new one, where they differ ("" for unnamed).
    """
    graphs = (model.graph, *model.graph.subgraphs())
    names = _Names()
    for value in dict.fromkeys((*model.graph.inputs, *model.graph.outputs)):
        value.name = names.take(value.name or "v")
    done = {*model.graph.inputs, *model.graph.outputs}
    for graph in graphs:
        for value in _values(graph):
            if value not in done and (value.name or value.uses() or value.is_graph_output()):
                done.add(value)
                value.name = names.take(value.name or "v")
    former = {}
    names = _Names()
    for graph in graphs:
        for node in graph:
            old, node.name = node.name or "", names.take(node.name or "node")
            if old != node.name:
                former[node.name] = old
    return former


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs


class _Names:
    """Names in use, and for each the last number tried."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """Return `wanted`, numbered if it is in use, and use it."""
        name = wanted
        while name in self._taken:
            self._taken[wanted] += 1
            name = f"{wanted}_{self._taken[wanted]}"
        self._taken[name] = 0
        return name
