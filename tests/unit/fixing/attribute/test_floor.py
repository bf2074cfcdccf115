import numpy as np
import pytest

from halfwise.formats import BF16
from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch, f32

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
    assert "read (Log)" in guard.message
    assert "off by 20 %" in guard.message


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
    assert "nothing but rounding error" in guard.message
    assert "3 times themselves" in guard.message


def test_a_difference_that_mostly_cancels_is_named_once() -> None:
    s = Sketch()
    y = s.op("Log", s.op("Sub", s.input("x", [1, 8]), 1.0, name="sub"), name="read")
    off = inner("sub", "Sub", "roundoff", 0.5)
    for ratio, kind in ((2.0, "floor"), (100.0, "cancellation")):
        inside = (off, inner("sub", "Sub", "cancellation", ratio))
        assert [g.kind for g in guards(s, y, X, inside=inside)] == [kind]
