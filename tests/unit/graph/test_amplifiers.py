"""Which operands are needed to their own scale, and where their errors come from."""

import pytest

from halfwise.graph.amplifiers import amplifiers, chain
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from tests.unit.graph.sketch import Sketch, f32


def found(sketch: Sketch, output: str) -> list[tuple[str, list[str]]]:
    network = sketch.network(output)
    roles = roles_of(network)
    return [
        (node_name(n), [node_name(b) for b in chain(v, roles)])
        for n, v in amplifiers(network, roles)
    ]


@pytest.mark.parametrize("op", ["Log", "Reciprocal"])
def test_a_chain_passes_sums_factors_and_movement(op) -> None:
    s = Sketch()
    x = s.input("x", [4])
    difference = s.op("Sub", s.op("Sigmoid", s.op("Exp", x), name="sigmoid"), x, name="sub")
    moved = s.op("Reshape", difference, [2, 2])
    y = s.op(op, s.op("Mul", moved, 2.0, name="scale"), name="read")
    assert found(s, y) == [("read", ["scale", "sub", "sigmoid"])]


def test_a_negative_power_reads_its_base_and_a_division_its_divisor() -> None:
    s = Sketch()
    x = s.input("x", [4])
    a = s.op("Pow", s.op("Sub", x, 1.0, name="a"), f32(-0.5), name="power")
    b = s.op("Pow", s.op("Sub", x, 2.0), f32(2.0))
    y = s.op("Div", s.op("Add", a, b), s.op("Sub", x, 3.0, name="c"), name="divide")
    assert found(s, y) == [("power", ["a"]), ("divide", ["c"])]


def test_constants_and_inputs_are_read_as_they_are() -> None:
    s = Sketch()
    x = s.input("x", [4])
    y = s.op("Add", s.op("Log", x), s.op("Div", x, 3.0))
    assert found(s, y) == []


@pytest.mark.parametrize("square", ["Mul", "Exp", "Sub"])
def test_sums_of_squares_and_exponentials_do_not_cancel(square) -> None:
    s = Sketch()
    x = s.input("x", [4])
    a = s.op("Exp", x) if square == "Exp" else s.op(square, x, x if square == "Mul" else 1.0)
    total = s.op("Add", s.op("ReduceMean", a, axes=[-1]), f32(1e-5))
    y = s.op("Div", x, s.op("Sqrt", total), name="divide")
    assert [name for name, _ in found(s, y)] == (["divide"] if square == "Sub" else [])


def test_a_chain_is_short() -> None:
    s = Sketch()
    value = s.input("x", [4])
    for _ in range(40):
        value = s.op("Sub", value, 1.0)
    ((_, behind),) = found(s, s.op("Log", value))
    assert len(behind) == 24
