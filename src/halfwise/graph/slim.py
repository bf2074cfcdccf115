"""Serialise a graph without its large tensors.

It then stays far below protobuf's 2 GB, and costs nothing to serialise.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.weights import LARGE_TENSOR_BYTES

STAND_IN = "in-memory"
"""The file that a serialised graph names for what was kept out of it."""


def weightless(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """Return the graph without its large tensors, and these by name.

    The graph refers to them as external data in a file that does not exist. Whoever runs it hands
    the arrays over.
    """
    inner = {
        v
        for body in model.graph.subgraphs()
        for v in body.initializers.values()
        if _is_large(v) and not v.is_graph_output()
    }
    large = (*(v for v in model.graph.initializers.values() if _is_large(v)), *inner)
    tensors = [(v, v.const_value) for v in large if v.const_value is not None]
    arrays = {str(v.name): np.asarray(t.numpy(), order="C") for v, t in tensors}
    try:
        # In place, for a moment: to copy the graph takes longer than to serialise it.
        for value, tensor in tensors:
            value.const_value = _elsewhere(str(value.name), tensor)
        proto = ir.serde.serialize_model(model)
    finally:
        for value, tensor in tensors:
            value.const_value = tensor
    # ONNX Runtime takes arrays for the main graph only; names are unique, so a body finds there
    # what was its own initializer. A body's output must stay its own.
    moved = {v.name for v in inner}
    for body in list(graphs_in(proto.graph))[1:] if moved else []:
        for constant in [t for t in body.initializer if t.name in moved]:
            proto.graph.initializer.append(constant)
            body.initializer.remove(constant)
    return proto, arrays


def _elsewhere(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(
        STAND_IN, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=""
    )


def skeleton(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, NDArray[np.generic]]]:
    """Return the graph with its large tensors as inputs, and these by name.

    For tools of ONNX that look at graphs alone: they would search for external data.
    """
    proto, arrays = weightless(model)
    for tensor in list(proto.graph.initializer):
        if tensor.name in arrays:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
            proto.graph.initializer.remove(tensor)
    return proto, arrays


def _is_large(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    # Nobody who gets the graph knows where its file was.
    return tensor.nbytes > LARGE_TENSOR_BYTES or isinstance(tensor, ir.ExternalTensor)


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the bodies of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from graphs_in(body)
