import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.graph.intake import LONGEST_SHAPE, is_long_vector
from halfwise.graph.loading import network_from_proto
from halfwise.graph.sizes import (
    declared_axes,
    frozen_axes,
    frozen_nodes,
    frozen_states,
    shape_inputs,
)
from tests import control
from tests import frozen as models
from tests.unit.graph.sketch import Sketch, f32


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


def test_a_vector_may_be_a_shape_up_to_a_length():
    assert is_long_vector(info("x", (LONGEST_SHAPE + 1,)))
    assert not is_long_vector(info("x", (LONGEST_SHAPE,)))
    assert not is_long_vector(info("x", (LONGEST_SHAPE + 1, 2)))
    assert not is_long_vector(info("x", ("n",)))


def test_declared_axes_are_sizes_symbols_or_none():
    x, *_ = network_from_proto(relus(("N", 3, None))).graph.inputs
    assert declared_axes(x) == ("N", 3, None)


def found(sketch, *outputs):
    return shape_inputs(sketch.network(*outputs))


@pytest.mark.parametrize("op", ["Reshape", "Expand", "Tile"])
def test_operands_that_are_shapes(op):
    sketch = Sketch()
    x, s = sketch.input("x", ["N", 4]), sketch.input("s", [2], TensorProto.INT64)
    assert found(sketch, sketch.op(op, x, s)) == {"s"}


def test_slice_and_range_and_resize():
    sketch = Sketch()
    x = sketch.input("x", [1, 3, "H", "W"])
    ends = sketch.input("ends", [1], TensorProto.INT64)
    limit = sketch.input("limit", [], TensorProto.INT64)
    sizes = sketch.input("sizes", [4], TensorProto.INT64)
    cut = sketch.op("Slice", x, [0], ends, [2])
    count = sketch.op("Range", np.array(0), limit, np.array(1))
    larger = sketch.op("Resize", x, "", "", sizes, mode="nearest")
    assert found(sketch, cut, count, larger) == {"ends", "limit", "sizes"}


def test_through_arithmetic_on_shapes():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4])
    length = sketch.input("length", [], TensorProto.INT32)
    wide = sketch.op("Cast", length, to=TensorProto.INT64)
    row = sketch.op("Unsqueeze", sketch.op("Mul", wide, np.array(2)), [0])
    target = sketch.op("Concat", row, [-1], axis=0)
    assert found(sketch, sketch.op("Reshape", x, target)) == {"length"}


def test_the_shape_of_an_input_does_not_need_its_elements():
    sketch = Sketch()
    x, ids = sketch.input("x", ["N", 4]), sketch.input("ids", ["L"], TensorProto.INT64)
    assert (
        found(
            sketch,
            sketch.op("Expand", x, sketch.op("Concat", sketch.op("Shape", ids), [4], axis=0)),
        )
        == set()
    )


def test_tokens_and_indices_are_no_shapes():
    sketch = Sketch()
    x, ids = sketch.input("x", [8, 4]), sketch.input("ids", ["L"], TensorProto.INT64)
    matrix = sketch.input("matrix", [1, 2], TensorProto.INT64)
    flat = sketch.op("Reshape", sketch.op("Add", matrix, np.array(1)), [-1])
    taken = sketch.op("Gather", x, ids, axis=0)
    assert found(sketch, taken, sketch.op("Expand", x, flat)) == set()


def test_floats_are_none():
    sketch = Sketch()
    x = sketch.input("x", [1, 1, "H", "W"])
    scales = sketch.input("scales", [4])
    assert found(sketch, sketch.op("Resize", x, "", scales, mode="nearest")) == set()


def test_captured_by_a_body():
    sketch = Sketch()
    x, flag = sketch.input("x", [2, 4]), sketch.input("flag", [], TensorProto.BOOL)
    sketch.input("s", [2], TensorProto.INT64)
    nodes = [helper.make_node("Reshape", [x, "s"], ["shaped"], "shape")]
    body = control.graph("body", nodes, (), [("shaped", control.MATRIX)])
    branches = {"then_branch": body, "else_branch": body}
    sketch.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    assert found(sketch, sketch.op("Neg", "chosen")) == {"s"}


def frozen(sketch, *outputs):
    return frozen_nodes(sketch.network(*outputs))


@pytest.mark.parametrize(
    ("target", "expected"), [([1, -1], 1), ([2, 6], 1), ([-1, 4], 0), ([0, 4], 0)]
)
def test_a_reshape_to_a_fixed_first_axis(target, expected):
    sketch = Sketch()
    x = sketch.input("x", ["N", 2, 2])
    assert len(frozen(sketch, sketch.op("Reshape", x, target, name="flat"))) == expected


def test_a_reshape_of_a_fixed_first_axis_is_none():
    sketch = Sketch()
    x = sketch.input("x", [1, "L", 2])
    assert not frozen(sketch, sketch.op("Reshape", x, [1, -1]))


def test_a_class_token_that_was_expanded_at_export():
    sketch = Sketch()
    x = sketch.input("x", ["N", 4, 8])
    joined = sketch.op("Concat", f32(np.ones((1, 1, 8))), x, axis=1, name="tokens")
    assert frozen(sketch, joined) == ("tokens",)


def test_constants_joined_along_the_first_axis_or_to_a_shape_are_none():
    sketch = Sketch()
    x = sketch.input("x", ["N", 8])
    padded = sketch.op("Concat", x, f32(np.ones((1, 8))), axis=0)
    size = sketch.op("Shape", x, start=0, end=1)
    shaped = sketch.op("Reshape", x, sketch.op("Concat", size, [2, 4], axis=0))
    assert not frozen(sketch, padded, shaped)


@pytest.mark.parametrize(("first", "expected"), [(1, ()), (2, ("wide",))])
def test_an_expand_to_one_leaves_the_axis(first, expected):
    sketch = Sketch()
    x = sketch.input("x", ["N", 1])
    assert frozen(sketch, sketch.op("Expand", x, [first, 8], name="wide")) == expected


def test_the_first_frozen_node_is_told_and_what_it_fixes_behind_it_is_not():
    whole = models.network(models.frozen_batch(2, pooled=True))
    (found,) = frozen_axes(whole, batch=True)
    assert (found.node.name, found.slot, found.axis) == ("split", 1, 0)


@pytest.mark.parametrize(("layout", "along"), [(0, 1), (1, 0)])
def test_an_initial_state(layout, along):
    sketch = Sketch()
    x = sketch.input("x", ["n", 4, 3] if layout else [4, "n", 3])
    states = f32(np.ones((2, 1, 5) if layout else (1, 2, 5)))
    weights = f32(np.ones((1, 5, 3))), f32(np.ones((1, 5, 5)))
    operands = (x, *weights, f32(np.zeros((1, 10))), "", states)
    out = sketch.op("RNN", *operands, name="rnn", hidden_size=5, layout=layout)
    (found,) = frozen_states(sketch.network(out))
    assert (found.node.name, found.slot, found.axis) == ("rnn", 5, along)


def test_the_length_of_another_axis():
    (found,) = frozen_axes(models.network(models.frozen_length()), batch=False)
    assert (found.node.name, found.axis) == ("split", 1)
