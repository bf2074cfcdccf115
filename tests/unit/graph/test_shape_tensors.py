import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.graph.shape_tensors import shape_inputs
from tests import control
from tests.unit.graph.sketch import Sketch


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
