"""External data: the files beside a model that hold its weights."""

from collections.abc import Iterator
from pathlib import Path

import onnx

from halfwise.errors import CaseError


def external_files(proto: onnx.ModelProto, path: Path) -> list[Path]:
    """Return the files that hold weights of the model at `path`, each once.

    Raises:
        CaseError: a file is missing, truncated, or lies outside the model's folder.
    """
    folder = path.parent.resolve()
    files: dict[Path, None] = {}
    for tensor in _tensors(proto.graph):
        if not onnx.external_data_helper.uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        file = (folder / location).resolve()
        if not file.is_relative_to(folder):
            raise CaseError(
                f"{path} asks for external data outside its own folder: {location!r}.",
                "External data must lie beside the model; copy it there and save the model again.",
            )
        if not file.is_file():
            raise CaseError(
                f"{path} needs the external data file {location!r}, which is missing.",
                f"Copy it into {folder}.",
            )
        offset, length = (entries.get(key, "0") for key in ("offset", "length"))
        if not (offset.isdecimal() and length.isdecimal()):
            raise CaseError(
                f"{path} gives external data {location!r} at {offset!r} of {length!r} bytes.",
                "Expected numbers of bytes; save the model again.",
            )
        end = int(offset) + int(length)
        if file.stat().st_size < end:
            raise CaseError(
                f"External data file {location!r} is truncated: {file.stat().st_size} "
                f"bytes, {end} expected.",
                "Copy it again.",
            )
        files[file] = None
    return list(files)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for body in (attribute.g, *attribute.graphs):
                yield from _tensors(body)
