"""The part of a model that the ranking of TF32 runs in an engine."""

import numpy as np
import pytest

from bench.gpu.tf32_ranks import part
from halfwise.emulation.ort import Session
from halfwise.graph.dataflow import giving_out
from halfwise.records import TensorName
from tests.unit.tools.compare.copies import DATA, network

WHOLE = network()
A, B, D, JOIN, STILL = (TensorName(f"{node}_out") for node in ("a", "b", "d", "join", "still"))


@pytest.fixture(scope="module")
def values():
    names = (A, B, D, JOIN, STILL)
    return Session(giving_out(WHOLE.model, names)).run({"x": DATA[0]}, names)


def test_a_part_stands_alone(values):
    model, feed = part(WHOLE, [D], [JOIN, STILL], values, {})
    assert feed.keys() == {JOIN, STILL}
    assert [list(v.shape or ()) for v in model.graph.inputs] == [[4, 16], [4, 1]]
    np.testing.assert_array_equal(Session(model).run(feed)[D], values[D])


def test_what_it_computes_too_keeps_a_name_of_its_own(values):
    model, feed = part(WHOLE, [A, B], [A], values, {"x": DATA[0]})
    assert feed.keys() == {"x", "a_out::given"}
    found = Session(model).run(feed)
    for name in (A, B):
        np.testing.assert_array_equal(found[name], values[name])
