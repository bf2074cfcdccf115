import pytest

from halfwise.graph.patterns import written_out
from tests.unit.graph.sketch import Sketch


def groups(sketch: Sketch, output: str, op: str) -> list[set[str]]:
    return [set(g) for g in written_out(sketch.network(output), op)]


def shifted(s: Sketch, x: str) -> str:
    return s.op("Sub", x, s.op("ReduceMax", x, axes=[-1]))


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("end", ["div", "reciprocal", "one over", "eps"])
def test_softmax(shift, end) -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    exp = s.op("Exp", shifted(s, x) if shift else x)
    total = s.op("ReduceSum", exp, [-1], keepdims=1)
    if end == "reciprocal":
        y = s.op("Mul", s.op("Reciprocal", total), exp)
    elif end == "one over":
        y = s.op("Mul", exp, s.op("Div", 1.0, total))
    else:
        y = s.op("Div", exp, s.op("Add", total, 1e-9) if end == "eps" else total)
    y = s.op("Relu", y, name="outside")
    assert groups(s, y, "Softmax") == [s.names()]
    assert groups(s, y, "LogSoftmax") == []


def test_softmax_as_jax_writes_it() -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    largest = s.op("Max", float("-inf"), s.op("ReduceMax", x, axes=[1], keepdims=0))
    exp = s.op("Exp", s.op("Sub", x, s.op("Reshape", largest, [-1, 1])))
    total = s.op("Reshape", s.op("ReduceSum", exp, [1], keepdims=0), [-1, 1])
    assert groups(s, s.op("Div", exp, total), "Softmax") == [s.names()]


def test_log_softmax_from_the_shifted_scores() -> None:
    s = Sketch()
    z = shifted(s, s.input("x", [2, 5]))
    y = s.op("Sub", z, s.op("Log", s.op("ReduceSum", s.op("Exp", z), [-1])))
    assert groups(s, y, "LogSoftmax") == [s.names()]
    assert groups(s, y, "Softmax") == []


def test_log_softmax_from_the_scores() -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    largest = s.op("ReduceMax", x, axes=[-1])
    log = s.op("Log", s.op("ReduceSum", s.op("Exp", s.op("Sub", x, largest)), [-1]))
    y = s.op("Sub", x, s.op("Add", log, largest))
    assert groups(s, y, "LogSoftmax") == [s.names()]


def test_log_softmax_by_log_sum_exp() -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    y = s.op("Sub", x, s.op("ReduceLogSumExp", x, axes=[-1]))
    assert groups(s, y, "LogSoftmax") == [s.names()]


def test_log_softmax_as_log_of_a_native_softmax() -> None:
    s = Sketch()
    y = s.op("Log", s.op("Softmax", s.input("x", [2, 5])))
    assert groups(s, y, "LogSoftmax") == [s.names()]


def test_log_softmax_as_log_of_a_written_softmax() -> None:
    s = Sketch()
    exp = s.op("Exp", shifted(s, s.input("x", [2, 5])))
    y = s.op("Log", s.op("Div", exp, s.op("ReduceSum", exp, [-1])))
    assert groups(s, y, "LogSoftmax") == [s.names()]


def test_a_mean_of_exponentials_is_no_softmax() -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    total = s.op("ReduceSum", s.op("Exp", x), [-1])
    assert groups(s, s.op("Div", total, x), "Softmax") == []
