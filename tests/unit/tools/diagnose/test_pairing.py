import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.graph.model import network_from_proto
from halfwise.tools.diagnose.changed import changed_inputs
from halfwise.tools.diagnose.export import exported
from halfwise.tools.diagnose.pairing import order, variations
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(3)
DATA = f32(RNG.normal(size=(6, 1, 8)))
SAMPLES = Samples(tuple(f"s{i}" for i in range(6)), lambda i: {"x": DATA[i]})


def network(swing):
    """Give 1 and something that follows the input, as small as `swing`."""
    sketch = Sketch()
    x = sketch.input("x", [1, 8])
    moving = sketch.op("Mul", sketch.op("Tanh", x, name="t"), f32(swing), name="m")
    return network_from_proto(sketch.proto(sketch.op("Add", moving, f32(1), name="y")))


def outputs(data, swing):
    return [{"y_out": f32(1 + f32(swing) * np.tanh(x))} for x in data]


def judged(subject, data, swing):
    return exported(subject(network(swing), SAMPLES, expected=outputs(data, swing)))


@pytest.mark.parametrize("swing", [1.0, 1e-3, 2e-4])
def test_another_order_is_named_however_little_the_outputs_vary(subject, swing):
    assert judged(subject, DATA, swing).passed
    rung = judged(subject, np.roll(DATA, 1, axis=0), swing)
    assert rung.passed is False
    assert "in another order: s0 has that of s5, s1 has that of s0" in rung.cause


def test_outputs_of_other_samples_fail_where_the_tolerance_on_their_size_passes(subject):
    rung = judged(subject, f32(RNG.normal(size=DATA.shape)), 1e-4)
    assert rung.passed is False
    assert "Output y_out varies by only" in rung.cause
    assert "expected outputs of other inputs" in rung.cause


def test_small_errors_beside_what_the_outputs_vary_by_pass(subject):
    rung = judged(subject, DATA * f32(1.01), 1e-3)
    assert rung.passed


def test_outputs_that_do_not_vary_show_nothing(subject):
    rung = judged(subject, DATA[::-1], 1e-7)
    assert rung.passed
    assert any("does not show" in s.text and s.severity == "warning" for s in rung.evidence)
    assert not any("does not show" in s.text for s in judged(subject, DATA, 1.0).evidence)


def test_what_cannot_be_compared_says_nothing():
    given = outputs(DATA, 1.0)
    assert variations(given[:1], given[:1]) == []
    assert variations([], []) == []
    nan = [{"y_out": np.full_like(g["y_out"], np.nan)} for g in given]
    assert variations(nan, given) == []
    assert order(nan, given) is None
    whole = [{"y_out": np.zeros(3, np.int64)}] * 6
    assert variations(whole, whole) == []
    ragged = [{"y_out": f32(np.ones(i + 1))} for i in range(6)]
    assert variations(ragged, ragged) == []


@pytest.mark.parametrize("shift", range(1, 6))
def test_the_order_is_that_of_the_samples(shift):
    given, computed = outputs(np.roll(DATA, shift, axis=0), 1e-3), outputs(DATA, 1e-3)
    assert order(given, computed) == tuple((i - shift) % 6 for i in range(6))
    assert order(computed, computed) is None


def test_a_change_of_the_inputs_is_looked_for_beside_what_the_outputs_vary_by(subject):
    turned = outputs(DATA[:, :, ::-1], 1e-4)
    made = subject(network(1e-4), SAMPLES, expected=turned)
    assert made.against_framework.passed
    trials = changed_inputs(made)
    assert trials is not None
    assert trials.beside_spread
    assert trials.before > 1e-3
