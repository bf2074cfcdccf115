"""Read an engine's layers from its inspector, and find the ONNX nodes behind their names.

The inspector's output (8.5 to 11.4) is almost JSON. 8.6 and 10.0 leave the separators of `Metadata`
(U+001E, U+001F) unescaped in strings; 8.x writes `Format/Datatype`, 11 `Format` and
`DataType` or `Datatype`; an engine built without detailed verbosity has names instead of layers.
With several profiles every layer is listed for each, with ` [profile 1]` after its name from the
second on. `Bindings` (from 11 on `I/O Tensors`) are not read.

From 8.6 on, `Metadata` names the nodes in onnx-tensorrt's form (`processMetadata`): `[ONNX Layer:
NAME | property | …]`, joined by U+001E and U+001F. Without it, and in logs, only the layer's name
remains: `a + b`, `a || b`, `PWN(a, PWN(b))`, and from Myelin `a+b_myl0_2`. A fused block of
TensorRT 8 has no metadata, and is called `{ForeignNode[a...b]}` after its first and last layer,
often TensorRT's own. Layers that the parser adds are
`(Unnamed Layer* 7) [Shuffle]`, by their index in the network, and `ONNXTRT_…`; weights are `a +
b.weight`. Layers that reformat, and those that TensorRT adds for itself, compute no node.

A builder names a block by two ends in its own order, not in the graph's: one of TensorRT 8.6.0 had
117 nodes, while 8 lie between its ends in graph order (basic_pitch, H200).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from halfwise.errors import CaseError, RunFailed
from halfwise.files import open_regular, unreadable
from halfwise.graph.model import Network, node_name
from halfwise.records import EngineLayer, NodeName
from halfwise.tensorrt.prove import data_type, layer_precision

_ONNX_LAYER = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f,]|\s*\[ONNX Layer: |\s*$)", re.DOTALL)
_PROFILE = re.compile(r" \[profile \d+\]$")
_MYELIN = re.compile(r"_myl\d+_\d+$")
_OWN = re.compile(r"^Reformat|^\(Unnamed Layer\*|^\[|^__|^_gemm|\] ?copy$| copy$|HostCopy\]$")
"""Names of layers without a node in the model."""


class Listed(Struct, frozen=True):
    """What an inspector lists about a layer to find its nodes by.

    Attributes:
        name: Its name.
        metadata: Its metadata; "" if there are none.
    """

    name: str
    metadata: str = ""

    @property
    def is_closed(self) -> bool:
        """Whether it is a fused block of which only the ends are named."""
        return foreign_region(self.name) is not None and not _ONNX_LAYER.search(self.metadata)


class NodeFinder:
    """Maps layers to nodes; given a network, only to its nodes, including those in bodies."""

    def __init__(self, network: Network | None, layers: Sequence[Listed]) -> None:
        """Take the model, and all layers of the engine in its order."""
        self._known: dict[str, NodeName] | None = None
        self._closed: tuple[NodeName, ...] | None = None
        if network is not None:
            nodes = list(network.model.graph.all_nodes())
            unnamed = (n for n in nodes if network.original_names.get(node_name(n)) == "")
            # onnx-tensorrt's names for unnamed nodes of the user's own file (`getNodeName`).
            self._known = {
                f"node_of_{n.outputs[0].name}": node_name(n) for n in unnamed if n.outputs
            }
            self._known |= {node_name(n): node_name(n) for n in nodes}
            taken = {n for layer in layers if not layer.is_closed for n in self.nodes(layer)}
            names = map(node_name, network.nodes())
            self._closed = tuple(name for name in names if name not in taken)

    def nodes(self, layer: Listed) -> tuple[NodeName, ...]:
        """Return the nodes of a layer; without a network, a block's first and last.

        Fused blocks without metadata have all nodes that no other layer has: whichever computes
        them, it does not show its precision.
        """
        if entries := _ONNX_LAYER.findall(layer.metadata):
            return self._existing(self._without_properties(entry) for entry in entries)
        if layer.is_closed and self._closed is not None:
            return self._closed
        name = _PROFILE.sub("", layer.name)
        if ends := foreign_region(name):
            return self._existing((*self._named(ends[0]), *self._named(ends[1])))
        return self._named(name)

    def _without_properties(self, entry: str) -> str:
        exists = self._known is not None and entry in self._known
        return entry if exists else entry.partition(" | ")[0]

    def _named(self, layer: str) -> tuple[NodeName, ...]:
        """Return the nodes that a layer's name contains."""
        if self._known is not None and layer in self._known:
            return (self._known[layer],)
        bare = _MYELIN.sub("", layer)
        if _OWN.search(bare):
            return ()
        parts: Sequence[str] = names_in(bare)
        if self._known is not None and bare != layer:
            parts = [
                p for part in parts for p in ([part] if part in self._known else part.split("+"))
            ]
        return self._existing(parts)

    def _existing(self, names: Iterable[str]) -> tuple[NodeName, ...]:
        """Return the `names` that are nodes, without duplicates."""
        distinct = dict.fromkeys(filter(None, names))
        if self._known is None:
            return tuple(map(NodeName, distinct))
        return tuple(dict.fromkeys(self._known[name] for name in distinct if name in self._known))


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
    block = _FOREIGN.search(text)
    if block is None:
        return None
    first, _, last = block["inside"].partition("...")
    parts = [_bare(part) for part in _SEPARATOR.split(first)]
    ends = [_bare(part) for part in _SEPARATOR.split(last or first)]
    return parts[0], ends[-1]


def names_in(expression: str) -> tuple[str, ...]:
    """Return the names in a layer's name or a list of them, without TensorRT's additions.

    A `ForeignNode` yields only its ends: the log does not show what lies between.
    """
    block = _FOREIGN.search(expression)
    if block is not None:
        ends = block["inside"].replace("...", ", ")
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


_SIDES = ("Inputs", "Outputs")
_SCALES = re.compile(r"_(?:alpha|beta)$")
"""Myelin's matrix products take two factors, always FP32, as inputs."""


def engine_layers(
    text: str,
    network: Network | None = None,
    *,
    tf32: bool = True,
) -> tuple[EngineLayer, ...]:
    """Return all listed layers of an engine, in its order.

    Args:
        text: The inspector's output in JSON.
        network: The model that the engine was built from. Without it, a fused block of
            TensorRT 8 has at most its first and last node, and other names are not checked.
        tf32: Whether the engine may use TF32; see `kernels.layer_precision`.

    Raises:
        RunFailed: `text` is no list of layers, or is truncated.
    """
    raw = _raw_layers(text)
    listed = [_listed(entry) for entry in raw]
    finder = NodeFinder(network, listed)
    return tuple(
        _layer(entry, finder.nodes(layer), tf32=tf32)
        for entry, layer in zip(raw, listed, strict=True)
    )


def _raw_layers(text: str) -> list[Mapping[str, Any]]:
    """Return the inspector's layers; a bare name becomes a layer with only a name."""
    try:
        content = json.loads(text.strip("\0 \t\r\n"), strict=False)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"is damaged: {error}") from None
    layers = content.get("Layers") if isinstance(content, dict) else content
    if not isinstance(layers, list):
        raise _refusal("has no list of layers")
    return [entry if isinstance(entry, dict) else {"Name": str(entry)} for entry in layers]


def _refusal(what: str) -> RunFailed:
    return RunFailed(
        f"The engine inspector's output {what}.",
        "Inspect the engine again with the version of TensorRT that built it, as JSON.",
    )


def _listed(raw: Mapping[str, Any]) -> Listed:
    return Listed(_text(raw, "Name"), _text(raw, "Metadata"))


def _layer(raw: Mapping[str, Any], nodes: tuple[NodeName, ...], *, tf32: bool) -> EngineLayer:
    name, kind, tactic = (_text(raw, key) for key in ("Name", "LayerType", "TacticName"))
    inputs, outputs = (_tensors(raw, key) for key in _SIDES)
    operands = [t for t in inputs if not _SCALES.search(_text(t, "Name"))]
    weights = raw.get("Weights")
    weight = data_type(_text(weights, "Type")) if isinstance(weights, dict) else ""
    types = ([*map(_type, operands)], [*map(_type, outputs)], weight)
    return EngineLayer(
        name=name,
        type=kind,
        nodes=nodes,
        inputs=tuple(map(_type, inputs)),
        outputs=tuple(map(_type, outputs)),
        weights=weight,
        tactic=tactic,
        precision=layer_precision(kind, name, types, tactic, tf32=tf32) if kind else "unknown",
    )


def _type(tensor: Mapping[str, Any]) -> str:
    keys = ("Datatype", "DataType", "Format/Datatype", "Format")
    return next((dtype for key in keys if (dtype := data_type(_text(tensor, key)))), "")


def _tensors(raw: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    value = raw.get(key)
    entries = value if isinstance(value, list) else []
    return [entry if isinstance(entry, dict) else {"Name": str(entry)} for entry in entries]


def _text(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


MAGIC = b"ftrt"
"""First bytes of a serialised engine in TensorRT 8 to 10 (torch_tensorrt relies on them too)."""
SUFFIXES = (".engine", ".plan", ".trt")


def is_engine(path: Path) -> bool:
    """Return whether `path` is an engine, by its first bytes, else by its name."""
    try:
        with open_regular(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                return True
    except OSError:
        pass
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def demand_engine(path: Path) -> Path:
    """Return `path` if it may be an engine; TensorRT decides when it reads the file.

    Raises:
        CaseError: the file cannot be read, is empty, has a model's name and no engine's first
            bytes, or has Ultralytics' own header.
    """
    try:
        with open_regular(path) as file:
            head = file.read(5)
    except OSError as error:
        raise CaseError(
            unreadable(path, error, "engine"), "Give an engine file: `halfwise build` makes one."
        ) from error
    if not head:
        raise CaseError(f"The engine {path} is empty.", "Build it again.")
    if path.suffix.lower() == ".onnx" and head[:4] != MAGIC:
        raise CaseError(
            f"{path} is not an engine: it has a model's name and no engine header.",
            "Give an engine file; `halfwise build` makes one from a model.",
        )
    if head[4:] == b"{" and head[:4] != MAGIC:
        raise CaseError(
            f"{path} begins with {int.from_bytes(head[:4], 'little')} bytes of Ultralytics' "
            "metadata, before the engine itself.",
            f"Strip it: tail -c +{int.from_bytes(head[:4], 'little') + 5} FILE > plain.engine",
        )
    return path
