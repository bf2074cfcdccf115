from collections.abc import Callable

import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.loading import normalise
from halfwise.graph.model import Names, Writer, graphs_of
from halfwise.graph.one_node import put_in_place
from halfwise.graph.reading import read_functions
from tests.unit.graph.sketch import Sketch, f32


def sigmoid(s: Sketch, x: str) -> str:
    return s.op("Div", 1.0, s.op("Add", s.op("Exp", s.op("Neg", x)), 1.0))


def quotient(s: Sketch, x: str) -> str:
    exp = s.op("Exp", x)
    return s.op("Div", exp, s.op("Add", 1.0, exp))


def of_minus(s: Sketch, x: str) -> str:
    return s.op("Reciprocal", s.op("Add", s.op("Exp", x), 1.0))


def silu(s: Sketch, x: str) -> str:
    return s.op("Div", x, s.op("Add", s.op("Exp", s.op("Neg", x)), 1.0))


def tanh(s: Sketch, x: str) -> str:
    plus, minus = s.op("Exp", x), s.op("Exp", s.op("Neg", x))
    return s.op("Div", s.op("Sub", plus, minus), s.op("Add", plus, minus))


def half_tanh(s: Sketch, x: str) -> str:
    exp = s.op("Exp", x)
    return s.op("Div", s.op("Sub", exp, 1.0), s.op("Add", exp, 1.0))


def softplus(s: Sketch, x: str) -> str:
    return s.op("Log", s.op("Add", s.op("Exp", x), 1.0))


def log_sigmoid(s: Sketch, x: str) -> str:
    return s.op("Neg", s.op("Log", s.op("Add", s.op("Exp", s.op("Neg", x)), 1.0)))


def mish(s: Sketch, x: str) -> str:
    exp = s.op("Exp", x)
    n = s.op("Mul", exp, s.op("Add", exp, 2.0))
    return s.op("Mul", s.op("Div", n, s.op("Add", n, 2.0)), x)


@pytest.mark.parametrize(
    ("write", "ops"),
    [
        (sigmoid, {"Sigmoid"}),
        (quotient, {"Sigmoid"}),
        (of_minus, {"Neg", "Sigmoid"}),
        (silu, {"Mul", "Sigmoid"}),
        (tanh, {"Tanh"}),
        (half_tanh, {"Mul", "Tanh"}),
        (softplus, {"Softplus"}),
        (log_sigmoid, {"Neg", "Softplus"}),
        (mish, {"Mul", "Tanh", "Softplus"}),
    ],
)
def test_a_function_is_told_from_its_values(
    write: Callable[[Sketch, str], str], ops: set[str]
) -> None:
    s = Sketch()
    network = s.network(write(s, s.input("x", [200])))
    x = {"x": f32(np.linspace(-20, 20, 200))}
    (before,) = Session(network.model).run(x).values()
    model = network.copy()
    for found in read_functions(normalise(model, path=None, sha256="")):
        writer = Writer(model, "short", Names(graphs_of(model)))
        result = found.write(writer, found.x)
        put_in_place(model.graph, found.output, writer.made, result, writer.names)
    assert {n.op_type for n in model.graph} == ops
    (after,) = Session(normalise(model, path=None, sha256="").model).run(x).values()
    np.testing.assert_allclose(f32(after), f32(before), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [1.001, 0.999, 2.0])
def test_what_only_looks_alike_is_none(number: float) -> None:
    s = Sketch()
    exp = s.op("Exp", s.input("x", [4]))
    assert not list(read_functions(s.network(s.op("Div", exp, s.op("Add", exp, number)))))
