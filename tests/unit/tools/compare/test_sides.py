import numpy as np
import pytest

from halfwise.case import Settings
from halfwise.formats import FP16
from halfwise.records import TensorName
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import (
    RecordedSide,
    Regions,
    Walk,
    all_low,
    emulated,
    reference,
    tolerance_of,
)
from tests.unit.graph.sketch import Sketch
from tests.unit.tools.compare.copies import SAMPLES, WEIGHTS, comparison, network, side, walked

A, Y = TensorName("a_out"), TensorName("y_out")


def recorded(*names, altered=None):
    model = network(**(altered or {})).model
    return RecordedSide(list(side(model).get(names)), "on record")


def test_a_record_has_what_it_has():
    held = recorded(A)
    assert held.lack(A) is None
    assert held.lack(Y) == "missing"
    assert [found.keys() for found in held.get([A, Y])] == [{A}] * len(SAMPLES)


def test_a_model_tells_constants_from_what_is_not_there():
    own = side(network().model)
    assert own.lack(A) is None
    assert own.lack(TensorName("nowhere")) == "missing"
    assert own.lack(TensorName("constant_0")) == "constant"


def test_the_coarser_side_decides_about_the_tolerance():
    exact, low = side(network().model), side(network().model, arithmetic="bf16")
    assert tolerance_of(exact, exact) < tolerance_of(exact, low)


def test_between_tensors_on_record_lies_a_region():
    names = [TensorName("b_out"), TensorName("d_out"), Y]
    found = comparison(recorded(*names, altered={"c": 1e12}))
    # Its inputs are the model's and b, which is on record.
    assert set(found.first) == {"a", "mean", "centre", "still", "c", "join", "d"}


def test_outputs_alone_are_compared_too():
    found = comparison(recorded(Y, altered={"b": 1.2}))
    assert found.outputs[Y] > 0.01
    assert "b" in found.first


def test_a_record_of_the_same_is_the_same():
    walk = walked(recorded(A, Y))
    assert walk.line == [A, Y]
    assert walk.found[Y].error is not None
    assert walk.found[Y].error.value == pytest.approx(0, abs=1e-6)
    assert np.isfinite(walk.found[A].born["b"].value)


def test_roundings_that_add_up_over_a_region_are_no_fault():
    sketch, rng = Sketch(), np.random.default_rng(1)
    x = sketch.input("x", [4, 16])
    for i in range(40):
        weight = np.linalg.qr(rng.normal(size=(16, 16)))[0].astype(np.float32)
        x = sketch.op("MatMul", x, weight, name=f"n{i}")
    whole = sketch.network(x)
    low = emulated(whole, SAMPLES, Settings(), "fp16")
    on_record = RecordedSide(list(low.get([TensorName(x)])), "low", "fp16")
    right = reference(whole, SAMPLES, Settings())
    walk = Walk(whole, SAMPLES, right, on_record)
    found = find_divergence(walk)
    assert found.outputs[TensorName(x)] > found.tolerance / 2
    assert found.first == ()


def against_fp32(side):
    whole = network()
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), side)
    return find_divergence(walk)


@pytest.mark.parametrize(("low", "least"), [("tf32", 1e-6), ("fp16", 1e-5), ("bf16", 1e-4)])
def test_emulations_round(low, least):
    side = emulated(network(), SAMPLES, Settings(), low)
    found = against_fp32(side)
    assert side.arithmetic == low
    assert least < found.outputs[TensorName("y_out")]


def test_the_reference_is_exact_and_its_optimised_form_is_not():
    whole = network()
    assert reference(whole, SAMPLES, Settings()).exact
    assert not reference(whole, SAMPLES, Settings(), optimise=True).exact
    assert not against_fp32(reference(whole, SAMPLES, Settings(), optimise=True)).differs


def test_everything_low_has_low_tensors_under_the_same_names():
    low = all_low(network(), FP16, Settings())
    types = {v.name: str(v.dtype) for n in low.graph for v in n.outputs}
    assert types["b_out"] == "FLOAT16"
    assert [v.name for v in low.graph.outputs] == ["y_out"]


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
