"""Read ONNX files, and word what ONNX says of a graph."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.files import (
    BLOCK,
    HEAD_BYTES,
    is_regular,
    mistaken,
    no_file,
    open_regular,
    unreadable,
)
from halfwise.graph.model import graphs_of
from halfwise.graph.weights import FLOATS, LARGE_TENSOR_BYTES, PROTOBUF_BYTES
from halfwise.wording import excerpt

STAND_IN = "in-memory"
"""The file that a serialised graph names for tensors kept out of it."""


def external_files(proto: onnx.ModelProto, path: Path) -> dict[str, Path]:
    """Return the files that hold weights of the model at `path`, by their names in the model.

    They lie in the model's folder. In a cache such as Hugging Face's, the model is a symbolic link,
    and links next to it lead to the folder of its content, or deeper: weights may lie there too. A
    model may not name files outside its folder; only the user's links may lead out of it, and only
    to neighbours of the file that the user chose to read.

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
                f"{path} locates its external data at {_short(location)}, which is not a path.",
                "Save the model again.",
            ) from error
        name = os.path.normpath(location)
        stored = file.is_relative_to(store) and not _leads_out(name)
        if not stored and not file.is_relative_to(folder):
            raise CaseError(
                f"{path} refers to external data outside its own folder: {_short(location)}.",
                "External data must be next to the model: copy it there and save the model again.",
            )
        if not is_regular(file):
            raise CaseError(
                f"{path} needs the external data file {_short(location)}, which is missing or not "
                "a regular file.",
                f"Copy it into {folder}.",
            )
        offset, length = (entries.get(key, "0") for key in ("offset", "length"))
        if not (_is_size(offset) and _is_size(length)):
            raise CaseError(
                f"{path} refers to external data {_short(location)} with offset {_short(offset)} "
                f"and length {_short(length)}.",
                "Offset and length must be numbers of bytes; save the model again.",
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
    """Return the folder that external data names in `proto` are relative to.

    If they are links out of the model's folder, the real names replace them in `proto`: later
    readers follow no links.

    Raises:
        CaseError: see `external_files`; or only some of the data are such links.
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
                        f"{path} and its external data {entry.value!r} are in different folders.",
                        "Copy the model and its external data into one folder.",
                    )
                entry.value = str(file.relative_to(store))
    return store


@contextmanager
def without_weights(proto: onnx.ModelProto) -> Iterator[None]:
    """Make the tensors with data in files, and complete weights, empty for a while, in place.

    ONNX's checker then opens no file: it refuses links, and paths that are not UTF-8. It would also
    take two copies of the weights, of which it only compares the size.
    """
    weights = filter(_is_complete, proto.graph.initializer)
    emptied = [(tensor, tensor.SerializeToString()) for tensor in (*_outside(proto), *weights)]
    try:
        for tensor, _ in emptied:
            for field in ("data_location", "external_data", "raw_data"):
                tensor.ClearField(field)
            tensor.dims[:] = [0]
        yield
    finally:
        for tensor, stored in emptied:
            tensor.ParseFromString(stored)


def _is_complete(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is a large float weight whose bytes fill its shape."""
    if tensor.data_type not in FLOATS or tensor.ByteSize() <= LARGE_TENSOR_BYTES:
        return False
    nbytes = prod(tensor.dims) * ir.DataType(tensor.data_type).itemsize
    return min(tensor.dims, default=0) > 0 and nbytes == len(tensor.raw_data)


def _leads_out(name: str) -> bool:
    """Return whether a normalised name, appended to a folder, may lie outside it."""
    return name.startswith(("..", "/"))


def _is_size(text: str) -> bool:
    """Return whether a text is a number in the range of file sizes (off_t has 63 bits)."""
    return text.isdecimal() and len(text) <= len(str(1 << 63)) and int(text) < 1 << 63


def _short(text: str) -> str:
    return repr(excerpt(text))


def refuse_files(proto: onnx.ModelProto) -> None:
    """Raise a CaseError if weights lie in files: a model in memory has no folder to search."""
    for tensor in _outside(proto):
        raise CaseError(
            f"The model is in memory, but the data of its tensor {tensor.name!r} is in a file.",
            "Give the path of the model, or load it with its external data.",
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
    """Yield the tensors with data in files, of graphs, bodies and functions."""
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


def weightless(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """Return the graph without its large tensors, and these by name.

    The graph refers to them as external data in a nonexistent file; the caller passes the arrays
    when it runs.
    """
    inner = {
        v
        for body in graphs_of(model)[1:]
        for v in body.initializers.values()
        if _is_large(v) and not v.is_graph_output()
    }
    large = (*(v for v in model.graph.initializers.values() if _is_large(v)), *inner)
    tensors = [(v, v.const_value) for v in large if v.const_value is not None]
    arrays = {str(v.name): np.asarray(t.numpy(), order="C") for v, t in tensors}
    try:
        # Briefly in place: copying the graph takes longer than serialising it.
        for value, tensor in tensors:
            value.const_value = _stand_in(str(value.name), tensor)
        proto = ir.serde.serialize_model(model)
    finally:
        for value, tensor in tensors:
            value.const_value = tensor
    # ONNX Runtime takes arrays for the main graph only; names are unique, so a body finds its
    # former initializers there. A body's output must stay its own.
    moved = {v.name for v in inner}
    for body in list(graphs_in(proto.graph))[1:] if moved else []:
        for constant in [t for t in body.initializer if t.name in moved]:
            proto.graph.initializer.append(constant)
            body.initializer.remove(constant)
    return proto, arrays


def _stand_in(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(
        STAND_IN, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=""
    )


def skeleton(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """Return the graph with its large tensors as inputs, and these by name.

    So are constants whose data cannot be read.

    For ONNX's tools that only look at graphs: they would search for external data.
    """
    proto, arrays = weightless(model)
    for tensor in list(proto.graph.initializer):
        if tensor.name in arrays:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
            proto.graph.initializer.remove(tensor)
    lost = (v for v in model.graph.initializers.values() if v.const_value is None)
    for value in (v for v in lost if v.dtype and v.shape):
        proto.graph.input.append(ir.serde.serialize_value(value))
    return proto, arrays


def _is_large(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    # Recipients of the graph do not know where its file was.
    return tensor.nbytes > LARGE_TENSOR_BYTES or isinstance(tensor, ir.ExternalTensor)


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of a node, in the order of its attributes."""
    return [
        body
        for attribute in node.attribute
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
    ]


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the bodies of its nodes, at any depth."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from graphs_in(body)


def nodes_in(graph: onnx.GraphProto, depth: int = 0) -> Iterator[tuple[int, onnx.NodeProto]]:
    """Yield depth (0: the graph itself) and node, each node followed by those of its bodies."""
    for node in graph.node:
        yield depth, node
        for body in bodies_of(node):
            yield from nodes_in(body, depth + 1)


@contextmanager
def silent() -> Iterator[None]:
    """Keep onnx-ir from writing about broken graphs to standard error."""
    logger, handler = logging.getLogger("onnx_ir"), logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def blocks(file: Path) -> Iterator[bytes]:
    """Yield a file's bytes in order.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(file) as stream:
        while block := stream.read(BLOCK):
            yield block


def read_proto(path: Path, heard: Callable[[bytes], object] = lambda _: None) -> onnx.ModelProto:
    """Return the unchanged content of an ONNX file, without external data.

    Args:
        path: The file.
        heard: Called with the bytes of the file.

    Raises:
        CaseError: not a file, not ONNX, or truncated.
    """
    if not is_regular(path):
        raise CaseError(no_file(path), "Give the path of an ONNX model.")
    if (size := path.stat().st_size) > PROTOBUF_BYTES:
        raise CaseError(
            f"{path} is not an ONNX model: it has {size:,} bytes; a protobuf has at most "
            f"{PROTOBUF_BYTES:,}.",
            "Save larger models with their weights in a separate file (external data).",
        )
    try:
        with open_regular(path) as stream:
            content = stream.read()
    except OSError as error:
        raise CaseError(unreadable(path, error), "Check its permissions.") from error
    heard(content)
    proto, head = onnx.ModelProto(), content[:HEAD_BYTES]
    try:
        proto.ParseFromString(content)
    except (DecodeError, ValueError) as error:
        raise _no_model(path, head) from error
    if not proto.graph.node and not proto.graph.output:
        raise _no_model(path, head)
    return proto


def _no_model(path: Path, head: bytes) -> CaseError:
    what, hint = mistaken(head) or (
        "",
        "Give a file that onnx.save or an exporter wrote; if it is one, copy it again.",
    )
    kind = f"{what}, not an ONNX model" if what else "not an ONNX model, or truncated or damaged"
    return CaseError(f"{path} is {kind}.", hint)


_CONTEXT = re.compile(r"\.?\s*==> Context: Bad node spec")
"""After this, ONNX's checker says which node it means (onnx, checker.cc)."""
_NODE = re.compile(r" for node\. Name: (?P<name>.*?)\s*OpType: (?P<op>\S+)")
"""How it says so; older ones print the whole node instead."""


def said(error: Exception) -> str:
    """Return what ONNX says first, on one line, beginning with the node it is about.

    onnx-ir wraps ONNX's errors in its own.
    """
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    if isinstance(first, UnicodeDecodeError):
        return "a name in it is not UTF-8, so the file is probably damaged"
    text = " ".join(str(first).split()) or type(first).__name__
    what, *context = _CONTEXT.split(text, maxsplit=1)
    match = _NODE.match(context[0]) if context else None
    if match is None:
        return what
    name, op = match["name"], match["op"]
    return f"{f'node {name!r} ({op})' if name else f'a {op} without a name'}: {what}"


def said_by_checker(proto: onnx.ModelProto) -> str:
    """Return why ONNX's checker refuses a model; "" if it does not."""
    with without_weights(proto):
        try:
            onnx.checker.check_model(proto)
        except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
            return said(error)
    return ""
