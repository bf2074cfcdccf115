"""Find the ONNX nodes behind TensorRT's layer names.

From 8.6 on, `Metadata` names the nodes in onnx-tensorrt's form (`processMetadata`): `[ONNX Layer:
NAME | property | …]`, joined by U+001E and U+001F. Without it, and in logs, only the layer's name
remains: `a + b`, `a || b`, `PWN(a, PWN(b))`, and from Myelin `a+b_myl0_2`. A fused block of
TensorRT 8 has no metadata, and is called `{ForeignNode[a...b]}` after its first and last layer,
often TensorRT's own; but it names its input and output tensors. Layers that the parser adds are
`(Unnamed Layer* 7) [Shuffle]`, by their index in the network, and `ONNXTRT_…`; weights are `a +
b.weight`. Layers that reformat, and those that TensorRT adds for itself, compute no node.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.graph.dataflow import reached
from halfwise.graph.model import Network, node_name
from halfwise.records import NetworkLayer, NodeName

_ONNX_LAYER = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f,]|\s*\[ONNX Layer: |\s*$)", re.DOTALL)
_BLOCK = re.compile(r"^\{ForeignNode\[(.*)\.\.\.(.*)\]\}$", re.DOTALL)
_PROFILE = re.compile(r" \[profile \d+\]$")
_MYELIN = re.compile(r"_myl\d+_\d+$")
_JOINT = re.compile(r" \+ |, |PWN\(")
_UNNAMED = re.compile(r"^\(Unnamed Layer\* (\d{1,9})\)")
_REFORMAT = "Reformatting CopyNode"
_OWN = re.compile(r"^Reformat|^\(Unnamed Layer\*|^\[|^__|^_gemm|\] ?copy$| copy$|HostCopy\]$")
"""Names of layers without a node in the model."""


@dataclass(frozen=True)
class Listed:
    """What an inspector lists about a layer to find its nodes by.

    Attributes:
        name: Its name.
        metadata: Its metadata; "" if there are none.
        inputs: Names of its input tensors.
        outputs: Names of its output tensors.
    """

    name: str
    metadata: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class NodeFinder:
    """Maps layers to nodes; given a network, only to its nodes, including those in bodies."""

    def __init__(
        self,
        network: Network | None,
        layers: Sequence[Listed],
        built: Sequence[NetworkLayer] = (),
    ) -> None:
        """Take the model, all layers of the engine, and those before fusion, each in its order."""
        self._built = built
        self._known: dict[str, NodeName] | None = None
        self._blocks: dict[str, tuple[NodeName, ...]] = {}
        if network is not None:
            nodes = list(network.model.graph.all_nodes())
            unnamed = (n for n in nodes if network.original_names.get(node_name(n)) == "")
            # onnx-tensorrt's names for unnamed nodes of the user's own file (`getNodeName`).
            self._known = {
                f"node_of_{n.outputs[0].name}": node_name(n) for n in unnamed if n.outputs
            }
            self._known |= {node_name(n): node_name(n) for n in nodes}
            self._blocks = self._divide(network, layers)

    def nodes(self, layer: Listed) -> tuple[NodeName, ...]:
        """Return the nodes of a layer; without a network, a block's first and last."""
        if found := _ONNX_LAYER.findall(layer.metadata):
            return self._existing(self._without_properties(entry) for entry in found)
        name = _PROFILE.sub("", layer.name)
        if name in self._blocks:
            return self._blocks[name]
        if block := _BLOCK.search(name):
            return self._existing((*self._named(block[1]), *self._named(block[2])))
        return self._named(name)

    def _without_properties(self, entry: str) -> str:
        known = self._known is not None and entry in self._known
        return entry if known else entry.partition(" | ")[0]

    def _named(self, layer: str) -> tuple[NodeName, ...]:
        """Return the nodes that a layer's name contains."""
        if self._known is not None and layer in self._known:
            return (self._known[layer],)
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
        """Return the `names` that are nodes, without duplicates."""
        distinct = dict.fromkeys(filter(None, names))
        if self._known is None:
            return tuple(map(NodeName, distinct))
        return tuple(dict.fromkeys(self._known[name] for name in distinct if name in self._known))

    def _divide(
        self, network: Network, layers: Sequence[Listed]
    ) -> dict[str, tuple[NodeName, ...]]:
        """Return the nodes of each fused block without metadata.

        A block has the nodes on the way from its inputs to its outputs that no other layer has.
        Blocks are taken in the engine's order, so earlier nodes already have their layer. If only
        TensorRT knows an output, a single such block gets all remaining nodes; of several, each
        gets those of the network's layers between its first and last, and what leads there.
        """
        blocks, taken = [], set[NodeName]()
        for layer in layers:
            if _BLOCK.search(_PROFILE.sub("", layer.name)) and not _ONNX_LAYER.search(
                layer.metadata
            ):
                blocks.append(layer)
            else:
                taken.update(self.nodes(layer))
        if not blocks:
            return {}
        values = {
            v.name: v for n in network.nodes() for v in (*n.inputs, *n.outputs) if v and v.name
        }
        tensors = _Tensors(values, layers)
        order = list(network.nodes())
        found: dict[str, tuple[NodeName, ...]] = {}
        open_ended: dict[str, set[ir.Value]] = {}
        for block in blocks:
            name = _PROFILE.sub("", block.name)
            if name in found:
                continue
            ends = [tensors.value(output) for output in block.outputs]
            start = {v.producer() for v in ends if v is not None}
            last = _BLOCK.search(name)
            named = set(self._named(last[2])) if last else set()
            start |= {n for n in order if node_name(n) in named}
            borders = {v for v in map(tensors.value, block.inputs) if v is not None}
            if not ends or None in ends:
                open_ended[name] = borders
            inside = _leading_to(start, borders, taken)
            found[name] = tuple(node_name(n) for n in order if n in inside)
            taken |= set(found[name])
        for name, borders in open_ended.items():
            own = order if len(open_ended) == 1 else self._between(name, order)
            left = {node_name(n) for n in _leading_to(own, borders, taken)}
            found[name] = tuple(n for n in map(node_name, order) if n in {*found[name], *left})
            taken |= left
        return found

    def _between(self, block: str, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Return the `nodes` behind the network's layers between a block's ends."""
        places = {layer.name: index for index, layer in enumerate(self._built)}
        match = _BLOCK.search(block)
        ends = [
            int(own[1]) if (own := _UNNAMED.match(part)) else places[part]
            for part in (" + ".join(match.groups()).split(" + ") if match else ())
            if _UNNAMED.match(part) or part in places
        ]
        if len(ends) < 2:
            return []
        inside = {n for layer in self._built[min(ends) : max(ends) + 1] for n in layer.nodes}
        return [n for n in nodes if node_name(n) in inside]


class _Tensors:
    """Maps an engine's tensors, including copies in other formats, to the model's values."""

    def __init__(self, values: Mapping[str, ir.Value], layers: Sequence[Listed]) -> None:
        self._values = values
        self._copies: dict[str, str] = {}
        for layer in layers:
            if layer.name.startswith(_REFORMAT) and len(layer.inputs) == len(layer.outputs) == 1:
                before, after = (_PROFILE.sub("", t) for t in (*layer.inputs, *layer.outputs))
                copy, origin = (before, after) if after in values else (after, before)
                self._copies[copy] = origin

    def value(self, tensor: str) -> ir.Value | None:
        """Return the value of a tensor; None if only TensorRT knows it."""
        name = _PROFILE.sub("", tensor)
        for _ in range(len(self._copies) + 1):
            if name in self._values or name not in self._copies:
                break
            name = self._copies[name]
        return self._values.get(name)


def _leading_to(
    start: Iterable[ir.Node | None], borders: set[ir.Value], taken: set[NodeName]
) -> set[ir.Node]:
    """Return the nodes in `start` and those from `borders` to them, except taken ones."""

    def free(nodes: Iterable[ir.Node | None]) -> list[ir.Node]:
        return [n for n in nodes if n is not None and node_name(n) not in taken]

    def before(node: ir.Node) -> list[ir.Node]:
        return free(v.producer() for v in node.inputs if v is not None and v not in borders)

    return {*reached(free(start), before)}


def _balanced(part: str) -> str:
    """Return `part` without unmatched trailing parentheses."""
    while part.endswith(")") and part.count(")") > part.count("("):
        part = part[:-1]
    return part.strip()


_FOREIGN = re.compile(r"ForeignNode\[(?P<inside>.*?)(?:\](?:\}|$|\.?\))|$)")
_SEPARATOR = re.compile(r" \+ | \|\| |, ")
_WRAPPED = re.compile(r"^(?:PWN|PWN_\w+|copy)\(|^Reformatting CopyNode for .*? to ")
_ADDED = re.compile(r"^\(Unnamed[ _]Layer|^ONNXTRT_|^\[trainStation|^_?constant$")
_SUFFIX = re.compile(
    r"\.(?:weight|bias|kernel)$|\[[A-Z]\w*\]$| _ \(Unnamed.*$| *\(Myelin\[\w+\]\)$|\.?\)?\.?$"
)


def foreign_region(text: str) -> tuple[str, str] | None:
    """Return the first and the last layer of the first `ForeignNode` in `text`; None without one.

    Both are names of network layers: a node's, a constant's, or `(Unnamed Layer* 7) [Shuffle]`.
    For a block of one layer the two are the same.
    """
    found = _FOREIGN.search(text)
    if found is None:
        return None
    first, _, last = found["inside"].partition("...")
    parts = [_bare(part) for part in _SEPARATOR.split(first)]
    ends = [_bare(part) for part in _SEPARATOR.split(last or first)]
    return parts[0], ends[-1]


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names in a layer's name or a list of them, without TensorRT's additions.

    A `ForeignNode` yields only its ends: the log does not show what lies between.
    """
    found = _FOREIGN.search(expression)
    if found is not None:
        ends = found["inside"].replace("...", ", ")
        return names_in(ends) if "ForeignNode[" not in ends else ()
    names = (_bare(part) for part in _SEPARATOR.split(expression))
    return tuple(dict.fromkeys(name for name in names if name and not _ADDED.match(name)))


def _bare(part: str) -> str:
    name = part.strip()
    while wrapped := _WRAPPED.match(name):
        name = name[wrapped.end() :]
    while name.endswith(")") and name.count(")") > name.count("("):
        name = name[:-1]
    if _ADDED.match(name):
        return name
    while (shorter := _SUFFIX.sub("", name).rstrip()) != name:
        name = shorter
    return name
