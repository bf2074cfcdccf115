import math

import numpy as np
import pytest

from halfwise.formats import BF16
from halfwise.records import InnerObservation
from tests.unit.graph.sketch import Sketch
from tests.unit.stages.attribute.observing import guards, inner, only

X = {"x": np.ones((2, 4), np.float32)}


def moments() -> tuple[Sketch, str]:
    s = Sketch()
    x = s.op("Relu", s.input("x", [2, 4]), name="before")
    total = s.op("ReduceSum", s.op("Mul", x, x, name="square"), [-1], name="sum")
    mean = s.op("ReduceMean", x, axes=[-1], name="mean")
    moment = s.op("Unsqueeze", s.op("Squeeze", s.op("Mul", total, 0.25, name="scale"), [-1]), [-1])
    y = s.op("Sub", moment, s.op("Mul", mean, mean, name="mean squared"), name="sub")
    return s, s.op("Relu", y, name="after")


def ratio(value: float) -> tuple[InnerObservation, ...]:
    return (inner("sub", "Sub", "cancellation", value),)


def test_the_nodes_reach_back_to_where_the_errors_are_made() -> None:
    guard = only(guards(*moments(), X, inside=ratio(100.0)), "cancellation")
    assert guard.nodes == ("square", "sum", "scale", "mean squared", "sub")
    assert 1.0 < guard.severity < 2.0
    assert "100 times the result, which keeps an error of about 4.9 %" in guard.message


@pytest.mark.parametrize(("value", "named"), [(20.0, False), (21.0, True)])
def test_the_limit_is_one_percent(value, named) -> None:
    assert bool(guards(*moments(), X, inside=ratio(value))) is named


def test_bf16_cancels_sooner() -> None:
    assert guards(*moments(), X, inside=ratio(3.0), fmt=BF16)[0].kind == "cancellation"


def test_results_that_are_zero_by_design_are_only_possible() -> None:
    guard = only(guards(*moments(), X, inside=ratio(math.inf)), "cancellation")
    assert guard.severity < 1
    assert "mostly cancel to zero" in guard.message
