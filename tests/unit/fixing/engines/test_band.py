"""Bands of made-up errors, and of a model with squares that overflow."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.prediction import EQUAL, Bands, Emulated
from halfwise.records import NodeName
from tests import models
from tests.models import accumulation
from tests.unit.casing import names
from tests.unit.fixing.engines.test_prediction import ALL, NORM, NOTHING, scaled
from tests.unit.fixing.running import planner

ERRORS = st.floats(1e-6, 1e3)


@pytest.fixture(scope="module")
def made():
    return planner(scaled())


def bands(made) -> Bands:
    return Bands(made, made.engine_trials())


@given(ERRORS, ERRORS, ERRORS, ERRORS, st.floats(0, 3))
def test_every_emulation_is_explained(stored, fused, summed, apart, spread):
    found = Emulated(stored, fused, fused, summed, apart).band(spread)
    assert found is not None
    assert found.holds(fused)
    assert all(map(found.explains, (stored, summed)))
    wider = Emulated(stored, fused, fused, summed, 2 * apart).band(spread)
    assert wider is not None
    assert wider.least == found.least <= found.most <= wider.most


def test_an_error_of_range_has_a_narrow_band():
    found = Emulated(120.1, 120.1, 120.1, 120.1, 0.3).band()
    assert found is not None
    assert found.decibels < 0.1
    assert Emulated(0.2, 0.2, 0.2, 0.2, 0.3).band().decibels > 6  # type: ignore[union-attr]


def test_what_the_builder_has_in_fp32_by_itself_moves_the_least_alone():
    found, free = Emulated(9.0, 8.0, 0.5).band(), Emulated(9.0, 8.0, 8.0).band()
    assert found is not None
    assert free is not None
    assert (found.least, found.most) == (0.5 / EQUAL, free.most)


def test_overflow_where_fusion_is_expected_is_only_possible_or_is_the_end():
    found = Emulated(inf, 0.5, 0.5).band()
    assert found is not None
    assert found.may_overflow
    assert found.most < 1 < inf
    assert found.holds(inf)
    whole = Emulated(inf, inf, 0.5).band()
    assert whole is not None
    assert (whole.least, whole.most) == (0.5 / EQUAL, inf)


def test_without_low_error_nothing_is_told():
    assert Emulated(0.0, 0.0, 0.0, 0.0).band() is None


def test_a_plan_is_emulated_in_three_ways(made):
    found = bands(made).emulated(NORM, NOTHING)
    assert found.stored == inf
    assert found.fused == found.own == made.engine_trials().excess(NORM)
    assert found.summed is not None
    assert found.apart == 0  # both that are finite sum 16 products at once
    known = bands(made).emulated(NOTHING, NORM)
    assert known.own == found.fused < 1 < known.fused
    whole = bands(made).emulated(ALL | {NodeName("larger"), NodeName("norm")}, NOTHING)
    assert (whole.stored, whole.fused, whole.apart) == (0, 0, 0)


def test_what_differs_in_rounding_is_apart():
    ill = models.layer_norm()
    found = bands(planner(ill)).emulated(names(*ill.kept), NOTHING)
    assert 0 < found.apart < found.stored + found.fused + (found.summed or 0.0)


def test_a_kernel_that_sums_in_fp16_is_explained():
    found = bands(planner(accumulation.long_product())).emulated(NOTHING, NOTHING)
    assert found.summed is not None
    assert max(found.stored, found.fused) < 1 < found.summed
    band = found.band()
    assert band is not None
    assert band.holds(found.summed)
    assert band.holds(found.fused)


def test_tf32_may_be_as_bad_as_all_products_and_as_good_as_none(made):
    found = bands(made).tf32()
    assert found is not None
    assert found.least == 0 < found.most


def test_a_metric_knows_no_distance():
    judged = planner(scaled(), metric="snr", metric_drop=3.0)
    found = bands(judged).emulated(NORM, NOTHING)
    assert (found.summed, found.apart) == (None, 0.0)
    assert bands(judged).tf32() is None
