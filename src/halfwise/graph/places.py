"""Find nodes of an ONNX file by the names that a TensorRT log has for them.

The file is read as it is, without weights and without being checked: the log of a model that a
parser refuses is what one wants explained.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import onnx

from halfwise.graph.model import read_proto
from halfwise.records import LogNode, NodeName

_NUMBERED = re.compile(r"^node (?P<number>\d+)$")
_AGAIN = re.compile(r"_\d+$")
"""What TensorRT appends to a name that it has already."""


class NodePlaces:
    """The nodes of a file, bodies included, by name, by the tensors they make, and by constants.

    Attributes:
        count: Number of nodes.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            CaseError: no ONNX file.
        """
        found = list(nodes_in(read_proto(path).graph))
        self._nodes = [node for _, node in found]
        self._main = [place for place, (depth, _) in enumerate(found) if not depth]
        self.count = len(self._nodes)
        self._names: dict[str, tuple[int, str]] = {}
        own = [[node.name] for node in self._nodes]
        outputs = [node.output for node in self._nodes]
        inputs = [node.input for node in self._nodes]
        for via, names in (("node", own), ("output", outputs), ("reader", inputs)):
            for place, some in enumerate(names):
                for name in filter(None, some):
                    self._names.setdefault(name, (place, via))
        # Myelin writes constants with underscores for all that is no letter or digit.
        self._plain = {re.sub(r"\W", "_", name): found for name, found in self._names.items()}

    def find(self, name: str) -> LogNode:
        """Return the node that `name` stands for."""
        if numbered := _NUMBERED.match(name):
            number = int(numbered["number"])
            if number < len(self._main):
                return self._answer(name, self._main[number], "node")
        for known, wanted in self._wanted(name):
            if wanted in known:
                return self._answer(name, *known[wanted])
        return LogNode(name=NodeName(name))

    def _wanted(self, name: str) -> Iterator[tuple[dict[str, tuple[int, str]], str]]:
        yield self._names, name
        yield self._names, name.removeprefix("node_of_")
        yield self._names, _AGAIN.sub("", name)
        yield self._names, name.removesuffix("_output")
        yield self._plain, re.sub(r"\W", "_", name.removesuffix("_constant"))

    def _answer(self, name: str, place: int, via: str) -> LogNode:
        node = self._nodes[place]
        return LogNode.model_validate(
            {
                "name": name,
                # What TensorRT calls a node without a name.
                "node": node.name or f"node_of_{next(iter(node.output), '')}",
                "op": node.op_type,
                "place": place + 1,
                "via": via,
            }
        )


def nodes_in(graph: onnx.GraphProto) -> Iterator[tuple[int, onnx.NodeProto]]:
    """Yield depth (0: the graph itself) and node, each node followed by those of its bodies."""
    pending = [iter(graph.node)]
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            continue
        yield len(pending) - 1, node
        bodies = [
            body
            for attribute in node.attribute
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
        ]
        pending += [iter(body.node) for body in reversed(bodies)]
