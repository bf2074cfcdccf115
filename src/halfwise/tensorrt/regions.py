"""Read which layers a builder blames for a refusal, and map the region they name to ONNX nodes.

A builder calls a fused block `{ForeignNode[first...last]}`, without the nodes in between: the two
are ends in its own order, not in the graph's. A built engine of the same model shows the nodes:
TensorRT 8.6.0 gave one model's block the same name in FP32, TF32, FP16 and mixed engines, and it
had 117 nodes, while 8 lie between its ends in graph order (basic_pitch, H200).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.graph.dataflow import operands
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import EngineLayer, NodeName, RefusalKind
from halfwise.tensorrt.layer_names import foreign_region, names_in
from halfwise.tensorrt.log import at_layer, known, split_line

_KINDS: Mapping[str, RefusalKind] = {
    "no-kernel": "no-kernel",
    "no-format": "no-kernel",
    "myelin": "compiler",
    "cask": "compiler",
    "assertion": "compiler",
}
"""Kind of message → kind of refusal. In this order, the first one found in a log counts."""
_ENDED: Mapping[str, RefusalKind] = {"crashed": "crash", "timeout": "timeout"}


@dataclass(frozen=True)
class Blamed:
    """How a build was refused.

    Attributes:
        kind: Kind of refusal.
        layer: The layer it named, in the builder's notation: `{ForeignNode[a...b]}`, `a + b`; empty
            if it named none.
        line: The builder's last message of that kind; if no message is known, its last error
            without the severity; empty if it logged no error.
    """

    kind: RefusalKind
    layer: str = ""
    line: str = ""

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last layer; empty if no layer was named."""
        names = names_in(self.layer)
        return foreign_region(self.layer) or (*names[:1], *names[-1:])


def blamed(status: str, lines: Iterable[str]) -> Blamed:
    """Return how a build was refused.

    Args:
        status: `BuildOutcome.status`.
        lines: The builder's log. The last known message that names a layer counts; if none does,
            the layer that the builder was working on.
    """
    kinds: dict[RefusalKind, str] = {}
    layer = at = error = ""
    for line in lines:
        severity, text = split_line(line)
        error = text if severity == "error" and text else error
        at = at_layer(text) or at
        found = known(text)
        if found is None or found[0].kind not in _KINDS:
            continue
        kinds[_KINDS[found[0].kind]] = _inner(text[found[1].start() :])
        layer = found[1].groupdict().get("layer") or _fused(text) or layer
    told: RefusalKind = next((kind for kind in _KINDS.values() if kind in kinds), "unknown")
    line = kinds.get(told) or error
    return Blamed(_ENDED.get(status, told), (layer or at).strip(), line)


def _inner(text: str) -> str:
    """Return the text without a closing bracket whose opening bracket is not in it."""
    return text[:-1].rstrip() if text.endswith(")") and text.count(")") > text.count("(") else text


def _fused(text: str) -> str:
    """Return the text from the name of a fused block onwards; "" without one."""
    start = text.find("{ForeignNode[")
    return text[start:] if start >= 0 else ""


Assignment = frozenset[NodeName]
Ends = tuple[str, ...]


@dataclass(frozen=True)
class Region:
    """Nodes that a builder refuses together.

    Attributes:
        ends: The builder's names of the first and last layer; empty if it named none.
        nodes: The nodes; all of the model if it named none.
        shown: Whether an engine shows them.
    """

    ends: Ends
    nodes: Assignment
    shown: bool = False


def blocks(layers: Iterable[EngineLayer]) -> dict[Ends, Assignment]:
    """Return the nodes of an engine's fused blocks, by the blocks' ends."""
    named = ((foreign_region(layer.name), frozenset(layer.nodes)) for layer in layers)
    return {ends: nodes for ends, nodes in named if ends is not None and nodes}


def region_of(
    network: Network, roles: Roles, ends: Ends, shown: Mapping[Ends, Assignment]
) -> Region:
    """Return the region between two ends.

    Args:
        network: The model.
        roles: Roles of its nodes.
        ends: The builder's names of the first and last layer; empty for the whole model.
        shown: Blocks of engines of this model, by their ends.

    Returns:
        The block with these ends, else the nodes from the first to the last in graph order.
    """
    nodes = list(network.nodes())
    if ends in shown:
        return Region(ends, shown[ends], shown=True)
    if not ends:
        return Region((), frozenset(map(node_name, nodes)))
    places = _places(nodes, roles)
    first = min(places.get(ends[0], (0,)))
    last = max(places.get(ends[1], (len(nodes) - 1,)))
    between = nodes[min(first, last) : max(first, last) + 1]
    return Region(ends, frozenset(map(node_name, between)))


def _places(nodes: Sequence[ir.Node], roles: Roles) -> dict[str, list[int]]:
    """Return positions of nodes in the graph, by their names and those of tensors they compute.

    Layers of constants have the positions of their readers, and lack `.weight` and the like.
    """
    found: dict[str, list[int]] = {}
    for place, node in enumerate(nodes):
        given = (v for v in node.inputs if v is not None and v.producer() is None)
        for name in (v.name for v in (*given, *node.outputs) if v.name):
            for one in {name, *names_in(name)}:
                found.setdefault(one, []).append(place)
    for place, node in enumerate(nodes):
        found |= {name: [place] for name in (node_name(node), *roles[node_name(node)].inside)}
    return found


def neighbours(network: Network, roles: Roles, names: Assignment) -> Assignment:
    """Return the other nodes that pass floats to or from `names`, reads in bodies included."""
    found: set[NodeName] = set()
    for node in network.nodes():
        name = node_name(node)
        reads = {_maker(v) for v in operands(node) if is_float(v)}
        if name in names:
            found |= {maker for maker in reads if maker is not None}
        elif reads & names and roles[name].role is not Role.BLIND:
            found.add(name)
    return frozenset(found - names)


def rim(network: Network, roles: Roles, names: Assignment) -> Assignment:
    """Return those of `names` that pass a float to another node or read one from it.

    Inputs, outputs and constants of the graph do not count as nodes.
    """
    outside = neighbours(network, roles, names)
    return neighbours(network, roles, outside) & names


def _maker(value: ir.Value) -> NodeName | None:
    producer = value.producer()
    return None if producer is None else node_name(producer)
