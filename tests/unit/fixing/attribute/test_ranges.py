import numpy as np
import pytest

from halfwise.formats import BF16
from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch, f32


def full(value: float, *shape: int) -> np.ndarray:
    return np.full(shape, value, np.float32)


def scaled(factor: float) -> tuple[Sketch, str]:
    """x → Mul → Reshape → Exp(−…): the product is what may not fit."""
    s = Sketch()
    product = s.op("Mul", s.input("x", [2, 3]), factor, name="product")
    moved = s.op("Reshape", product, [3, 2], name="moved")
    return s, s.op("Tanh", moved, name="reader")


def test_overflow_names_producer_and_consumers_through_data_movement() -> None:
    s, y = scaled(100.0)
    guard = only(guards(s, y, {"x": full(1000.0, 2, 3)}), "overflow")
    assert (guard.node, guard.tensor) == ("product", "product_out")
    assert guard.nodes == ("product", "reader")
    assert 3.0 <= guard.severity < 4.0
    assert guard.message == (
        "product_out reaches 1e+05, beyond FP16's 65504, in 100 % of its elements "
        "(sample inputs.npz[3])"
    )


@pytest.mark.parametrize(
    ("value", "kind"), [(65520.0, "overflow"), (65519.0, "headroom"), (32760.0, "headroom")]
)
def test_the_limit_is_where_rounding_reaches_infinity(value, kind) -> None:
    s, y = scaled(1.0)
    x = full(1.0, 2, 3)
    x[0, 0] = value
    found = guards(s, y, {"x": x})
    assert {g.kind for g in found} == {kind}
    assert {g.node for g in found} == {"product"}


def test_headroom_is_a_factor_on_what_was_seen_and_never_certain() -> None:
    s, y = scaled(20.0)
    x = {"x": full(1000.0, 2, 3)}
    assert guards(s, y, x) == ()
    guard = only(guards(s, y, x, headroom=4.0), "headroom")
    assert guard.severity < 0.5
    assert "FP16's 65504 is 3.28 times that" in guard.message


@pytest.mark.parametrize("peak", [1e6, 3.4e38])
def test_nothing_leaves_the_range_of_bf16(peak) -> None:
    s = Sketch()
    wide = s.op("Mul", s.input("x", [2, 3]), f32(peak), name="wide")
    y = s.op("Mul", wide, f32(0.5), name="reader")
    found = guards(
        s, y, {"x": full(1.0, 2, 3)}, fmt=BF16, inside=(inner("wide", "Mul", "square", np.inf),)
    )
    assert found == ()


def test_bf16_has_the_range() -> None:
    s, y = scaled(1e10)
    assert guards(s, y, {"x": full(1000.0, 2, 3)}, fmt=BF16) == ()


def test_an_input_out_of_range_concerns_its_readers() -> None:
    s = Sketch()
    y = s.op("Mul", s.input("x", [3]), 1e-6, name="reader")
    s.constants[-1] = type(s.constants[-1])(
        name=s.constants[-1].name, data_type=1, float_data=[1e-3]
    )
    guard = only(guards(s, y, {"x": full(1e6, 3)}), "overflow")
    assert (guard.node, guard.tensor, guard.nodes) == ("reader", "x", ("reader",))


def layer_norm() -> tuple[Sketch, str]:
    s = Sketch()
    x = s.input("x", [2, 16])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1]), name="sub")
    variance = s.op("ReduceMean", s.op("Pow", centred, 2.0, name="pow"), axes=[-1], name="mean")
    root = s.op("Sqrt", s.op("Add", variance, 1e-5, name="eps"), name="sqrt")
    return s, s.op("Div", centred, root, name="div")


def test_a_written_out_layer_norm_is_named_as_a_square_with_its_repair() -> None:
    s, y = layer_norm()
    x = np.tile(np.linspace(-4000, 4000, 16, dtype=np.float32), (2, 1))
    found = guards(s, y, {"x": x})
    assert {(g.kind, g.node) for g in found} == {
        ("square", "pow"),
        ("overflow", "mean"),
        ("overflow", "eps"),
    }
    square = only(found, "square")
    assert square.message.startswith("the square of sub_out reaches 1.6e+07, beyond FP16's 65504")
    assert "opset 17" in square.fix
    assert found[0] == square
    assert {n for g in found for n in g.nodes} == {"pow", "mean", "eps", "sqrt"}


def test_a_square_inside_an_op_is_possible_or_with_fp16_sums_certain() -> None:
    s = Sketch()
    y = s.op("ReduceL2", s.input("x", [2, 4]), axes=[-1], name="norm")
    x = {"x": full(200.0, 2, 4)}
    inside = (inner("norm", "ReduceL2", "square", 160000.0),)
    assert 0.5 < only(guards(s, y, x, inside=inside), "square").severity < 1
    assert only(guards(s, y, x, inside=inside, accumulate="fp16"), "square").severity > 3


def test_a_large_integer_cast_to_float_is_named_though_it_only_moves_data() -> None:
    s = Sketch()
    cast = s.op("Cast", s.input("n", [2], 7), to=1, name="cast")
    y = s.op("Mul", cast, 0.5, name="reader")
    guard = only(guards(s, y, {"n": np.array([1, 100000])}), "overflow")
    assert (guard.node, guard.nodes) == ("cast", ("reader",))


def test_a_selected_constant_has_no_headroom() -> None:
    s = Sketch()
    fill = s.op("Mul", s.input("mask", [4]), f32(-60_000), name="fill")
    inputs = {"mask": f32([0, 1, 1, 0])}
    assert not [g for g in guards(s, fill, inputs) if g.kind == "headroom"]
    inputs["mask"][0] = 0.5
    assert only(guards(s, fill, inputs), "headroom").node == "fill"
