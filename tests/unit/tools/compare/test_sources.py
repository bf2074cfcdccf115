import pytest

from halfwise.case import Settings
from halfwise.formats import FP16
from halfwise.records import TensorName
from halfwise.tools.compare import Walk, compared
from halfwise.tools.compare.sources import all_low, emulated, reference
from tests.unit.tools.compare.copies import SAMPLES, network

Y = [TensorName("y_out")]


def against_fp32(side):
    whole = network()
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), side)
    walk.all()
    return compared(walk)


@pytest.mark.parametrize(("low", "least"), [("tf32", 1e-6), ("fp16", 1e-5), ("bf16", 1e-4)])
def test_emulations_round(low, least):
    side = emulated(network(), SAMPLES, Settings(), low)
    found = against_fp32(side)
    assert side.arithmetic == low
    assert least < found.outputs[Y[0]]


def test_the_reference_is_exact_and_its_optimised_form_is_not():
    whole = network()
    assert reference(whole, SAMPLES, Settings()).exact
    assert not reference(whole, SAMPLES, Settings(), optimise=True).exact
    assert not against_fp32(reference(whole, SAMPLES, Settings(), optimise=True)).differs


def test_everything_low_has_low_tensors_under_the_same_names():
    low = all_low(network(), FP16, Settings())
    types = {v.name: str(v.dtype) for n in low.graph for v in n.outputs}
    assert types["b_out"] == "FLOAT16"
    assert [v.name for v in low.graph.outputs] == Y
