"""Recognise engine files, and read their layers from the output of TensorRT's engine inspector.

The inspector's output (8.5 to 11.4) is almost JSON. 8.6 and 10.0 leave the separators of `Metadata`
(U+001E, U+001F) unescaped in strings; 8.x writes `Format/Datatype`, 11 `Format` and
`DataType` or `Datatype`; an engine built without detailed verbosity has names instead of layers.
With several profiles every layer is listed for each, with ` [profile 1]` after its name from the
second on. `Bindings` (from 11 on `I/O Tensors`) are not read.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from halfwise.errors import CaseError, RunFailed
from halfwise.files import open_regular, unreadable
from halfwise.graph.model import Network
from halfwise.records import EngineLayer, NetworkLayer, NodeName
from halfwise.tensorrt.kernels import data_type, layer_precision
from halfwise.tensorrt.layer_names import Listed, NodeFinder

_SIDES = ("Inputs", "Outputs")
_SCALES = re.compile(r"_(?:alpha|beta)$")
"""Myelin's matrix products take two factors, always FP32, as inputs."""


def engine_layers(
    text: str | bytes,
    network: Network | None = None,
    *,
    tf32: bool = True,
    built: Sequence[NetworkLayer] = (),
) -> tuple[EngineLayer, ...]:
    """Return all listed layers of an engine, in its order.

    Args:
        text: The inspector's output in JSON, or the content of trtexec's `--exportLayerInfo` file.
        network: The model that the engine was built from. Without it, a fused block of
            TensorRT 8 has at most its first and last node, and other names are not checked.
        tf32: Whether the engine may use TF32; see `kernels.layer_precision`.
        built: Layers of the network before fusion, in its order, if the build reported them.

    Raises:
        RunFailed: `text` is no list of layers, or is truncated.
    """
    raw = _raw_layers(text)
    listed = [_listed(entry) for entry in raw]
    finder = NodeFinder(network, listed, built)
    return tuple(
        _layer(entry, finder.nodes(layer), tf32=tf32)
        for entry, layer in zip(raw, listed, strict=True)
    )


def _raw_layers(text: str | bytes) -> list[Mapping[str, Any]]:
    """Return the inspector's layers; a bare name becomes a layer with only a name."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    text = text.strip("\0 \t\r\n")
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise _refusal(_why(text, error)) from None
    layers = found.get("Layers") if isinstance(found, dict) else found
    if not isinstance(layers, list):
        raise _refusal("has no list of layers")
    return [entry if isinstance(entry, dict) else {"Name": str(entry)} for entry in layers]


def _why(text: str, error: Exception) -> str:
    if not text:
        return "is empty"
    if isinstance(error, json.JSONDecodeError) and text[0] in "{[":
        # The error for an unterminated string points to its beginning.
        ends = error.pos >= len(text) - 1 or error.msg.startswith("Unterminated")
        where = "ends early, after" if ends else "is damaged at"
        return f"{where} character {len(text) if ends else error.pos}"
    return f"is not JSON; it begins with {text[:40]!r}"


def _refusal(what: str) -> RunFailed:
    return RunFailed(
        f"The engine inspector's output {what}.",
        "Inspect the engine again with the version of TensorRT that built it, as JSON.",
    )


def _listed(raw: Mapping[str, Any]) -> Listed:
    inputs, outputs = (tuple(_text(t, "Name") for t in _tensors(raw, k)) for k in _SIDES)
    return Listed(_text(raw, "Name"), _text(raw, "Metadata"), inputs, outputs)


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
    return next((found for key in keys if (found := data_type(_text(tensor, key)))), "")


def _tensors(raw: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    found = raw.get(key)
    entries = found if isinstance(found, list) else []
    return [entry if isinstance(entry, dict) else {"Name": str(entry)} for entry in entries]


def _text(raw: Mapping[str, Any], key: str) -> str:
    found = raw.get(key)
    return found if isinstance(found, str) else ""


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
