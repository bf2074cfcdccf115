"""The trade-off of small models."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.curve import (
    MODERATE,
    front,
)
from halfwise.records import SHOWN, Curve, evenly
from tests import models
from tests.tasks import fixed, overflowing_classifier
from tests.unit.records.curves import curve, point

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def normal():
    return fixed(models.layer_norm())


def curve_of(run) -> Curve:
    curve: Curve = run.curve
    return curve


def test_the_delivered_plan_and_both_ends_are_among_the_plans(normal):
    curve = curve_of(normal)
    assert curve.plan is not None
    low, *_, full = curve.points
    assert curve.named(curve.points[curve.plan].kept) == normal.result.kept
    assert (low.count, low.cost) == (0, 1)
    assert (full.count, full.error) == (len(curve.nodes), 0)
    assert low.error > 1 >= curve.points[curve.plan].error


def test_errors_are_those_on_all_samples(normal):
    curve, space = curve_of(normal), normal.space
    for one in curve.points:
        error = space.excess(curve.named(one.kept))
        assert one.error == pytest.approx(error * space.bench.tolerance.factor)


def test_where_nothing_need_be_kept_nothing_more_is_measured():
    run = fixed(models.small())
    curve = curve_of(run)
    assert run.result.kept == frozenset()
    assert [point.count for point in curve.points] == [0, len(curve.nodes)]
    assert curve.plan == 0


def test_without_time_what_is_known_is_on_record():
    run = fixed(models.layer_norm(), time_budget=0)
    assert curve_of(run).points[-1].error == 0
    assert run.space.budget.cut.count("curve") == 1


def test_what_nobody_would_choose_is_not_measured_on_all_samples():
    run = fixed(models.deep(), rel_max=5e-5)
    outcomes = run.space.bench.tried().items()
    far = [plan for plan, one in outcomes if not one.passed and one.excess > MODERATE]
    assert any(run.space.bench.exact(plan) is None for plan in far)


@pytest.mark.parametrize("options", [{"snr_db": 70}, {"cosine": 0.9999999}])
def test_plans_between_both_ends_are_measured(options):
    assert len(curve_of(fixed(overflowing_classifier(), **options)).points) > 2


def test_what_lacks_nodes_that_the_search_had_to_keep_is_no_plan_to_choose():
    run = fixed(overflowing_classifier())
    curve, held = curve_of(run), run.space.held_nodes
    assert held
    assert all(held <= curve.named(one.kept) for one in curve.points)


errors = st.one_of(st.floats(0, 1e9), st.just(inf))
drawn = st.lists(st.tuples(st.floats(1, 3), errors), min_size=1, max_size=40)


@given(drawn)
def test_nothing_beats_the_front_and_it_beats_the_rest(pairs):
    points = [point("", cost, error) for cost, error in pairs]
    best = front(points)
    assert {*best} <= {*front(points, points[0])} <= {*best, points[0]}
    assert [one.price for one in best] == sorted(one.price for one in best)
    for one in points:
        beaten = [b for b in best if b.price <= one.price and b.error <= one.error]
        assert beaten
        if one in best:
            assert all((b.price, b.error) == (one.price, one.error) for b in beaten)


@given(st.integers(0, 40), st.integers(2, 9))
def test_places_are_spread_evenly_and_both_ends_are_among_them(count, most):
    places = evenly(count, most)
    assert places == sorted({*places})
    assert len(places) == min(count, most)
    assert {0, count - 1} <= {*places} or not count


def test_few_of_many_plans_are_shown():
    made = curve(*(point("", 1 + i / 99, 99.0 - i) for i in range(30)), plan=3)
    assert {0, 3, 29} <= {*made.shown}
    assert len(made.shown) <= SHOWN + 1
    assert curve().shown == []
