"""How many values a pair clips, and what another scale would do, against counting all of them."""

import ml_dtypes
import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.graph.model import Network
from halfwise.graph.quantised import pairs_of
from halfwise.tools.verify.quantised import Reach, reaches
from tests.unit.graph.sketch import Sketch, f32


def network(scale: float, zero: int = 0, dtype: type = np.int8) -> Network:
    s = Sketch(19)
    parameters = (s.constant(scale), s.constant(dtype(zero)))
    codes = s.op("QuantizeLinear", s.input("x", [None]), *parameters, name="q")
    return s.network(s.op("DequantizeLinear", codes, *parameters, name="dq"))


def reach(values, scale: float, zero: int = 0, dtype: type = np.int8) -> Reach:
    model = network(scale, zero, dtype)
    samples = Samples(("0", "1"), lambda i: {"x": f32(np.array_split(values, 2)[i])})
    return reaches(model, pairs_of(model), samples)[0]


def test_what_is_beyond_a_range_and_its_share_of_the_error():
    values = f32(np.random.default_rng(1).normal(size=4000))
    scale = 0.01
    steps = values / np.float32(scale)
    codes = np.clip(np.rint(steps), -128, 127)
    outside = (steps > 127.5) | (steps < -128.5)
    squares = (steps - codes) ** 2
    found = reach(values, scale)
    assert found.fault == "saturated"
    assert found.beyond == pytest.approx(np.mean(outside))
    assert found.clipped == pytest.approx(squares[outside].sum() / squares.sum(), rel=1e-5)
    assert found.largest == pytest.approx(np.abs(values).max(), rel=1e-6)
    assert found.rescale == pytest.approx(found.largest / 1.28)


def test_an_outlier_is_not_what_most_values_reach():
    values = np.append(np.linspace(-1, 1, 9999), 100)
    found = reach(values, 100 / 127)
    assert found.usual == pytest.approx(1, rel=0.03)
    assert (found.beyond, found.clipped, found.fault) == (0, 0, "outlier")
    assert found.largest == pytest.approx(100)
    assert found.rescale == pytest.approx(1 / (128 / 127 * 100), rel=0.03)


def test_what_a_range_from_zero_cuts_off_is_meant():
    found = reach(np.linspace(-1, 1, 100), 1 / 255, -128)
    assert (found.beyond, found.clipped) == (0, 0)
    found = reach(np.linspace(-1, 1, 100), 0.5 / 255, 0, np.uint8)
    assert found.beyond == pytest.approx(0.25, abs=0.01)
    assert found.clipped > 0.99


@pytest.mark.parametrize("values", [[], [np.nan, np.inf], [0.0]])
def test_nothing_to_count(values):
    found = reach(np.asarray(values), 1.0)
    assert (found.beyond, found.clipped, found.largest, found.rescale) == (0, 0, 0, None)


@pytest.mark.parametrize(
    "values", [np.linspace(-1, 1, 999), np.append(np.linspace(-1, 1, 999), 400)]
)
def test_the_range_of_a_float_is_never_too_wide(values):
    assert reach(values, 448 / 127).fault is not None
    found = reach(values, 1.0, dtype=ml_dtypes.float8_e4m3fn)
    assert (found.limit, found.fault, found.rescale) == (448, None, None)
    assert reach(values, 1e-4, dtype=ml_dtypes.float8_e4m3fn).fault == "saturated"
