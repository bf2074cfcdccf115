"""Each site of a quantised model can be left out or rescaled in one session."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.graph.excluding import excluding
from halfwise.records import NodeName
from halfwise.tools.verify.quantised import BypassRunner, sites_of
from tests.unit.graph.qdq import LAYERS, SIZE, chain, last
from tests.unit.graph.sketch import Sketch, f32

ORIGINAL = chain(())
QUANTISED = chain(LAYERS)
SAMPLE = {"x": f32(np.random.default_rng(0).normal(size=(2, SIZE)))}
ORIGINAL_NETWORK = ORIGINAL.network(last(ORIGINAL))
QUANTISED_NETWORK = QUANTISED.network(last(QUANTISED))
RUNNER = BypassRunner(QUANTISED_NETWORK, ORIGINAL_NETWORK)


@given(st.sets(st.sampled_from(LAYERS)))
def test_sites_left_out_are_as_in_the_file_without_them(layers):
    left_out = [NodeName(f"{layer}/{kind}") for layer in layers for kind in ("dq", "wdq")]
    wanted = Session(
        excluding(QUANTISED_NETWORK, set(map(NodeName, layers)), ORIGINAL_NETWORK).model
    ).run(SAMPLE)
    found = RUNNER.run(SAMPLE, left_out)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_scale_is_changed_as_in_the_file():
    sketch = chain(LAYERS)
    for node in sketch.nodes:
        if node.name in ("second/q", "second/dq"):
            node.input[1] = sketch.constant(0.5, f"{node.name}/scale")
    wanted = Session(sketch.network(last(sketch)).model).run(SAMPLE)
    found = RUNNER.run(SAMPLE, (), {NodeName("second/dq"): 2.0})
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def test_readers_with_pairs_of_their_own_are_one_site_and_outputs_keep_their_names():
    s = Sketch(17)
    x, zero = s.input("x", [1, 2]), s.constant(np.zeros((), np.int8))
    ends = []
    for number in range(2):
        codes = s.op("QuantizeLinear", x, 1.0, zero, name=f"q{number}")
        ends.append(s.op("DequantizeLinear", codes, 1.0, zero, name=f"dq{number}"))
    network = s.network(*ends)
    (site,) = sites_of(network)
    assert (site.name, len(site.pairs)) == ("dq0", 2)
    sample = {"x": f32([[0.75, -0.25]])}
    runner = BypassRunner(network)
    assert [*runner.run(sample, [site.name])] == ends
    for left_out, wanted in (([site.name], [0.75, -0.25]), ([], [1, 0])):
        found = runner.run(sample, left_out)
        assert all(np.array_equal(found[end], [wanted]) for end in ends)


def test_stored_weights_go_where_there_is_an_original():
    assert {s.name for s in sites_of(QUANTISED_NETWORK)} == {f"{name}/dq" for name in LAYERS}
