"""External data: the files beside a model that hold its weights."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.files import is_regular, is_special
from halfwise.scratch import scratch

_SHOWN = 100
"""Characters of a file's own words that a message quotes."""


def external_files(proto: onnx.ModelProto, path: Path) -> dict[str, Path]:
    """Return the files that hold weights of the model at `path`, by the names that it has for them.

    They lie in its folder. In a cache such as Hugging Face's, the model is itself a symbolic link,
    and the links beside it lead to where its own content lies: such a file lies there, or deeper.
    What the model names is never outside of its folder; only links may lead there, which are the
    user's, and only to the neighbours of the file that the user chose to read.

    Raises:
        CaseError: a file is missing, truncated, or lies elsewhere.
    """
    folder, store = path.parent.resolve(), path.resolve().parent
    files: dict[str, Path] = {}
    for tensor in _outside(proto):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        try:
            file = (folder / location).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, or links in a circle
            raise CaseError(
                f"{path} names external data by what is no path: {_short(location)}.",
                "Save the model again.",
            ) from error
        name = os.path.normpath(location)
        stored = file.is_relative_to(store) and not _leads_out(name)
        if not stored and not file.is_relative_to(folder):
            raise CaseError(
                f"{path} asks for external data outside its own folder: {_short(location)}.",
                "External data must lie beside the model; copy it there and save the model again.",
            )
        if not is_regular(file):
            raise CaseError(
                f"{path} needs the external data file {_short(location)}, which is missing or no "
                "regular file.",
                f"Copy it into {folder}.",
            )
        offset, length = (entries.get(key, "0") for key in ("offset", "length"))
        if not (_is_size(offset) and _is_size(length)):
            raise CaseError(
                f"{path} gives external data {_short(location)} at {_short(offset)} of "
                f"{_short(length)} bytes.",
                "Expected numbers of bytes; save the model again.",
            )
        end = int(offset) + int(length)
        if file.stat().st_size < end:
            raise CaseError(
                f"External data file {_short(location)} is truncated: {file.stat().st_size} "
                f"bytes, {end} expected.",
                "Copy it again.",
            )
        files[name] = file
    return files


def weights_folder(proto: onnx.ModelProto, path: Path) -> Path:
    """Return the folder that the names of external data in `proto` are relative to.

    Where they are links out of the model's folder, the real names take their place, in `proto`:
    what reads the data later follows no links.

    Raises:
        CaseError: see `external_files`; or some of the data is such a link, and some is not.
    """
    files, store = external_files(proto, path), path.resolve().parent
    if all(file.is_relative_to(path.parent.resolve()) for file in files.values()):
        return path.parent
    for tensor in _outside(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                file = files[os.path.normpath(entry.value)]
                if not file.is_relative_to(store):
                    raise CaseError(
                        f"{path} and {entry.value!r} beside it lie in different folders.",
                        "Copy the model and its external data into one folder.",
                    )
                entry.value = str(file.relative_to(store))
    return store


@contextmanager
def without_links(proto: onnx.ModelProto, path: Path) -> Iterator[Path]:
    """Give a path of the model whose external data are no links: files of zeros are in their place.

    ONNX's checker refuses links, paths that are no UTF-8 too, and reads no data. The files are
    sparse: they take no space. None is made under a name that leads out of the folder, which the
    checker refuses by itself.

    Raises:
        CaseError: see `external_files`.
        OSError: the files cannot be made.
    """
    files = external_files(proto, path)
    # Bytes that are no UTF-8 are lone surrogates (PEP 383).
    readable = not any("\ud800" <= character <= "\udfff" for character in str(path))
    if readable and all(file.is_relative_to(path.parent.resolve()) for file in files.values()):
        yield path
        return
    with scratch() as folder:
        copy = folder / (path.name if readable else "model.onnx")
        shutil.copyfile(path, copy)
        for name, file in files.items():
            if _leads_out(name):
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
            os.truncate(folder / name, file.stat().st_size)
        yield copy


def _leads_out(name: str) -> bool:
    """Return whether a normalised name, put behind any folder, may be outside of it."""
    return name.startswith(("..", "/"))


def _is_size(text: str) -> bool:
    """Return whether a text is a number that a file's size may be (off_t has 63 bits)."""
    return text.isdecimal() and len(text) <= len(str(1 << 63)) and int(text) < 1 << 63


def _short(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def refuse_special_files(proto: onnx.ModelProto, path: Path) -> None:
    """Raise a CaseError if weights lie in a pipe or device; ONNX's checker would open it and wait.

    What is missing or wrong otherwise passes.
    """
    for tensor in _outside(proto):
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        file = path.parent / location
        if is_special(file):
            raise CaseError(
                f"{path} needs the external data file {_short(location)}, which is no regular "
                "file.",
                "Copy the data to a file beside the model.",
            )


def refuse_files(proto: onnx.ModelProto) -> None:
    """Raise a CaseError if weights lie in files: a model in memory has no folder to find them."""
    for tensor in _outside(proto):
        raise CaseError(
            f"The model is in memory, and the data of its tensor {tensor.name!r} is in a file.",
            "Give the model's path, or load the data with it.",
        )


def find_beside(model: ir.Model, folder: Path) -> None:
    """Make all external data of `model` relative to `folder`, in functions too."""
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        ir.external_data.set_base_dir(graph, folder)
    for function in model.functions.values():
        for attribute in function.attributes.values():
            if isinstance(attribute.value, ir.ExternalTensor):
                attribute.value.base_dir = folder


def _outside(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose data is in files: of graphs, bodies and functions."""
    tensors = [*_tensors(proto.graph)]
    for function in proto.functions:
        tensors += [*_attribute_tensors(function.attribute_proto), *_node_tensors(function.node)]
    return filter(onnx.external_data_helper.uses_external_data, tensors)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        yield from _attribute_tensors(node.attribute)


def _attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors)
        for body in (attribute.g, *attribute.graphs):
            yield from _tensors(body)
