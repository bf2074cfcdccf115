import numpy as np
import pytest

from halfwise.formats import BF16
from halfwise.reporting.guards import message
from tests.unit.fixing.attribute.observing import guards, inner, only
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
    found = guards(s, y, {"x": rows(2e-5, 1.0)})
    eps = only(found, "eps")
    assert eps.node == "eps"
    assert 2.0 < eps.severity < 3.0
    assert set(eps.nodes) == {"square", "mean", "eps", *after}
    assert "becomes zero in FP16 by plain conversion (5.96e−8 as stored here), and" in message(eps)
    assert "values as small as 4" in message(eps)
    assert "opset 23" in eps.fix
    assert found[0] == eps


def test_a_vanishing_eps_under_large_values_is_possible() -> None:
    s, y = rms(1e-12)
    eps = only(guards(s, y, {"x": rows(1.0, 2.0)}), "eps")
    assert eps.severity == pytest.approx(0.6)
    assert message(eps).endswith("once a value is near zero, but none seen is below 1")


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
    found = [g for g in guards(s, y, {"x": rows(1e-5, 1.0)}) if g.node == "reader"]
    assert [g.nodes for g in found] == [("above", "power", "reader")]


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
        found = guards(s, y, {"x": rows(largest / 2, largest)})
        severities = [g.severity for g in found if g.tensor == "tiny_out"]
        assert [severity > 1 for severity in severities] == [certain]


X = {"x": f32(np.linspace(1, 2, 8)).reshape(1, 8)}
ERRORS = {"scale": 5e-4, "sum": 0.8, "bank": 0.3, "clip": 0.2}


def spectrum(reader: str = "Log") -> tuple[Sketch, str]:
    s = Sketch()
    scaled = s.op("Mul", s.input("x", [1, 8]), f32(0.97), name="scale")
    weights = f32(np.cos(np.arange(32)).reshape(8, 4))
    power = s.op("Pow", s.op("MatMul", scaled, weights, name="sum"), f32(2.0), name="power")
    mel = s.op("MatMul", power, f32(np.ones((4, 2))), name="bank")
    return s, s.op(reader, s.op("Clip", mel, f32(1e-3), name="clip"), name="read")


def found(errors, **options):
    sketch, y = spectrum()
    inside = tuple(inner(n, "", "roundoff", e) for n, e in ({"power": 0.8} | errors).items())
    return guards(sketch, y, X, inside=inside, **options)


def test_the_cancelling_sum_and_all_that_leads_to_the_logarithm_are_named() -> None:
    guard = only(found(ERRORS), "floor")
    assert guard.node == "sum"
    assert guard.nodes == ("scale", "sum", "power", "bank", "clip", "read")
    assert 0 < guard.severity < 1
    assert "read (Log)" in message(guard)
    assert "off by 20 %" in message(guard)


@pytest.mark.parametrize(("read", "named"), [(0.009, False), (0.011, True)])
def test_what_is_read_has_to_be_off_by_more_than_a_percent(read, named) -> None:
    assert any(g.kind == "floor" for g in found(ERRORS | {"clip": read})) is named


def test_one_rounding_of_bf16_is_not_enough() -> None:
    for read, named in ((0.035, False), (0.045, True)):
        everything = found(ERRORS | {"clip": read}, fmt=BF16)
        assert any(g.kind == "floor" for g in everything) is named


def test_errors_that_are_inherited_are_no_cancellation() -> None:
    assert not any(g.kind == "floor" for g in found(ERRORS | {"scale": 0.1}))


def test_results_of_rounding_alone_are_said_to_be_that() -> None:
    guard = only(found(ERRORS | {"sum": 700.0, "clip": 3.0}), "floor")
    assert "nothing but rounding error" in message(guard)
    assert "3 times themselves" in message(guard)


def test_a_difference_that_mostly_cancels_is_named_once() -> None:
    s = Sketch()
    y = s.op("Log", s.op("Sub", s.input("x", [1, 8]), 1.0, name="sub"), name="read")
    off = inner("sub", "Sub", "roundoff", 0.5)
    for ratio, kind in ((2.0, "floor"), (100.0, "cancellation")):
        inside = (off, inner("sub", "Sub", "cancellation", ratio))
        assert [g.kind for g in guards(s, y, X, inside=inside)] == [kind]
