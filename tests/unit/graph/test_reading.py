import onnx_ir as ir
import pytest

from halfwise.graph import reading
from tests.unit.graph.sketch import Sketch, f32


def value(sketch: Sketch, output: str) -> ir.Value:
    return sketch.network(output).graph.outputs[0]


def test_constants_are_seen_through_data_movement() -> None:
    s = Sketch()
    moved = s.op("Expand", s.op("Reshape", f32([2.0, 2.0]), [1, 2]), [3, 2])
    found = value(s, moved)
    assert reading.is_constant(found)
    assert reading.scalar(found) == 2.0


def test_weights_are_no_scalars() -> None:
    s = Sketch()
    y = s.op("Mul", s.input("x", [2]), f32([1.0, 2.0]))
    assert reading.split_constant(value(s, y), "Mul") is None


@pytest.mark.parametrize("swapped", [True, False])
def test_a_factor_is_found_on_either_side(swapped) -> None:
    s = Sketch()
    x = s.input("x", [2])
    found = reading.split_constant(
        value(s, s.op("Mul", 3.0, x) if swapped else s.op("Mul", x, 3.0)), "Mul"
    )
    assert found is not None
    assert (found[0].value.name, found[1]) == ("x", 3.0)


def test_a_dividend_is_no_factor() -> None:
    s = Sketch()
    y = s.op("Div", 3.0, s.input("x", [2]))
    assert reading.split_constant(value(s, y), "Div") is None


def test_a_cube_is_no_square() -> None:
    s = Sketch()
    assert reading.square_of(value(s, s.op("Pow", s.input("x", [2]), 3.0))) is None


def test_readers_look_through_movement_and_tell_the_slot() -> None:
    s = Sketch()
    x = s.op("Relu", s.input("x", [2, 3]))
    moved = s.op("Transpose", x)
    y = s.op("MatMul", x, moved)
    node = value(s, y).producer()
    assert node is not None
    relu = node.inputs[0]
    assert relu is not None
    seen = {(n.op_type, slot, len(passed)) for n, slot, passed in reading.readers(relu)}
    assert seen == {("MatMul", 0, 0), ("MatMul", 1, 1)}


@pytest.mark.parametrize("opset", [13, 18])
def test_axes_are_read_from_attribute_and_input(opset) -> None:
    s = Sketch(opset)
    x = s.input("x", [2, 3])
    y = s.op("ReduceMean", x, axes=[1]) if opset < 18 else s.op("ReduceMean", x, [1])
    node = value(s, y).producer()
    assert node is not None
    assert reading.axes_of(node) == (1,)
