import numpy as np

from halfwise.records import TensorName
from halfwise.tools.compare.regions import Regions
from tests.unit.tools.compare.copies import SAMPLES, WEIGHTS, network


def t(*names):
    return [TensorName(f"{name}_out") for name in names]


def given(**arrays):
    return {f"{name}_out": np.asarray(array) for name, array in arrays.items()}


def test_nodes_run_on_what_they_were_given():
    regions = Regions(network(), t("b"), t("a", "b"))
    a = np.ones((4, 16), np.float32)
    found = regions.run(SAMPLES[0], given(a=a, b=a))
    np.testing.assert_allclose(found["b_out"], a @ WEIGHTS[1], rtol=1e-5)


def test_other_types_are_converted():
    regions = Regions(network(), t("b"), t("a"))
    found = regions.run(SAMPLES[0], given(a=np.ones((4, 16), np.float16)))
    assert found["b_out"].dtype == np.float32


def test_what_cannot_be_run_is_left_out_and_the_rest_is_run():
    regions = Regions(network(), t("b", "c", "d"), t("a", "join", "still"))
    found = regions.run(
        SAMPLES[0],
        given(
            a=np.ones((4, 7), np.float32),
            join=np.ones((4, 16), np.float32),
            still=np.ones((4, 1), np.float32),
        ),
    )
    assert found.keys() == {"c_out", "d_out"}


def test_what_cannot_be_run_on_one_sample_is_found_once():
    regions = Regions(network(), t("b", "c"), t("a"))
    odd, right = given(a=np.ones((4, 7), np.float32)), given(a=np.ones((4, 16), np.float32))
    assert regions.run(SAMPLES[0], odd).keys() == {"c_out"}
    halves = regions._halves
    assert regions.run(SAMPLES[1], right).keys() == {"b_out", "c_out"}
    assert regions._halves is halves


def test_a_wiggle_is_small_and_the_same_each_time():
    regions = Regions(network(), t("c"), t("a"))
    values = given(a=np.ones((4, 16), np.float32))
    still, moved = regions.run(SAMPLES[0], values), regions.run(SAMPLES[0], values, 1e-3)
    change = np.abs(moved["c_out"] / still["c_out"] - 1)
    assert 1e-4 < change.max() <= 1.001e-3
    np.testing.assert_array_equal(moved["c_out"], regions.run(SAMPLES[0], values, 1e-3)["c_out"])
