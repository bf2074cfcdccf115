"""A Relu or Clip that a quantiser dropped stands before its source again where the pair goes."""

from collections import Counter

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.graph.excluding import excluding, with_activations
from halfwise.graph.model import Network, constant_array, node_name
from halfwise.graph.quantised import census, pairs_read, quantised_nodes
from halfwise.records import NodeName
from tests.unit.graph.qdq import LAYERS, SIZE, chain, last
from tests.unit.graph.sketch import Sketch, f32

subsets = st.sets(st.sampled_from(LAYERS))


def network(quantised, **how):
    sketch = chain(quantised, **how)
    return sketch.network(last(sketch))


def run(network, seed=0):
    x = np.random.default_rng(seed).normal(size=(2, SIZE)).astype(np.float32)
    (value,) = Session(network.model).run({"x": x}).values()
    return value


def called(network):
    return Counter(node_name(n) for n in network.nodes())


@given(
    subsets, subsets, st.booleans(), st.booleans(), st.sampled_from(["tensor", "channel", "block"]),
    st.sampled_from([np.int8, ml_dtypes.int4]),
)  # fmt: skip
def test_what_is_excluded_is_as_if_it_had_never_been_quantised(
    quantised, excluded, stored, moved, per, dtype
):
    how = {"stored": stored, "moved": moved, "per": per, "dtype": dtype}
    file, expected = network(quantised, **how), network(quantised - excluded, **how)
    before = run(file)
    made = excluding(file, excluded, network([], **how))
    assert called(made) == called(expected)
    np.testing.assert_array_equal(run(made), run(expected))
    assert quantised_nodes(made).keys() == quantised - excluded
    assert not census(made).half
    np.testing.assert_array_equal(run(file), before)
    if not stored:  # The file has the floats itself.
        np.testing.assert_array_equal(run(excluding(file, excluded)), run(expected))


@pytest.mark.parametrize("other", [None, "scaled"])
def test_without_its_own_weights_an_excluded_node_has_what_the_integers_stand_for(other):
    file = network(LAYERS)
    original = None
    if other:
        original = network([])
        for value in original.graph.initializers.values():
            value.const_value = ir.tensor(np.multiply(1.5, constant_array(value)))
    made = excluding(file, [NodeName("third")], original)
    weight = next(n for n in made.nodes() if n.name == "third").inputs[1]
    scale = next(n for n in file.nodes() if n.name == "third/wdq").inputs[1]
    codes = constant_array(file.graph.initializers["third/codes"])
    assert weight is not None
    assert scale is not None
    expected = np.multiply(codes, constant_array(scale), dtype=np.float32)
    np.testing.assert_array_equal(constant_array(weight), expected)
    assert weight.name == "third/wdq_out"


def test_what_is_given_out_may_come_from_before_its_pair_under_its_name():
    sketch = chain(["first"])
    zero = np.array(0, np.int8)
    codes = sketch.op("QuantizeLinear", last(sketch), 0.5, zero)
    end = sketch.op("DequantizeLinear", codes, 0.5, zero, name="end")
    twice = sketch.op("Add", end, end, name="twice")
    file, plain = sketch.network(end, twice), network([])
    first, second = NodeName("first"), NodeName("twice")
    made = excluding(file, [first], plain, ends=True)
    x = np.random.default_rng(0).normal(size=(2, SIZE)).astype(np.float32)
    one, other = Session(made.model).run({"x": x}).values()
    np.testing.assert_array_equal(one, run(plain))
    np.testing.assert_array_equal(other, 2 * np.clip(np.rint(one * 2), -128, 127) / 2)
    assert [v.name for v in made.graph.outputs] == ["end_out", "twice_out"]
    nothing = excluding(file, [first, second], plain, ends=True)
    assert "DequantizeLinear" not in {n.op_type for n in nothing.nodes()}


def test_an_output_behind_a_move_between_two_pairs_keeps_its_name():
    """As ONNX Runtime quantises a Transpose at the end: pair, Transpose, pair."""
    s = Sketch(13)
    parameters = s.constant(0.1), s.constant(np.zeros((), np.int8))

    def pair(value, name):
        low = s.op("QuantizeLinear", value, *parameters, name=f"{name}_q")
        return s.op("DequantizeLinear", low, *parameters, name=f"{name}_dq")

    x = s.op("Relu", s.input("x", [2, SIZE]), name="relu")
    turned = s.op("Transpose", pair(x, "before"), name="turn", perm=[1, 0])
    file = s.network(pair(turned, "after"))
    made = excluding(file, pairs_read(file), ends=True)
    assert [v.name for v in made.graph.outputs] == [v.name for v in file.graph.outputs]
    assert called(made) == Counter(["relu", "turn"])


def test_pairs_one_after_another_with_a_move_between_are_left_out_together():
    s = Sketch()
    zero = np.array(0, np.int8)
    x = s.op("Relu", s.input("x", [2, SIZE]), name="relu")
    for move in ("first", "second"):
        codes = s.op("QuantizeLinear", x, 0.5, zero)
        x = s.op("Transpose", s.op("DequantizeLinear", codes, 0.5, zero), name=move)
    made = excluding(s.network(s.op("Abs", x, name="abs")), [NodeName("abs")])
    assert called(made).keys() == {"relu", "first", "second", "abs"}


ENDS = {"Relu": (), "Clip": (-1.0, 2.0)}


def dropping(activation: str, *, quantised: bool, zero: int = -128) -> Network:
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
    quantised = dropping(activation, quantised=True, zero=zero)
    original = dropping(activation, quantised=False) if known else None
    left = excluding(quantised, [node_name(n) for n in quantised.nodes()], original)
    assert not any("Quantize" in node.op_type for node in left.nodes())
    sample = {"x": f32([[-3.5, 0, 5]])}
    np.testing.assert_array_equal(Session(left.model).run(sample)["product_out"], [expected])


def test_the_model_with_them_computes_the_same():
    quantised = dropping("Relu", quantised=True)
    made = with_activations(quantised, dropping("Relu", quantised=False))
    assert [n.op_type for n in made.nodes() if n.op_type == "Relu"] == ["Relu"]
    sample = {"x": f32([[-3.5, 0, 5]])}
    found, expected = (Session(one.model).run(sample)["product_out"] for one in (made, quantised))
    np.testing.assert_array_equal(found, expected)
    again = with_activations(made)
    assert list(map(node_name, again.nodes())) == list(map(node_name, made.nodes()))
