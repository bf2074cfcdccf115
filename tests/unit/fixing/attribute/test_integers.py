"""Whole numbers computed as integers are those that FP32 gives, bit for bit below 2²⁴."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.emulation.ort import Session
from halfwise.fixing.attribute.integers import Integers, is_whole
from halfwise.formats import BF16, FP16
from halfwise.graph.loading import infer_again
from halfwise.graph.model import Names, Writer
from halfwise.records import InnerObservation, NodeName
from halfwise.reporting.guards import message
from tests.unit.fixing.attribute.observing import Inputs, guards, inner, only
from tests.unit.graph.sketch import Sketch, f32


def positions() -> tuple[Sketch, str]:
    s = Sketch()
    cast = s.op("Cast", s.input("n", [8], 7), to=1, name="cast")
    moved = s.op("Unsqueeze", cast, [1], name="moved")
    return s, s.op("Mul", moved, 0.001, name="reader")


def counting(last: int) -> dict[str, np.ndarray]:
    return {"n": np.arange(last - 7, last + 1)}


@pytest.mark.parametrize(("fmt", "limit"), [(FP16, 2048), (BF16, 256)])
def test_integers_beyond_the_significand(fmt, limit) -> None:
    assert guards(*positions(), counting(limit), fmt=fmt) == ()
    guard = only(guards(*positions(), counting(limit + 1), fmt=fmt), "integer")
    assert (guard.node, guard.nodes) == ("cast", ("reader",))
    assert 1.0 <= guard.severity < 2.0
    assert f"counts up to {limit + 1}" in message(guard)


def test_a_rounded_tensor_holds_integers_too() -> None:
    s = Sketch()
    y = s.op("Mul", s.op("Floor", s.input("x", [2]), name="floor"), 0.001, name="reader")
    guard = only(guards(s, y, {"x": f32([5.5, 3000.7])}), "integer")
    assert guard.nodes == ("floor", "reader")


@pytest.mark.parametrize(("last", "named"), [(2048, False), (4095, True)])
def test_a_table_of_positions(last, named) -> None:
    s = Sketch()
    table = s.constant(np.arange(last + 1, dtype=np.float32), "table")
    y = s.op("Mul", table, s.input("x", [1]), name="reader")
    found = guards(s, y, {"x": f32([0.001])})
    assert [(g.kind, g.tensor) for g in found] == ([("integer", "table")] if named else [])


def rotary(last: float) -> tuple[Sketch, str]:
    s = Sketch()
    cast = s.op("Cast", s.input("n", [8], 7), to=1, name="cast")
    phase = s.op("Mul", cast, f32([last / 500]), name="phase")
    return s, s.op("Cos", s.op("Reshape", phase, [2, 4]), name="cos")


def test_large_angles_and_what_makes_them() -> None:
    guard = only(guards(*rotary(500.0), counting(500)), "angle")
    assert (guard.node, guard.nodes) == ("cos", ("phase", "cos"))
    assert "angles up to 500 rad" in message(guard)
    assert "error of up to 0.125 rad" in message(guard)
    assert 1.0 < guard.severity < 2.0


@pytest.mark.parametrize(
    ("angle", "fmt", "named"),
    [(31.9, FP16, False), (32.1, FP16, True), (3.9, BF16, False), (4.1, BF16, True)],
)
def test_angles_count_from_where_half_a_spacing_is_a_hundredth_of_a_radian(
    angle, fmt, named
) -> None:
    s = Sketch(22)
    y = s.op("Sin", s.op("Add", s.input("x", [1]), 0.0, name="angle"), name="sin")
    found = guards(s, y, {"x": f32([angle])}, fmt=fmt)
    assert [g.nodes for g in found] == ([("angle", "sin")] if named else [])


def test_producers_of_small_terms_are_left_out_but_those_of_small_factors_are_not() -> None:
    s = Sketch()
    first = s.op("Tanh", s.input("x", [1]), name="first")
    factor, term = (s.op("Tanh", first, name=name) for name in ("factor", "term"))
    angle = s.op("Add", s.op("Mul", factor, 1000.0, name="large"), term, name="sum")
    y = s.op("Sin", angle, name="sin")
    found = only(guards(s, y, {"x": f32([1.0])}), "angle")
    assert found.nodes == ("factor", "large", "sum", "sin")


def test_a_running_sum_of_small_steps_is_a_large_angle() -> None:
    s = Sketch()
    step = s.op("Tanh", s.input("x", [400]), name="step")
    phase = s.op("CumSum", step, np.array(0), name="phase")
    y = s.op("Sin", phase, name="sin")
    found = only(guards(s, y, {"x": np.ones(400, np.float32)}), "angle")
    assert found.nodes == ("step", "phase", "sin")


@pytest.mark.parametrize(
    ("side", "named", "certain"), [(512, False, False), (2048, True, False), (4096, True, True)]
)
def test_a_grid_over_a_large_image(side, named, certain) -> None:
    s = Sketch()
    grid = s.op("Tanh", s.input("g", [1, 1, 1, 2]), name="grid")
    y = s.op("GridSample", s.input("x", [1, 1, 2, side]), grid, name="sample")
    inputs = {"x": np.ones((1, 1, 2, side), np.float32), "g": np.ones((1, 1, 1, 2), np.float32)}
    found = guards(s, y, inputs)
    assert [g.nodes for g in found] == ([("grid", "sample")] if named else [])
    assert [g.severity >= 1 for g in found] == [certain] * named


def test_the_arithmetic_that_makes_a_grid_is_needed_too() -> None:
    s = Sketch()
    pixels = s.op("Relu", s.input("g", [1, 1, 1, 2]), name="pixels")
    scaled = s.op("Mul", s.op("Add", pixels, 0.5, name="centre"), 2 / 4096, name="scale")
    grid = s.op("Sub", scaled, 1.0, name="shift")
    y = s.op("GridSample", s.input("x", [1, 1, 2, 4096]), grid, name="sample")
    inputs = {"x": np.ones((1, 1, 2, 4096), np.float32), "g": np.ones((1, 1, 1, 2), np.float32)}
    guard = only(guards(s, y, inputs), "grid")
    assert guard.nodes == ("pixels", "centre", "scale", "shift", "sample")


X = {"x": np.ones((2, 4), np.float32)}


def choice() -> tuple[Sketch, str]:
    s = Sketch()
    scores = s.op("Sigmoid", s.input("x", [2, 4]), name="scores")
    return s, s.op("ArgMax", s.op("Transpose", scores), axis=-1, name="choice")


def margin(value: float) -> tuple[InnerObservation, ...]:
    return (inner("choice", "ArgMax", "margin", value),)


def test_a_close_choice_names_the_scores_too() -> None:
    guard = only(guards(*choice(), X, inside=margin(0.25)), "margin")
    assert (guard.node, guard.nodes) == ("choice", ("scores", "choice"))
    assert 0.5 <= guard.severity < 1.0
    assert "differ by 0.25 of FP16's spacing there" in message(guard)


@pytest.mark.parametrize("value", [1.0, 50.0])
def test_a_clear_choice_is_none(value) -> None:
    assert guards(*choice(), X, inside=margin(value)) == ()


def test_a_tie_means_less_than_a_close_choice() -> None:
    tie, close = (guards(*choice(), X, inside=margin(v))[0].severity for v in (0.0, 0.9))
    assert tie < close


def test_a_suppression_names_what_makes_its_scores() -> None:
    s = Sketch()
    boxes = s.op("Relu", s.input("b", [1, 3, 4]), name="boxes")
    scores = s.op("Sigmoid", s.input("x", [1, 1, 3]), name="scores")
    y = s.op("NonMaxSuppression", boxes, scores, [3], f32([0.5]), name="choice")
    inputs = {"b": np.ones((1, 3, 4), np.float32), "x": np.ones((1, 1, 3), np.float32)}
    inside = (inner("choice", "NonMaxSuppression", "margin", 0.25),)
    guard = only(guards(s, y, inputs, inside=inside), "margin")
    assert (guard.node, guard.tensor, guard.nodes) == ("choice", "scores_out", ("scores",))


@pytest.mark.parametrize(("rounds", "named"), [(True, ["ends", "neg", "begins"]), (False, [])])
def test_sums_of_integers_hold_integers(rounds, named) -> None:
    s = Sketch()
    durations = s.input("x", [1, 40])
    durations = s.op("Round", durations, name="round") if rounds else s.op("Abs", durations)
    ends = s.op("CumSum", durations, np.array(1), name="ends")
    begins = s.op("Sub", ends, durations, name="begins")
    y = s.op("Sub", s.op("Tanh", begins, name="tanh"), s.op("Neg", ends, name="neg"))
    found = guards(s, y, {"x": np.full((1, 40), 100.0, np.float32)})
    some = [g for g in found if g.kind == "integer"]
    assert [g.node for g in some] == named
    if rounds:
        assert set(some[0].nodes) == {"ends", "begins", "neg"}
        assert some[2].nodes == ("begins", "tanh")


def test_a_flat_index_holds_integers_whatever_made_it() -> None:
    """y · width + x, with x clipped to the image."""
    s = Sketch()
    n = s.op("Cast", s.input("n", [8], 7), to=1, name="cast")
    row = s.op("Floor", s.op("Div", n, 160.0, name="div"), name="row")
    along = s.op("Clip", s.op("Add", n, 1.0, name="right"), 0.0, 159.0, name="along")
    flat = s.op("Add", s.op("Mul", row, 160.0, name="rows"), along, name="flat")
    y = s.op("Gather", s.input("x", [30000]), s.op("Cast", flat, to=7, name="index"), name="y")
    inputs: Inputs = {"n": np.arange(25116, 25124), "x": np.zeros(30000, np.float32)}
    found = {g.node: g for g in guards(s, y, inputs) if g.kind == "integer"}
    assert found.keys() == {"cast", "right", "rows", "flat"}
    assert found[NodeName("flat")].nodes == ("flat", "index")


@pytest.mark.parametrize(("to", "named"), [(7, True), (6, True), (5, False)])
def test_a_float_that_becomes_an_index_is_exact_or_wrong(to, named) -> None:
    """Sound in INT16 is neither an index nor a size."""
    s = Sketch()
    place = s.op("Mul", s.input("x", [4]), 5000.0, name="place")
    y = s.op("Cast", place, to=to, name="index")
    found = guards(s, y, {"x": f32([0.1, 0.2, 0.5, 0.9])})
    assert [(g.node, g.nodes) for g in found] == [("place", ("place", "index"))] * named


@pytest.mark.parametrize(("value", "named"), [(-1e4, False), (-2999.0, True)])
def test_a_mask_made_from_integers_counts_nothing(value, named) -> None:
    s = Sketch()
    off = s.op("Sub", 1.0, s.op("Cast", s.input("n", [4], 7), to=1, name="cast"), name="off")
    y = s.op("Add", s.input("x", [4]), s.op("Mul", off, value, name="mask"), name="add")
    found = guards(s, y, {"n": np.array([1, 0, 1, 0]), "x": f32([1, 2, 3, 4])})
    assert ["mask" in g.node for g in found if g.kind == "integer"] == [True] * named


OPS = ("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Mod", "Floor", "Div", "Unsqueeze")


@settings(max_examples=30)
@given(
    ops=st.lists(st.tuples(st.sampled_from(OPS), st.integers(-9, 9)), min_size=1, max_size=4),
    positions=st.lists(st.integers(-300, 300), min_size=4, max_size=4),
    dtype=st.sampled_from((TensorProto.INT64, TensorProto.INT32)),
)
def test_chains(ops: list[tuple[str, int]], positions: list[int], dtype: int) -> None:
    s = Sketch()
    number = s.op("Cast", s.input("p", [4], dtype), to=TensorProto.FLOAT, name="count")
    x = number
    for op, constant in ops:
        if op == "Div":
            x = s.op("Floor", s.op("Div", x, f32(constant or 7)))
        elif op == "Mod":
            x = s.op("Mod", x, f32(constant or 7), fmod=1)
        elif op in ("Neg", "Abs", "Floor"):
            x = s.op(op, x)
        elif op == "Unsqueeze":
            x = s.op(op, x, [0])
        else:
            x = s.op(op, x, number if constant % 2 else f32(constant))
    network = s.network(x)
    end = network.graph.outputs[0]
    assert is_whole(end)
    w = Writer(network.model, "end", Names(network.graphs()))
    whole = Integers(w).of(end)
    network.graph.extend(w.made)
    network.graph.outputs.append(whole)
    infer_again(network)
    assert whole.dtype == ir.DataType.INT64
    kind = np.int64 if dtype == TensorProto.INT64 else np.int32
    floats, integers = Session(network.model).run({"p": np.array(positions, kind)}).values()
    np.testing.assert_array_equal(integers, floats)


def test_what_is_not_whole() -> None:
    s = Sketch()
    number = s.op("Cast", s.input("p", [4], TensorProto.INT64), to=TensorProto.FLOAT)
    x = s.input("x", [4])
    ends = [
        s.op("Mul", number, f32(0.5)),
        s.op("Div", number, f32(2)),
        s.op("Floor", s.op("Div", number, f32(0))),
        s.op("Mod", number, f32(0), fmod=1),
        s.op("Add", number, x),
        s.op("Add", number, f32(1e12)),
        s.op("Sqrt", number),
    ]
    assert not any(is_whole(v) for v in s.network(*ends).graph.outputs)
