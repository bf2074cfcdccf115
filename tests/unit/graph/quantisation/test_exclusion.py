from collections import Counter

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.graph.model import constant_array, node_name
from halfwise.graph.quantisation.exclusion import excluding
from halfwise.graph.quantisation.pairs import half_quantised, quantised_nodes
from halfwise.records import NodeName
from tests.unit.graph.quantisation.qdq import LAYERS, SIZE, chain, last

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


@settings(max_examples=20)
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
    assert not half_quantised(made)
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
