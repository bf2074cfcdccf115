import numpy as np
import pytest

from halfwise.graph.model import node_name
from halfwise.graph.written_out import attentions, written_out
from tests.unit.graph.sketch import Sketch, f32


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


def test_gelu_with_constants_as_wide_as_the_tensor() -> None:
    s = Sketch()
    x, wide = bias(s), np.ones(16, np.float32)
    gate = s.op("Add", s.op("Erf", s.op("Div", x, wide * 2**0.5)), wide)
    y = s.op("Mul", s.op("Mul", x, gate), wide / 2)
    assert groups(s, s.op("Mul", y, 7.0, name="outside_after"), "Gelu") == [s.names()]


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


@pytest.mark.parametrize("custom", [None, "Sigmoid", "Mul"])
def test_operators_of_another_domain_are_no_swish(custom) -> None:
    s = Sketch()
    x = s.input("x", [2])
    network = s.network(s.op("Mul", x, s.op("Sigmoid", x)))
    for node in network.nodes():
        node.domain = "theirs" if node.op_type == custom else ""
    assert bool(written_out(network, "Swish")) == (custom is None)


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


def shifted(s: Sketch, x: str) -> str:
    return s.op("Sub", x, s.op("ReduceMax", x, axes=[-1]))


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("end", ["div", "reciprocal", "one over", "eps", "twice"])
def test_softmax(shift, end) -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    exponent = shifted(s, x) if shift else x
    exp = s.op("Exp", exponent)
    total = s.op("ReduceSum", exp, [-1], keepdims=1)
    if end == "twice":  # x.exp() / x.exp().sum(-1, keepdim=True)
        exp = s.op("Exp", exponent)
    if end == "reciprocal":
        y = s.op("Mul", s.op("Reciprocal", total), exp)
    elif end == "one over":
        y = s.op("Mul", exp, s.op("Div", 1.0, total))
    else:
        y = s.op("Div", exp, s.op("Add", total, 1e-9) if end == "eps" else total)
    y = s.op("Relu", y, name="outside")
    assert groups(s, y, "Softmax") == [s.names()]


def test_softmax_as_jax_writes_it() -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    largest = s.op("Max", float("-inf"), s.op("ReduceMax", x, axes=[1], keepdims=0))
    exp = s.op("Exp", s.op("Sub", x, s.op("Reshape", largest, [-1, 1])))
    total = s.op("Reshape", s.op("ReduceSum", exp, [1], keepdims=0), [-1, 1])
    assert groups(s, s.op("Div", exp, total), "Softmax") == [s.names()]


def test_a_mean_of_exponentials_is_no_softmax() -> None:
    s = Sketch()
    x = s.input("x", [2, 5])
    total = s.op("ReduceSum", s.op("Exp", x), [-1])
    assert groups(s, s.op("Div", total, x), "Softmax") == []


def found(network):
    return [{str(node_name(n)) for n in nodes} for nodes in attentions(network)]


@pytest.mark.parametrize("choose", [True, False])
def test_scale_mask_and_products(choose):
    s = Sketch()
    q, k, v = (s.input(name, [1, 2, 4, 4]) for name in "qkv")
    scores = s.op("Mul", s.op("MatMul", q, k, name="scores"), 0.5, name="scale")
    mask = s.input("mask", [1, 1, 4, 4], 9 if choose else 1)
    masked = s.op("Where", mask, scores, -1e4, name="mask") if choose else scores
    weights = s.op("Softmax", masked, name="softmax")
    network = s.network(s.op("MatMul", weights, v, name="weigh"))
    names = {"scores", "scale", "softmax", "weigh"} | ({"mask"} if choose else set())
    assert found(network) == [names]


def test_rows_that_are_masked_as_a_whole_may_be_set_to_zero_behind():
    s = Sketch()
    q, k, v = (s.input(name, [1, 4, 4]) for name in "qkv")
    weights = s.op("Softmax", s.op("MatMul", q, k, name="scores"), name="softmax")
    chosen = s.op("Where", s.input("rows", [1, 4, 1], 9), 0.0, weights, name="zero")
    network = s.network(s.op("MatMul", chosen, v, name="weigh"))
    assert found(network) == [{"scores", "softmax", "zero", "weigh"}]


def test_layers_with_weights_are_no_attention():
    s = Sketch()
    x = s.input("x", [1, 4, 4])
    weights = s.op("Softmax", s.op("MatMul", x, f32(np.eye(4))))
    assert found(s.network(s.op("MatMul", weights, x))) == []
