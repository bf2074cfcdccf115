"""A Relu or Clip that a quantiser dropped stands before its source again where the pair goes."""

import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.model import Network, node_name
from halfwise.graph.quantisation.activations import with_activations
from halfwise.graph.quantisation.exclusion import excluding
from tests.unit.graph.sketch import Sketch, f32

ENDS = {"Relu": (), "Clip": (-1.0, 2.0)}


def network(activation: str, *, quantised: bool, zero: int = -128) -> Network:
    """Add, perhaps an activation, and MatMul; where quantised, a pair in the place of the former.

    The pair's range holds all values: bypassing it must cut them off all the same.
    """
    s = Sketch(17)
    total = s.op("Add", s.input("x", [1, 3]), f32([0.5, 0, 0]), name="total")
    made = "activated_out"
    if quantised or not activation:
        s.nodes[-1].output[0] = made
    if quantised:
        parameters = (s.constant(0.1), s.constant(np.asarray(zero, np.int8)))
        codes = s.op("QuantizeLinear", made, *parameters, name="q")
        made = s.op("DequantizeLinear", codes, *parameters, name="dq")
    elif activation:
        made = s.op(activation, total, *ENDS[activation], name="activated")
    return s.network(s.op("MatMul", made, f32(np.eye(3)), name="product"))


@pytest.mark.parametrize(
    ("activation", "zero", "known", "expected"),
    [
        ("Relu", -128, True, [0, 0, 5]),
        ("Relu", -128, False, [0, 0, 5]),
        ("Clip", -118, True, [-1, 0, 2]),
        ("", -118, False, [-3, 0, 5]),
        ("", -128, True, [-3, 0, 5]),
    ],
)
def test_what_is_read_without_the_pair(activation, zero, known, expected):
    quantised = network(activation, quantised=True, zero=zero)
    original = network(activation, quantised=False) if known else None
    left = excluding(quantised, [node_name(n) for n in quantised.nodes()], original)
    assert not any("Quantize" in node.op_type for node in left.nodes())
    sample = {"x": f32([[-3.5, 0, 5]])}
    np.testing.assert_array_equal(Session(left.model).run(sample)["product_out"], [expected])


def test_the_model_with_them_computes_the_same():
    quantised = network("Relu", quantised=True)
    made = with_activations(quantised, network("Relu", quantised=False))
    assert [n.op_type for n in made.nodes() if n.op_type == "Relu"] == ["Relu"]
    sample = {"x": f32([[-3.5, 0, 5]])}
    found, expected = (Session(one.model).run(sample)["product_out"] for one in (made, quantised))
    np.testing.assert_array_equal(found, expected)
    again = with_activations(made)
    assert list(map(node_name, again.nodes())) == list(map(node_name, made.nodes()))
