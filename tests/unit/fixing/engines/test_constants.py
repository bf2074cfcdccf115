"""FP32 nodes whose constants a builder stores in FP16."""

from math import inf, nan

import numpy as np
import pytest

from halfwise.fixing.engines.prediction import Bands, StoredConstants, as_stored
from halfwise.formats import FP16
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.running import planner
from tests.unit.graph.sketch import Sketch

NOTHING = names()
TINY, HUGE = names("tiny"), names("huge")


@pytest.fixture(scope="module")
def made():
    """Weights of 1e-7, whose product gets its size back; and a factor beyond FP16's range."""
    sketch = Sketch()
    x = sketch.op("Mul", sketch.input("x", [1, 16]), 131072.0, name="huge")
    weights = models.weights(16, 16, seed=3, scale=1e-7)
    y = sketch.op("MatMul", x, weights, name="tiny")
    return planner(models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1, peak=1)}))


def test_constants_are_stored_as_the_builders_log_says():
    given = np.array([1e5, -1e9, 1e-9, -2e-8, 0, 0.1, inf, nan], np.float32)
    found = as_stored(given, FP16)
    least = 2.0**-24
    np.testing.assert_array_equal(found[:5], [65504, -65504, least, -least, 0])
    assert found[5] == np.float16(0.1)
    assert found[6] == inf
    assert np.isnan(found[7])
    assert found.dtype == np.float32


def test_only_nodes_that_read_such_constants_are_concerned(made):
    stored = StoredConstants(made)
    assert stored.concern(TINY)
    assert stored.concern(TINY | HUGE)
    assert not stored.concern(NOTHING)


def test_the_constants_of_a_convolution_are_its_layers_own():
    sketch = Sketch()
    weights = models.weights(4, 4, 1, 1, seed=3, scale=1e-7)
    y = sketch.op("Conv", sketch.input("x", [1, 4, 2, 2]), weights, name="conv")
    inputs = {"x": models.signals(1, 4, 2, 2, seed=1, peak=1)}
    assert not StoredConstants(planner(models.Ill(sketch.proto(y), inputs))).concern(names("conv"))


def test_a_band_in_weak_typing_explains_constants_in_fp16(made):
    keep = TINY | HUGE
    bands, typed = (Bands(made, made.engine_trials(), weak=weak) for weak in (True, False))
    found, sure = bands.emulated(keep, NOTHING), typed.emulated(keep, NOTHING)
    assert sure.constants is None
    assert found.constants is not None
    assert found.constants > 1 > found.fused == sure.fused
    band, narrow = found.band(), sure.band()
    assert band is not None
    assert band.explains(found.constants)
    assert narrow is None or not narrow.explains(found.constants)
    assert made.trials.excess(keep) < 1  # the planner's own constants are as they were
