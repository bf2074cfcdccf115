import numpy as np
import pytest

from halfwise.formats import BF16, FP16
from halfwise.records import InnerObservation, NodeName
from halfwise.reporting.remarks import message
from tests.unit.fixing.attribute.observing import Inputs, guards, inner, only
from tests.unit.graph.sketch import Sketch, f32


def rows(*values: float) -> np.ndarray:
    return np.repeat(f32(values)[:, None], 4, axis=1)


def rms(eps: float, end: str = "div", bound: str = "Add") -> tuple[Sketch, str]:
    s = Sketch()
    x = s.input("x", [2, 4])
    mean = s.op("ReduceMean", s.op("Mul", x, x, name="square"), axes=[-1], name="mean")
    total = s.op(bound, mean, eps, name="eps")
    if end == "power":
        return s, s.op("Mul", x, s.op("Pow", total, -0.5, name="power"), name="end")
    root = s.op("Sqrt", total, name="sqrt")
    if end == "div":
        return s, s.op("Div", x, root, name="end")
    return s, s.op("Mul", x, s.op("Reciprocal", root, name="inverse"), name="end")


@pytest.mark.parametrize("bound", ["Add", "Max", "Clip"])
@pytest.mark.parametrize(
    ("end", "after"),
    [("div", {"sqrt", "end"}), ("reciprocal", {"sqrt", "inverse"}), ("power", {"power"})],
)
def test_an_eps_that_values_rest_on_is_a_certain_zero_division(bound, end, after) -> None:
    s, y = rms(1e-12, end, bound)
    raised = guards(s, y, {"x": rows(2e-5, 1.0)})
    eps = only(raised, "eps")
    assert eps.node == "eps"
    assert 2.0 < eps.severity < 3.0
    assert set(eps.nodes) == {"square", "mean", "eps", *after}
    assert "becomes zero in FP16, and" in message(eps)
    assert "values as small as 4" in message(eps)
    assert "opset 23" in eps.fix
    assert raised[0] == eps


def test_a_vanishing_eps_under_large_values_is_possible() -> None:
    s, y = rms(1e-12)
    eps = only(guards(s, y, {"x": rows(1.0, 2.0)}), "eps")
    assert eps.severity == pytest.approx(0.6)
    assert message(eps).endswith("once a value is near zero")


def test_a_subnormal_eps_matters_where_values_rest_on_it() -> None:
    s, y = rms(1e-6)
    assert guards(s, y, {"x": rows(1.0, 2.0)}) == ()
    guard = only(guards(s, y, {"x": rows(0.0, 2.0)}), "eps")
    assert 1.0 <= guard.severity < 2.0
    assert "becomes subnormal" in message(guard)
    unknown = only(guards(s, y, {"x": rows(0.0, 2.0)}, details=False), "eps")
    assert unknown.severity < 0.5


@pytest.mark.parametrize(("eps", "fmt"), [(1e-3, None), (1e-12, BF16)])
def test_an_eps_that_the_format_holds_is_no_suspicion(eps, fmt) -> None:
    s, y = rms(eps)
    options = {"fmt": fmt} if fmt else {}
    assert not [g for g in guards(s, y, {"x": rows(0.0, 2.0)}, **options) if g.kind == "eps"]


def test_an_addend_that_nothing_demanding_reads_is_no_eps() -> None:
    s = Sketch()
    y = s.op("Relu", s.op("Add", s.input("x", [2, 4]), 1e-9))
    assert guards(s, y, {"x": rows(1.0, 2.0)}) == ()


def test_the_numerator_may_be_tiny() -> None:
    s = Sketch()
    y = s.op("Div", s.op("Add", s.input("x", [2, 4]), 1e-9), 2.0)
    assert guards(s, y, {"x": rows(1.0, 2.0)}) == ()


@pytest.mark.parametrize("op", ["Log", "Reciprocal", "Div", "Pow"])
def test_values_that_vanish_before_a_demanding_operator(op) -> None:
    s = Sketch()
    x = s.input("x", [2, 4])
    power = s.op("Mul", x, x, name="power")
    y = {
        "Div": lambda: s.op("Div", x, power, name="reader"),
        "Pow": lambda: s.op("Pow", power, -0.25, name="reader"),
    }.get(op, lambda: s.op(op, power, name="reader"))()
    guard = only(guards(s, y, {"x": rows(1e-5, 1.0)}), "underflow")
    assert (guard.node, guard.tensor, guard.nodes) == ("reader", "power_out", ("power", "reader"))
    assert 2.0 < guard.severity < 3.0
    assert "50 % of all its elements become zero in FP16" in message(guard)


def test_a_dividend_that_vanishes_with_its_divisor_is_needed_too() -> None:
    s = Sketch()
    x = s.input("x", [2, 4])
    above = s.op("Mul", s.op("Abs", x, name="abs"), x, name="above")
    power = s.op("Mul", x, x, name="power")
    y = s.op("Div", above, power, name="reader")
    raised = [g for g in guards(s, y, {"x": rows(1e-5, 1.0)}) if g.node == "reader"]
    assert [g.nodes for g in raised] == [("above", "power", "reader")]


def test_what_share_vanishes_says_on_how_many_samples_it_was_counted() -> None:
    s = Sketch()
    x = s.input("x", [2, 4])
    y = s.op("Log", s.op("Mul", x, x, name="power"), name="reader")
    guard = only(guards(s, y, {"x": rows(1e-5, 1.0)}, samples=("a", "b", "c")), "underflow")
    assert "50 % of the elements of 1 sample become zero in FP16" in message(guard)


def test_a_root_alone_makes_small_errors_of_small_values() -> None:
    s = Sketch()
    x = s.input("x", [2, 4])
    y = s.op("Sqrt", s.op("Mul", x, x, name="power"), name="reader")
    assert only(guards(s, y, {"x": rows(1e-5, 1.0)}), "underflow").severity < 1
    end = s.op("Div", x, y, name="end")
    guard = max(guards(s, end, {"x": rows(1e-5, 1.0)}), key=lambda g: g.severity)
    assert guard.nodes == ("power", "reader", "end")
    assert guard.severity > 2


def test_a_tensor_wholly_below_the_normal_range() -> None:
    s = Sketch()
    tiny = s.op("Mul", s.input("x", [2, 4]), 1e-3, name="tiny")
    y = s.op("Mul", s.op("Reshape", tiny, [8]), 1e6, name="reader")
    guard = only(guards(s, y, {"x": rows(1e-4, 1e-3)}), "underflow")
    assert (guard.tensor, guard.nodes) == ("tiny_out", ("tiny", "reader"))
    assert 1.0 < guard.severity < 2.0
    assert "all of it becomes subnormal" in message(guard)


def test_a_tensor_of_subnormals_that_keep_their_accuracy_is_only_possible() -> None:
    s = Sketch()
    y = s.op("Relu", s.op("Mul", s.input("x", [2, 4]), 1e-3, name="tiny"), name="reader")
    # Half the spacing, 3e-8, is 0.1 % of 3e-5 and 6 % of 5e-7.
    for largest, certain in ((3e-2, False), (5e-4, True)):
        raised = guards(s, y, {"x": rows(largest / 2, largest)})
        severities = [g.severity for g in raised if g.tensor == "tiny_out"]
        assert [severity > 1 for severity in severities] == [certain]


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
    y = s.op("Mul", s.op("Floor", s.input("x", [3]), name="floor"), 0.001, name="reader")
    guard = only(guards(s, y, {"x": f32([5.5, 3000.7, 3001.7])}), "integer")
    assert guard.nodes == ("floor", "reader")


@pytest.mark.parametrize(("last", "named"), [(2048, False), (4095, True)])
def test_a_table_of_positions(last, named) -> None:
    s = Sketch()
    table = s.constant(np.arange(last + 1, dtype=np.float32), "table")
    y = s.op("Mul", table, s.input("x", [1]), name="reader")
    raised = guards(s, y, {"x": f32([0.001])})
    assert [(g.kind, g.tensor) for g in raised] == ([("integer", "table")] if named else [])


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
    raised = guards(s, y, {"x": f32([angle])}, fmt=fmt)
    assert [g.nodes for g in raised] == ([("angle", "sin")] if named else [])


def test_producers_of_small_terms_are_left_out_but_those_of_small_factors_are_not() -> None:
    s = Sketch()
    first = s.op("Tanh", s.input("x", [1]), name="first")
    factor, term = (s.op("Tanh", first, name=name) for name in ("factor", "term"))
    angle = s.op("Add", s.op("Mul", factor, 1000.0, name="large"), term, name="sum")
    y = s.op("Sin", angle, name="sin")
    raised = only(guards(s, y, {"x": f32([1.0])}), "angle")
    assert raised.nodes == ("factor", "large", "sum", "sin")


def test_a_running_sum_of_small_steps_is_a_large_angle() -> None:
    s = Sketch()
    step = s.op("Tanh", s.input("x", [400]), name="step")
    phase = s.op("CumSum", step, np.array(0), name="phase")
    y = s.op("Sin", phase, name="sin")
    raised = only(guards(s, y, {"x": np.ones(400, np.float32)}), "angle")
    assert raised.nodes == ("step", "phase", "sin")


@pytest.mark.parametrize(
    ("side", "named", "certain"), [(512, False, False), (2048, True, False), (4096, True, True)]
)
def test_a_grid_over_a_large_image(side, named, certain) -> None:
    s = Sketch()
    grid = s.op("Tanh", s.input("g", [1, 1, 1, 2]), name="grid")
    y = s.op("GridSample", s.input("x", [1, 1, 2, side]), grid, name="sample")
    inputs = {"x": np.ones((1, 1, 2, side), np.float32), "g": np.ones((1, 1, 1, 2), np.float32)}
    raised = guards(s, y, inputs)
    assert [g.nodes for g in raised] == ([("grid", "sample")] if named else [])
    assert [g.severity >= 1 for g in raised] == [certain] * named


def test_the_arithmetic_that_makes_a_grid_is_needed_too() -> None:
    s = Sketch()
    pixels = s.op("Relu", s.input("g", [1, 1, 1, 2]), name="pixels")
    scaled = s.op("Mul", s.op("Add", pixels, 0.5, name="centre"), 2 / 4096, name="scale")
    grid = s.op("Sub", scaled, 1.0, name="shift")
    y = s.op("GridSample", s.input("x", [1, 1, 2, 4096]), grid, name="sample")
    inputs = {"x": np.ones((1, 1, 2, 4096), np.float32), "g": np.ones((1, 1, 1, 2), np.float32)}
    guard = only(guards(s, y, inputs), "grid")
    assert guard.nodes == ("pixels", "centre", "scale", "shift", "sample")


INTEGERS_X = {"x": np.ones((2, 4), np.float32)}


def choice() -> tuple[Sketch, str]:
    s = Sketch()
    scores = s.op("Sigmoid", s.input("x", [2, 4]), name="scores")
    return s, s.op("ArgMax", s.op("Transpose", scores), axis=-1, name="choice")


def margin(value: float) -> tuple[InnerObservation, ...]:
    return (inner("choice", "ArgMax", "margin", value),)


def test_a_close_choice_names_the_scores_too() -> None:
    guard = only(guards(*choice(), INTEGERS_X, inside=margin(0.25)), "margin")
    assert (guard.node, guard.nodes) == ("choice", ("scores", "choice"))
    assert 0.5 <= guard.severity < 1.0
    assert "differ by 0.25 of FP16's spacing there" in message(guard)


@pytest.mark.parametrize("value", [1.0, 50.0])
def test_a_clear_choice_is_none(value) -> None:
    assert guards(*choice(), INTEGERS_X, inside=margin(value)) == ()


def test_a_tie_means_less_than_a_close_choice() -> None:
    tie, close = (guards(*choice(), INTEGERS_X, inside=margin(v))[0].severity for v in (0.0, 0.9))
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
    y = s.op("Sub", s.op("Sin", begins, name="wave"), s.op("Neg", ends, name="neg"))
    raised = guards(s, y, {"x": np.linspace(80.1, 121.3, 40, dtype=np.float32)[None]})
    several = [g for g in raised if g.kind == "integer"]
    assert [g.node for g in several] == named
    if rounds:
        assert set(several[0].nodes) == {"ends", "begins", "neg"}
        assert several[2].nodes == ("begins", "wave")


def test_a_flat_index_holds_integers_whatever_made_it() -> None:
    """y · width + x, with x clipped to the image."""
    s = Sketch()
    n = s.op("Cast", s.input("n", [8], 7), to=1, name="cast")
    row = s.op("Floor", s.op("Div", n, 160.0, name="div"), name="row")
    along = s.op("Clip", s.op("Add", n, 1.0, name="right"), 0.0, 159.0, name="along")
    flat = s.op("Add", s.op("Mul", row, 160.0, name="rows"), along, name="flat")
    y = s.op("Gather", s.input("x", [30000]), s.op("Cast", flat, to=7, name="index"), name="y")
    inputs: Inputs = {"n": np.arange(25116, 25124), "x": np.zeros(30000, np.float32)}
    raised = {g.node: g for g in guards(s, y, inputs) if g.kind == "integer"}
    # Multiples of 160 are exact up to 65504.
    assert raised.keys() == {"cast", "right", "flat"}
    assert raised[NodeName("flat")].nodes == ("flat", "index")


@pytest.mark.parametrize(("to", "named"), [(7, True), (6, True), (5, False)])
def test_a_float_that_becomes_an_index_is_exact_or_wrong(to, named) -> None:
    """Sound in INT16 is neither an index nor a size."""
    s = Sketch()
    place = s.op("Mul", s.input("x", [4]), 5000.0, name="place")
    y = s.op("Cast", place, to=to, name="index")
    raised = guards(s, y, {"x": f32([0.1, 0.2, 0.5, 0.9])})
    assert [(g.node, g.nodes) for g in raised] == [("place", ("place", "index"))] * named


@pytest.mark.parametrize("value", [-1e4, -2999.0])
def test_a_mask_made_from_integers_counts_nothing(value) -> None:
    s = Sketch()
    off = s.op("Sub", 1.0, s.op("Cast", s.input("n", [4], 7), to=1, name="cast"), name="off")
    y = s.op("Add", s.input("x", [4]), s.op("Mul", off, value, name="mask"), name="add")
    raised = guards(s, y, {"n": np.array([1, 0, 1, 0]), "x": f32([1.5, 2.5, 3.5, 4.5])})
    assert not [g for g in raised if g.kind == "integer"]
