import math

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.fixing.attribute import attribute
from halfwise.formats import BF16, FP16
from halfwise.graph.roles import roles_of
from halfwise.observing import observe
from halfwise.records import Guard, InnerObservation
from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch

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
    # The mean is squared on one side only; what both moments are made of is not needed.
    assert guard.nodes == ("square", "sum", "mean", "scale", "mean squared", "sub")
    assert 1.0 < guard.severity < 2.0
    assert "100 times the result, which keeps an error of about 4.9 %" in guard.message


@pytest.mark.parametrize(("value", "named"), [(20.0, False), (21.0, True)])
def test_the_limit_is_one_percent(value, named) -> None:
    assert bool(guards(*moments(), X, inside=ratio(value))) is named


def test_bf16_cancels_sooner() -> None:
    assert guards(*moments(), X, inside=ratio(3.0), fmt=BF16)[0].kind == "cancellation"


def found(sketch: Sketch, output: str, x: np.ndarray) -> list[Guard]:
    """Return the cancellation guards on what is really observed on one sample."""
    network = sketch.network(output)
    roles = roles_of(network)
    samples = Samples(("0",), lambda _: {"x": x})
    seen, _ = observe(network, samples, FP16, roles=roles)
    return [g for g in attribute(network, roles, seen, FP16) if g.kind == "cancellation"]


def test_a_constant_that_is_added_and_taken_away() -> None:
    s = Sketch()
    shifted = s.op("Add", s.input("x", [2, 64]), 10_000.0, name="add")
    y = s.op("Sub", shifted, 10_000.0, name="sub")
    x = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    (guard,) = found(s, y, x)
    assert (guard.node, guard.nodes) == ("sub", ("add", "sub"))
    assert guard.severity > 1


def test_ordinary_biases_do_not_cancel() -> None:
    s = Sketch()
    generator = np.random.default_rng(1)
    y = s.input("x", [8, 64])
    for i in range(4):
        weight = generator.normal(size=(64, 64), scale=0.1).astype(np.float32)
        bias = generator.normal(size=64).astype(np.float32)
        y = s.op("Add", s.op("MatMul", y, weight, name=f"matmul{i}"), bias, name=f"add{i}")
        y = s.op("Relu", y, name=f"relu{i}")
    y = s.op("Sub", 1.0, s.op("Sigmoid", y, name="gate"), name="other part")
    assert found(s, y, generator.normal(size=(8, 64)).astype(np.float32)) == []


def test_results_that_are_zero_by_design_are_only_possible() -> None:
    guard = only(guards(*moments(), X, inside=ratio(math.inf)), "cancellation")
    assert guard.severity < 1
    assert "mostly cancel to zero" in guard.message
