"""The model in memory, with a name for every node and a type for every tensor."""

from collections.abc import Iterator

import onnx
import onnx.checker
import onnx.shape_inference
import onnx_ir as ir
from onnx_ir.passes import common as passes

from tests.fake_tensorrt.rounding import FLOATS


class Refused(Exception):
    """ONNX refuses the graph."""


def read_model(proto: onnx.ModelProto) -> ir.Model:
    """Return a model whose constants are initializers.

    Args:
        proto: Gets names for nodes without one, as NVIDIA's parser gives them.

    Raises:
        Refused: with what ONNX says.
    """
    for node in proto.graph.node:
        node.name = node.name or f"node_of_{next(filter(None, node.output), '')}"
    try:
        onnx.checker.check_model(proto, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        model = ir.serde.deserialize_model(inferred)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        TypeError,
        ValueError,
    ) as error:
        raise Refused(str(error)) from error
    passes.RemoveInitializersFromInputsPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every tensor of a graph."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in FLOATS
