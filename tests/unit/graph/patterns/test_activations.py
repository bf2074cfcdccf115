import pytest

from halfwise.graph.patterns import written_out
from tests.unit.graph.sketch import Sketch


def groups(sketch: Sketch, output: str, op: str) -> list[set[str]]:
    return [set(g) for g in written_out(sketch.network(output), op)]


def bias(s: Sketch) -> str:
    return s.op("Add", s.input("x", [2, 16]), 0.5, name="outside_bias")


def half_product(s: Sketch, gate: str, x: str, order: str) -> str:
    if order == "gate first":
        return s.op("Mul", s.op("Mul", gate, 0.5), x)
    if order == "x first":
        return s.op("Mul", s.op("Mul", x, 0.5), gate)
    if order == "half of x":
        return s.op("Mul", gate, s.op("Div", x, 2.0))
    return s.op("Mul", 0.5, s.op("Mul", x, gate))


@pytest.mark.parametrize("order", ["gate first", "x first", "half of x", "last"])
@pytest.mark.parametrize("inside", ["div", "mul"])
def test_gelu_with_erf(order, inside) -> None:
    s = Sketch()
    x = bias(s)
    scaled = s.op("Div", x, 2**0.5) if inside == "div" else s.op("Mul", 0.5**0.5, x)
    y = half_product(s, s.op("Add", s.op("Erf", scaled), 1.0), x, order)
    assert groups(s, s.op("Mul", y, 7.0, name="outside_after"), "Gelu") == [s.names()]


@pytest.mark.parametrize("order", ["gate first", "x first", "half of x", "last"])
@pytest.mark.parametrize("cube", ["pow", "mul", "factored"])
def test_gelu_with_tanh(order, cube) -> None:
    s = Sketch()
    x = bias(s)
    if cube == "factored":
        inside = s.op("Add", 1.0, s.op("Mul", 0.044715, s.op("Mul", x, x)))
        argument = s.op("Mul", s.op("Mul", x, 0.7978846), inside)
    else:
        third = s.op("Pow", x, 3.0) if cube == "pow" else s.op("Mul", s.op("Mul", x, x), x)
        argument = s.op("Mul", s.op("Add", x, s.op("Mul", third, 0.044715)), 0.7978846)
    y = half_product(s, s.op("Add", 1.0, s.op("Tanh", argument)), x, order)
    assert groups(s, y, "Gelu") == [s.names()]


def test_a_gate_of_another_tensor_is_no_gelu() -> None:
    s = Sketch()
    x = bias(s)
    gate = s.op("Add", s.op("Erf", s.op("Div", s.input("z", [2, 16]), 2**0.5)), 1.0)
    assert groups(s, half_product(s, gate, x, "last"), "Gelu") == []


def test_a_scaled_sigmoid_by_tanh_is_no_gelu() -> None:
    s = Sketch()
    x = bias(s)
    gate = s.op("Add", s.op("Tanh", s.op("Mul", x, 0.5)), 1.0)
    assert groups(s, half_product(s, gate, x, "last"), "Gelu") == []


@pytest.mark.parametrize("name", ["Silu", "Swish"])
@pytest.mark.parametrize("how", ["sigmoid", "scaled", "exp"])
def test_swish(name, how) -> None:
    s = Sketch()
    x = bias(s)
    if how == "exp":
        y = s.op("Div", x, s.op("Add", s.op("Exp", s.op("Neg", x)), 1.0))
    else:
        y = s.op("Mul", s.op("Sigmoid", s.op("Mul", x, 1.702) if how == "scaled" else x), x)
    assert groups(s, y, name) == [s.names()]


def test_a_gated_unit_is_no_swish() -> None:
    s = Sketch()
    y = s.op("Mul", s.op("Sigmoid", s.input("z", [2, 16])), bias(s))
    assert groups(s, y, "Swish") == []


@pytest.mark.parametrize("how", ["HardSigmoid", "clip", "clip first", "relu6"])
def test_hard_swish(how) -> None:
    s = Sketch()
    x = bias(s)
    if how == "HardSigmoid":
        y = s.op("Mul", x, s.op("HardSigmoid", x, alpha=1 / 6))
    elif how == "relu6":
        gate = s.op("Min", s.op("Relu", s.op("Add", x, 3.0)), 6.0)
        y = s.op("Mul", s.op("Mul", x, gate), 1 / 6)
    else:
        gate = s.op("Clip", s.op("Add", 3.0, x), 0.0, 6.0)
        product = s.op("Mul", s.op("Div", gate, 6.0) if how == "clip first" else gate, x)
        y = product if how == "clip first" else s.op("Div", product, 6.0)
    assert groups(s, y, "HardSwish") == [s.names()]


@pytest.mark.parametrize("stable", [True, False])
def test_softplus(stable) -> None:
    s = Sketch()
    x = bias(s)
    inner = s.op("Neg", s.op("Abs", x)) if stable else x
    y = s.op("Log", s.op("Add", s.op("Exp", inner), 1.0))
    y = s.op("Add", s.op("Relu", x), y) if stable else y
    assert groups(s, y, "Softplus") == [s.names()]


@pytest.mark.parametrize("native", [True, False])
def test_mish(native) -> None:
    s = Sketch()
    x = bias(s)
    soft = s.op("Softplus", x) if native else s.op("Log", s.op("Add", 1.0, s.op("Exp", x)))
    y = s.op("Mul", x, s.op("Tanh", soft))
    assert groups(s, y, "Mish") == [s.names()]
