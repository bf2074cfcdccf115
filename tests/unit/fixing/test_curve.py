"""The trade-off of small models."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.curve import (
    MEASURED,
    MODERATE,
    front,
    spread,
)
from halfwise.records import Curve
from tests import models
from tests.tasks import classifier, fixed, overflowing_classifier
from tests.unit.records.curves import point

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def normal():
    return fixed(models.layer_norm())


def curve_of(run) -> Curve:
    curve: Curve = run.curve
    return curve


def test_the_curve_holds_every_plan_that_was_tried(normal):
    curve = curve_of(normal)
    kept = {curve.named(point.kept) for point in curve.points}
    assert kept >= normal.space.tried().keys()
    assert curve.plan is not None
    assert curve.named(curve.points[curve.plan].kept) == normal.result.kept


def test_the_front_goes_from_nothing_kept_to_fp32(normal):
    curve = curve_of(normal)
    shown = [curve.points[place] for place in curve.front]
    assert len(shown) <= MEASURED
    assert (shown[0].count, shown[0].cost) == (0, 1)
    assert (len(curve.nodes), 0) in [(each.count, each.error) for each in shown]
    assert curve.plan in curve.front
    assert shown[0].error > 1 >= curve.points[curve.plan].error


def test_what_is_shown_was_measured_on_all_samples(normal):
    curve, space = curve_of(normal), normal.space
    for place in curve.front:
        shown = curve.points[place]
        kept = curve.named(shown.kept)
        assert not shown.is_bound
        assert shown.error == pytest.approx(space.excess(kept) * space.bench.tolerance.factor)


def test_where_nothing_need_be_kept_nothing_more_is_measured():
    run = fixed(models.small())
    curve = curve_of(run)
    assert run.result.kept == frozenset()
    assert [curve.points[place].count for place in curve.front] == [0, len(curve.nodes)]
    assert curve.plan == 0


def test_without_time_what_was_tried_is_on_record():
    run = fixed(models.layer_norm(), time_budget=0)
    curve = curve_of(run)
    assert curve.points[0].count == 0
    assert run.space.budget.cut.count("curve") == 1


def test_what_nobody_would_choose_is_not_measured_on_all_samples():
    curve = curve_of(fixed(models.deep(), rel_max=5e-5))
    distant = [point for point in curve.points if point.error > MODERATE]
    assert any(point.is_bound for point in distant)


@pytest.mark.parametrize("options", [{"snr_db": 70}, {"cosine": 0.9999999}])
def test_the_front_holds_no_plan_of_whose_error_only_a_bound_is_known(options):
    curve = curve_of(fixed(overflowing_classifier(), **options))
    assert any(point.is_bound for point in curve.points)
    assert len(curve.front) > 2
    assert not any(curve.points[place].is_bound for place in curve.front)


def test_what_lacks_nodes_that_the_search_had_to_keep_is_no_plan_to_choose():
    run = fixed(overflowing_classifier())
    curve, held = curve_of(run), run.space.held_nodes
    assert held
    assert all(held <= curve.named(one.kept) for one in curve.points)


def test_with_a_metric_what_is_known_of_a_few_samples_is_no_bound():
    run = fixed(classifier(40), metric="snr", metric_drop=0)
    curve = curve_of(run)
    assert all(point.error in (0, inf) for point in curve.points if point.is_bound)
    assert not any(curve.points[place].is_bound for place in curve.front)


errors = st.one_of(st.floats(0, 1e9), st.just(inf))
drawn = st.lists(st.tuples(st.floats(1, 3), errors), min_size=1, max_size=40)


@given(drawn)
def test_nothing_beats_the_front_and_it_beats_the_rest(pairs):
    points = [point("", cost, error) for cost, error in pairs]
    best = [points[place] for place in front(points)]
    for one in points:
        beaten = [b for b in best if b.price <= one.price and b.error <= one.error]
        assert beaten
        if one in best:
            assert all((b.price, b.error) == (one.price, one.error) for b in beaten)


@given(drawn, st.integers(2, 8))
def test_few_are_shown_ends_and_what_is_wanted_among_them(pairs, most):
    points = [point("", cost, error) for cost, error in pairs]
    shown = spread(points, [0], most)
    whole = front(points)
    assert {whole[0], whole[-1], 0} <= set(shown)
    assert len(shown) == len(set(shown)) <= max(most, 3)
    assert [points[i].price for i in shown] == sorted(points[i].price for i in shown)


def test_no_points_have_no_front():
    assert front([]) == []
    assert spread([]) == []


bounds = st.lists(st.tuples(st.floats(1, 3), errors, st.booleans()), max_size=30)


@given(bounds)
def test_a_bound_is_no_error(triples):
    points = [point("", cost, error, is_bound=bound) for cost, error, bound in triples]
    exact = [p for p in points if not p.is_bound]
    assert [points[i] for i in front(points)] == [exact[i] for i in front(exact)]


def test_bounds_that_nothing_beats_are_worth_measuring():
    points = [
        point("", 1.0, 9.0),
        point("0", 1.1, 2.0, is_bound=True),
        point("1", 1.5, 2.5, is_bound=True),
        point("2", 1.5, MODERATE + 1, is_bound=True),
        point("0-1", 1.6, 1.0, is_bound=True),
        point("0-2", 2.0, 0.0),
    ]
    assert front(points) == [0, 5]
    assert front(points, bounds=True) == spread(points, bounds=True) == [0, 1, 4, 5]
