"""Types and shapes as ONNX infers them, for graphs that its checker takes."""

import onnx
import onnx_ir as ir

from halfwise.graph.intake import checkable
from halfwise.graph.sizes import forget_shapes, forget_sizes, is_long_vector
from halfwise.graph.slim import graphs_in


def checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph that ONNX's checker takes, with the types and shapes that ONNX infers.

    Args:
        proto: The graph, without large tensors; loses the declared sizes of computed values.

    Raises:
        ValidationError, InferenceError: ONNX refuses a node, or types contradict each other.
    """
    onnx.checker.check_model(checkable(proto))
    forget_sizes(graphs_in(proto.graph))
    try:
        inferred = infer_shapes(proto, strict=True)
    except onnx.shape_inference.InferenceError:
        # Ranks may be wrong too, or the inference of ONNX: that of some of its functions fails.
        forget_shapes(graphs_in(proto.graph))
        inferred = infer_shapes(proto, check_type=True)
    onnx.checker.check_model(checkable(inferred))
    return inferred


def infer_shapes(
    proto: onnx.ModelProto, *, check_type: bool = False, strict: bool = False
) -> onnx.ModelProto:
    """Return a graph with the types and shapes that ONNX infers, from values of constants too.

    Args:
        proto: The graph, without large tensors.
        check_type: Raise where types contradict each other, instead of leaving them open.
        strict: Raise where shapes do, too.
    """
    check_type |= strict
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=check_type, strict_mode=strict)
    if not any(is_long_vector(info) for info in inferred.graph.value_info):
        # Propagating values finds more shapes, but takes a long vector for a long shape: minutes.
        inferred = onnx.shape_inference.infer_shapes(
            inferred, check_type=check_type, data_prop=True
        )
    return inferred


def take_types(model: ir.Model, inferred: onnx.ModelProto) -> None:
    """Give every computed value of `model`, in place, its type and shape in `inferred`."""
    types = {
        info.name: info.type
        for graph in graphs_in(inferred.graph)
        for info in (*graph.input, *graph.output, *graph.value_info)
    }
    computed = [v for node in model.graph.all_nodes() for v in node.outputs]
    for value in (*computed, *(v for body in model.graph.subgraphs() for v in body.inputs)):
        if value.name in types:
            value.type = ir.serde.deserialize_type_proto_for_type(types[value.name])
            value.shape = ir.serde.deserialize_type_proto_for_shape(types[value.name])
