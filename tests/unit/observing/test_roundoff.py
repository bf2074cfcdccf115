"""Relative errors from rounding alone, against NumPy's own FP16."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.case import Samples
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.observing import observe
from halfwise.observing.roundoff import rounded, with_roundoff
from tests import models
from tests.unit.graph.sketch import Sketch, f32

NORMAL = st.floats(2.0**-14, 65504, width=32)


def errors(sketch: Sketch, output: str, *samples, fmt: Format = FP16) -> dict[str, float]:
    network = sketch.network(output)
    given_samples = Samples(tuple(map(str, range(len(samples)))), lambda i: samples[i])
    seen, _ = observe(network, given_samples, fmt, roles=roles_of(network, low_type(fmt)))
    return {i.node: i.value for i in seen.inner if i.kind == "roundoff"}


@given(hnp.arrays(np.float32, 8, elements=NORMAL), st.sampled_from([FP16, BF16]))
def test_within_the_range_it_is_the_formats_rounding(array, fmt) -> None:
    signed = array * f32([1, -1] * 4)
    np.testing.assert_array_equal(rounded(signed, fmt), fmt.round(signed))


def test_exponents_are_those_of_fp32() -> None:
    array = f32([1e-30, 1 / 3 * 2.0**-40, 1e30, 0])
    expected = f32([FP16.round(array[:1] * f32(2.0**100))[0] * 2.0**-100])
    np.testing.assert_array_equal(rounded(array, FP16)[:1], expected)
    assert np.abs(rounded(array, FP16) / np.maximum(array, 1e-38) - 1)[:3].max() < 2.0**-11


@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_the_lowest_number_stays_finite(fmt) -> None:
    lowest, zero, endless = rounded(f32([np.finfo(np.float32).min, 0, -np.inf]), fmt)
    assert lowest == pytest.approx(np.finfo(np.float32).min, rel=2.0**-fmt.precision)
    assert (zero, endless) == (0, -np.inf)


@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_errors_in_the_graph_are_those_of_the_format(fmt) -> None:
    x = f32(np.linspace(1.1, 1.9, 16))
    s = Sketch()
    difference = s.op("Sub", s.input("x", [16]), f32(1.0), name="sub")
    y = s.op("Log", s.op("Mul", difference, f32(3.3), name="scale"), name="log")
    low = fmt.round(fmt.round(x) - f32(1.0))
    scaled = fmt.round(low * fmt.round(f32([3.3])))
    expected = {
        "sub": np.abs(low / (x - f32(1.0)) - 1).max(),
        "scale": np.abs(scaled / ((x - f32(1.0)) * f32(3.3)) - 1).max(),
    }
    found = errors(s, y, {"x": x}, fmt=fmt)
    assert found == {k: pytest.approx(float(v), rel=1e-3) for k, v in expected.items()}


def test_underflow_and_overflow_are_left_to_others() -> None:
    s = Sketch()
    tiny = s.op("Mul", s.input("x", [4]), f32(1e-12), name="tiny")
    y = s.op("Log", s.op("Mul", tiny, f32(1e20), name="huge"), name="log")
    found = errors(s, y, {"x": f32([1, 2, 3, 4])})
    assert 0 < max(found.values()) < 3 * 2.0**-11


def test_choices_and_bodies_stay_those_of_the_original() -> None:
    s = Sketch()
    x = s.input("x", [4])
    chosen = s.op("Where", s.op("Greater", x, f32(1.0)), x, f32(2.0))
    y = s.op("Log", s.op("Add", chosen, f32(1.0), name="add"), name="log")
    found = errors(s, y, {"x": f32([1.00001, 1, 3, 0])})
    assert found["add"] < 2.0**-10


@pytest.mark.parametrize("opset", [7, 8, 10, 11, 17])
def test_large_weights_are_rounded_as_the_model_runs(opset, monkeypatch) -> None:
    s = Sketch()
    weight = s.constant(f32(np.random.default_rng(1).uniform(0.1, 1, (64, 64))), "w")
    y = s.op("Log", s.op("MatMul", s.input("x", [4, 64]), weight, name="mm"), name="log")
    proto = s.proto(y)
    proto.opset_import[0].version = opset
    weight_bytes = 4 * 64 * 64
    given_samples = Samples(("0",), lambda _: {"x": f32(np.linspace(1, 2, 256).reshape(4, 64))})

    def error(small):
        monkeypatch.setattr("halfwise.graph.model.SMALL_BYTES", small)
        network = network_from_proto(proto)
        seen, _ = observe(network, given_samples, FP16, roles=roles_of(network))
        return [i.value for i in seen.inner if i.kind == "roundoff"]

    assert error(weight_bytes - 1) == pytest.approx(error(weight_bytes), rel=1e-6)
    assert len(error(weight_bytes)) == 1

    def copies(small):
        monkeypatch.setattr("halfwise.graph.model.SMALL_BYTES", small)
        network = network_from_proto(proto)
        model, _ = with_roundoff(network, roles_of(network), FP16)
        arrays = [v.const_value for v in model.graph.initializers.values() if v.const_value]
        return sum(a.nbytes == weight_bytes for a in arrays) - 1

    assert (copies(weight_bytes - 1), copies(weight_bytes)) == (0, 1)


def test_nothing_is_measured_where_nothing_amplifies() -> None:
    s = Sketch()
    assert errors(s, s.op("Sub", s.input("x", [2]), f32(1.0)), {"x": f32([1, 2])}) == {}


def test_a_log_mel_reads_values_below_the_rounding_of_its_signal() -> None:
    ill = models.log_mel()
    network = network_from_proto(ill.proto)
    samples = Samples(("0",), lambda _: ill.sample(0))
    seen, _ = observe(network, samples, FP16, roles=roles_of(network))
    found = {str(i.node): i.value for i in seen.inner if i.kind == "roundoff"}
    assert found["real"] > 1
    assert found["clip"] > 0.1
