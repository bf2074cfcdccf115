import onnx_ir as ir
from onnx import TensorProto, helper

from halfwise.graph.model import network_from_proto
from halfwise.graph.sizes import (
    LONGEST_SHAPE,
    contradicted,
    declared_axes,
    declared_shapes,
    forget_shapes,
    forget_sizes,
    is_long_vector,
)


def info(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def relus(shape):
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    graph = helper.make_graph(nodes, "g", [info("x", shape)], [info("y", shape)])
    graph.value_info.append(info("t", shape))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_axes_of_negative_size_are_dynamic_and_the_given_model_stays():
    """Paddle's exporter writes -1 where the size is not known; ONNX Runtime takes any."""
    proto = relus((-1, 3, 0))
    before = proto.SerializeToString()
    written = ir.serde.serialize_model(network_from_proto(proto).model).graph
    for value in (*written.input, *written.output, *written.value_info):
        first, *rest = value.type.tensor_type.shape.dim
        assert not first.HasField("dim_value")
        assert [d.dim_value for d in rest] == [3, 0]
    assert proto.SerializeToString() == before


def test_sizes_of_computed_values_are_forgotten_and_the_rank_stays():
    graph = relus((2, 3)).graph
    forget_sizes([graph])
    for value in (*graph.value_info, *graph.output):
        assert [d.HasField("dim_value") for d in value.type.tensor_type.shape.dim] == [False] * 2
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [2, 3]


def test_shapes_of_computed_values_are_forgotten():
    graph = relus((2, "n", None)).graph
    assert declared_shapes([graph]) == dict.fromkeys("ty", (2, "n", None))
    forget_shapes([graph])
    assert declared_shapes([graph]) == {}
    assert graph.input[0].type.tensor_type.HasField("shape")


def test_another_rank_or_size_contradicts_and_a_name_does_not():
    declared = {"rank": (2,), "size": (2, 3), "named": ("n", 3), "same": (None, 3), "gone": (1,)}
    inferred = {"rank": (2, 1), "size": (2, 4), "named": (2, 3), "same": (2, 3)}
    assert contradicted(declared, inferred) == ("rank", "size")


def test_a_vector_may_be_a_shape_up_to_a_length():
    assert is_long_vector(info("x", (LONGEST_SHAPE + 1,)))
    assert not is_long_vector(info("x", (LONGEST_SHAPE,)))
    assert not is_long_vector(info("x", (LONGEST_SHAPE + 1, 2)))
    assert not is_long_vector(info("x", ("n",)))


def test_declared_axes_are_sizes_symbols_or_none():
    x, *_ = network_from_proto(relus(("N", 3, None))).graph.inputs
    assert declared_axes(x) == ("N", 3, None)
