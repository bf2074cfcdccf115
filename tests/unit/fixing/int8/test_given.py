import pytest

from halfwise.fixing.int8.given import given_start
from halfwise.fixing.int8.placing import activations, quantisable, quantised
from halfwise.graph.model import constant_array, network_from_proto
from halfwise.graph.quantisation.pairs import quantised_nodes
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier

ORIGINAL = network_from_proto(outlier().proto)
RANGES = dict.fromkeys(activations(ORIGINAL), (-4.0, 4.0))
GIVEN = quantised(ORIGINAL, quantisable(ORIGINAL), RANGES)


def test_what_is_placed_has_int8_and_the_rest_floats_of_the_original():
    given = given_start(ORIGINAL, GIVEN)
    assert given is not None
    assert given.pairs.keys() == names(*(f"product{i}" for i in range(4)))
    assert not quantised_nodes(given.floats)
    some = names("product1", "product3")
    assert quantised_nodes(given.place(some)).keys() == some
    before = {n.name: n.inputs[-1] for n in ORIGINAL.nodes()}
    for node in (n for n in given.floats.nodes() if n.op_type == "MatMul"):
        weight, own = node.inputs[1], before[node.name]
        assert weight is not None
        assert own is not None
        assert (constant_array(weight) == constant_array(own)).all()


@pytest.mark.parametrize("start", [None, ORIGINAL])
def test_other_starts_are_none_of_a_quantised_model(start):
    assert given_start(ORIGINAL, start) is None
