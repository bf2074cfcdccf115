"""External data: the files beside a model that hold its weights."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from halfwise.errors import CaseError


def external_files(proto: onnx.ModelProto, path: Path) -> list[Path]:
    """Return the files that hold weights of the model at `path`, each once.

    Raises:
        CaseError: a file is missing, truncated, or lies outside the model's folder.
    """
    folder = path.parent.resolve()
    files: dict[Path, None] = {}
    for tensor in _outside(proto):
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
