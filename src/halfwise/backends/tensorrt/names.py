"""Find the ONNX nodes that a layer of an engine computes.

From 8.6 on, `Metadata` names them, as onnx-tensorrt wrote each (`processMetadata`): `[ONNX Layer:
NAME | property | …]`, joined by U+001E and U+001F. Without it there is the layer's name: `a + b`,
`PWN(a, PWN(b))`, `{ForeignNode[a...b]}` for all from `a` to `b`, and from Myelin `a+b_myl0_2`.
Layers that reformat, and those that TensorRT adds for itself, compute no node.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from halfwise.graph.model import Network, node_name
from halfwise.records import NodeName

_ONNX_LAYER = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f,]|\s*\[ONNX Layer: |\s*$)", re.DOTALL)
_BLOCK = re.compile(r"\{ForeignNode\[(.*)\.\.\.(.*)\]\}", re.DOTALL)
_PROFILE = re.compile(r" \[profile \d+\]$")
_MYELIN = re.compile(r"_myl\d+_\d+$")
_JOINT = re.compile(r" \+ |, |PWN\(")
_OWN = re.compile(r"^Reformat|^\(Unnamed Layer\*|^\[|^__|^_gemm|\] ?copy$| copy$|HostCopy\]$")
"""Names of layers that stand for no node of a model."""


class NodeFinder:
    """Maps layers to nodes; with a network, to its nodes only, those in bodies included."""

    def __init__(self, network: Network | None, layers: Sequence[str]) -> None:
        """Take the network, and the names of all layers of the engine."""
        self._known: dict[str, int] | None = None
        self._blocks: dict[str, tuple[NodeName, ...]] = {}
        if network is not None:
            names = [node_name(n) for n in network.model.graph.all_nodes()]
            self._known = {name: i for i, name in enumerate(names)}
            self._blocks = self._divide(network, layers)

    def nodes(self, layer: str, metadata: str) -> tuple[NodeName, ...]:
        """Return the nodes of a layer by its metadata or, where these name none, by its name."""
        found = _ONNX_LAYER.findall(metadata)
        if found:
            return self._existing(self._without_properties(entry) for entry in found)
        layer = _PROFILE.sub("", layer)
        if layer in self._blocks:
            return self._blocks[layer]
        if block := _BLOCK.search(layer):
            return self._named(block[1]) + self._named(block[2])
        return self._named(layer)

    def _without_properties(self, entry: str) -> str:
        known = self._known is not None and entry in self._known
        return entry if known else entry.partition(" | ")[0]

    def _named(self, layer: str) -> tuple[NodeName, ...]:
        """Return the nodes that the name of a layer tells."""
        if self._known is not None and layer in self._known:
            return (NodeName(layer),)
        bare = _MYELIN.sub("", layer)
        if _OWN.search(bare):
            return ()
        parts = [_balanced(part) for part in _JOINT.split(bare)]
        if self._known is not None and bare != layer:
            parts = [
                p for part in parts for p in ([part] if part in self._known else part.split("+"))
            ]
        return self._existing(part for part in parts if not _OWN.search(part) or self._known)

    def _existing(self, names: Iterable[str]) -> tuple[NodeName, ...]:
        """Return those of `names` that are nodes, each once."""
        distinct = dict.fromkeys(filter(None, names))
        return tuple(NodeName(n) for n in distinct if self._known is None or n in self._known)

    def _divide(self, network: Network, layers: Sequence[str]) -> dict[str, tuple[NodeName, ...]]:
        """Return the nodes of each fused block that is named by its first and last layer."""
        layers = [_PROFILE.sub("", name) for name in layers]
        spans = {name: found for name in layers if (found := _BLOCK.search(name))}
        if not spans:
            return {}
        others = [name for name in dict.fromkeys(layers) if name not in spans]
        taken = {node for name in others for node in self._named(name)}
        order = list(network.nodes())
        place = {node_name(n): i for i, n in enumerate(order)}
        blocks = [
            _Block(name, self._ends(network, found[1]), self._ends(network, found[2]), order, place)
            for name, found in spans.items()
        ]
        for node in order:
            if (name := node_name(node)) in taken:
                continue
            near = [b for b in blocks if b.first <= place[name] <= b.last]
            joined = [b for b in near if name in b.joined] if len(near) > 1 else near
            for block in joined or near:
                block.nodes.append(name)
        return {block.name: tuple(block.nodes) for block in blocks}

    def _ends(self, network: Network, label: str) -> tuple[NodeName, ...]:
        """Return the nodes that `label` names, those that read the constants in it included."""
        constants = (network.graph.initializers.get(part) for part in _JOINT.split(label))
        readers = (node_name(n) for v in constants if v is not None for n, _ in v.uses())
        return tuple(dict.fromkeys((*self._named(label), *readers)))


@dataclass
class _Block:
    """A fused block that spans the graph's order from its first to its last node.

    What is in the span of several belongs to that which it follows or leads to.
    """

    name: str
    begin: Sequence[NodeName]
    end: Sequence[NodeName]
    order: Sequence[ir.Node]
    place: dict[NodeName, int]
    nodes: list[NodeName] = field(default_factory=list)

    def __post_init__(self) -> None:
        begin = [self.place[n] for n in self.begin if n in self.place]
        end = [self.place[n] for n in self.end if n in self.place]
        # Where one end is a layer of TensorRT's own, the block is what its other end tells.
        self.first = min(begin or end, default=0)
        self.last = max(end or begin, default=-1)
        span = self.order[self.first : self.last + 1]
        after, before = set(self.begin), set(self.end)
        for node in span:
            if any(node_name(p) in after for p in node.predecessors()):
                after.add(node_name(node))
        for node in reversed(span):
            if any(node_name(s) in before for s in node.successors()):
                before.add(node_name(node))
        self.joined = after | before


def _balanced(part: str) -> str:
    """Return `part` without the closing parentheses of what was around it."""
    while part.endswith(")") and part.count(")") > part.count("("):
        part = part[:-1]
    return part.strip()
