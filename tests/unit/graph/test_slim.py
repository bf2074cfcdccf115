import numpy as np
import onnx
import pytest

from halfwise.graph.model import constant_array, load_network, network_from_proto
from halfwise.graph.slim import STAND_IN, graphs_in, skeleton, weightless
from tests import models


@pytest.fixture
def model():
    return network_from_proto(models.large_weights().proto).model


def test_large_tensors_are_handed_over_and_small_ones_stay(model):
    slim, arrays = weightless(model)
    assert set(arrays) == {"up_w", "down_w", "out_w"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, constant_array(model.graph.initializers[name]))
    places = {t.name: [e.value for e in t.external_data] for t in slim.graph.initializer}
    assert {n for n, place in places.items() if place[:1] == [STAND_IN]} == set(arrays)
    assert slim.ByteSize() < 64 * 64 * 4


def test_the_model_is_as_it_was(model):
    before = {n: v.const_value for n, v in model.graph.initializers.items()}
    weightless(model)
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == before


def test_mapped_tensors_are_not_copied(tmp_path):
    model = load_network(models.saved_beside(models.large_weights(), tmp_path)).model
    for name, array in weightless(model)[1].items():
        assert np.shares_memory(array, constant_array(model.graph.initializers[name]))


def test_constants_of_bodies_move_to_the_main_graph():
    model = network_from_proto(models.two_bodies().proto).model
    slim, arrays = weightless(model)
    assert {t.name for t in slim.graph.initializer} >= set(arrays)
    bodies = list(graphs_in(slim.graph))[1:]
    assert len(bodies) == len(arrays) == 2
    assert not any(body.initializer for body in bodies)
    assert all(body.initializers for body in model.graph.subgraphs())


def test_a_skeleton_has_inputs_in_place_of_them(model):
    proto, arrays = skeleton(model)
    onnx.checker.check_model(proto, full_check=True)
    assert {i.name for i in proto.graph.input} == {"x", *arrays}
    assert [t.name for t in proto.graph.initializer] == ["scale"]
