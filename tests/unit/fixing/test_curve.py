"""The trade-off of small models."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.case import Chosen
from halfwise.fixing import depths, filed
from halfwise.fixing.bench import Bench
from halfwise.fixing.curve import (
    MEASURED,
    MODERATE,
    Measuring,
    TradeOff,
    excludes,
    front,
    is_fp32,
    next_open,
    spread,
)
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.judging import inside as judging_inside
from halfwise.judging.judge import AsFile
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import Criterion, Curve, Point
from halfwise.targets.runners import OnnxRuntime
from tests import models
from tests.tasks import classifier, close_calls, fixed, overflowing_classifier, pricing_classifier
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
    kept = {curve.kept(point) for point in curve.points}
    assert kept >= normal.space.tried().keys()
    assert [p.evaluation for p in curve.points] == sorted(p.evaluation for p in curve.points)
    assert curve.plan is not None
    assert curve.kept(curve.points[curve.plan]) == normal.result.kept


def test_the_front_goes_from_nothing_kept_to_fp32(normal):
    curve = curve_of(normal)
    shown = [curve.points[place] for place in curve.front]
    assert len(shown) <= MEASURED
    assert (shown[0].count, shown[0].cost) == (0, 1)
    assert (len(curve.nodes), 0) in [(each.count, each.error) for each in shown]
    assert curve.plan in curve.front
    assert shown[0].error > 1 >= curve.points[curve.plan].error


def test_what_is_shown_was_measured_on_all_samples_and_on_held_out_ones(normal):
    curve, space = curve_of(normal), normal.space
    for place in curve.front:
        shown = curve.points[place]
        kept = curve.kept(shown)
        assert not shown.is_bound
        assert shown.error == pytest.approx(space.excess(kept) * space.bench.tolerance.factor)
        assert shown.casts == space.variant.write(space.fresh(kept))[0].casts
        assert shown.heldout is not None


def test_the_error_on_held_out_samples_is_that_of_the_verdict(normal):
    curve = curve_of(normal)
    plan = next(p for p in curve.points if curve.kept(p) == normal.result.kept)
    needed = max(o.rel_max_needed for o in normal.verdict.outputs.values())
    assert plan.rel_max == pytest.approx(needed, rel=1e-4)
    assert plan.heldout == pytest.approx(needed / 0.01, rel=1e-4)
    assert not plan.nonfinite


def test_where_nothing_need_be_kept_nothing_more_is_measured():
    run = fixed(models.small())
    curve = curve_of(run)
    assert run.result.kept == frozenset()
    assert [curve.points[place].count for place in curve.front] == [0, len(curve.nodes)]
    assert curve.plan == 0
    assert curve.recommended is None


def test_without_time_what_was_tried_is_on_record():
    run = fixed(models.layer_norm(), time_budget=0)
    curve = curve_of(run)
    assert curve.points[0].count == 0
    assert run.space.budget.cut.count("curve") == 1


def test_a_given_metric_is_the_task():
    curve = curve_of(fixed(classifier(), metric="snr", metric_drop=0))
    assert curve.recognised == ()
    low, best = curve.points[0], curve.points[curve.front[-1]]
    assert [score.metric for score in low.scores] == ["snr"]
    assert not low.serves
    assert best.serves
    assert curve.recommended is not None


def test_a_plan_that_breaks_the_users_rules_is_not_recommended():
    run = fixed(classifier(), rel_max=1e-5, keep=["bend"])
    curve = curve_of(run)
    assert curve.recommended is not None
    assert "bend" in curve.kept(curve.points[curve.recommended])
    assert curve.points[curve.front[0]].count == 0


def test_without_held_out_samples_nothing_is_recommended():
    curve = curve_of(fixed(classifier(1), rel_max=1e-5))
    assert curve.recommended is None
    assert all(point.heldout is None for point in curve.points)


def test_a_plan_that_is_infinite_inside_is_not_recommended_but_what_mends_it():
    run = fixed(overflowing_classifier(), rel_max=1e-5)
    curve = curve_of(run)
    low = curve.points[0]
    assert (low.count, low.infinite_inside, low.serves) == (0, True, False)
    assert all(score.passed for score in low.scores)
    assert curve.recommended is not None
    best = curve.points[curve.recommended]
    assert best.infinite_inside is False
    assert "square" in curve.kept(best)
    assert best.evaluation <= 8
    assert best.price < curve.points[curve.plan or 0].price


@pytest.mark.parametrize("model", [close_calls(), overflowing_classifier()])
def test_what_was_run_is_not_run_again(monkeypatch, model):
    ran, inside = list[object](), list[object]()
    results_on, look = Bench.results_on, judging_inside.emulate

    def running(bench, plan, samples):
        ran.append((plan, samples.ids))
        return results_on(bench, plan, samples)

    def looking(candidate, samples, **options):
        nodes = sorted((n.name, n.outputs[0].dtype) for n in candidate.graph)
        inside.append((nodes, samples.ids))
        return look(candidate, samples, **options)

    monkeypatch.setattr(Bench, "results_on", running)
    monkeypatch.setattr(depths, "emulate", looking)
    one = fixed(model, rel_max=1e-3)
    curve, plan, remaining = curve_of(one), one.assigned, one.heldout.rest.ids
    low = one.space.fresh(frozenset())
    assert plan.kept
    assert {curve.kept(p) for p in curve.points if p.heldout is not None} >= {low.kept, plan.kept}
    assert len(set(ran)) == len(ran)
    assert all(each not in inside[:place] for place, each in enumerate(inside))
    assert (low, remaining) not in ran
    # The search alone finds this plan, so that the verdict runs it first.
    assert bool(inside) or (plan, remaining) not in ran


def test_a_plan_that_fails_on_samples_of_the_search_is_not_recommended():
    curve = curve_of(fixed(close_calls(), rel_max=1e-3))
    low = curve.points[0]
    assert (low.count, low.searched, low.serves) == (0, False, False)
    assert all(score.passed for score in low.scores)
    assert curve.recommended is not None
    best = curve.points[curve.recommended]
    assert (best.searched, best.infinite_inside) == (True, False)


def reversed_classes(_model, _samples, references, _settings):
    results = [{name: -array for name, array in each.items()} for each in references]
    yield AsFile(OnnxRuntime(), required=False, results=results)


def test_a_plan_whose_file_fails_is_not_recommended(monkeypatch):
    monkeypatch.setattr(depths, "run_files", reversed_classes)
    curve = curve_of(fixed(classifier(), rel_max=1e-5))
    low = curve.points[0]
    assert (low.count, low.as_file, low.serves) == (0, False, False)
    assert all(score.passed for score in low.scores)
    assert curve.recommended is not None
    assert curve.points[curve.recommended].count == len(curve.nodes)


def test_a_plan_whose_file_fails_the_verdict_is_not_recommended(monkeypatch):
    one = overflowing_classifier()

    before = curve_of(fixed(one, rel_max=1e-3))
    assert before.recommended == before.plan
    monkeypatch.setattr(Bench, "demand", lambda *_: None)
    for module in (depths, filed):
        monkeypatch.setattr(module, "run_files", reversed_classes)
    curve = curve_of(fixed(one, rel_max=1e-3))
    assert curve.plan is not None
    plan = curve.points[curve.plan]
    assert (plan.searched, plan.infinite_inside, plan.as_file, plan.serves) == (
        *(True, False, False, False),
    )
    assert curve.recommended is not None
    assert curve.points[curve.recommended].count == len(curve.nodes)


def test_a_plan_whose_file_does_not_run_is_recommended(monkeypatch):
    def fails(_model, _samples, _references, _settings):
        yield AsFile(OnnxRuntime(), required=False, error="No kernel.")

    monkeypatch.setattr(depths, "run_files", fails)
    curve = curve_of(fixed(classifier(), rel_max=1e-5))
    assert curve.recommended is not None
    best = curve.points[curve.recommended]
    assert (best.count, best.as_file) == (0, None)


def test_what_nobody_would_choose_is_not_measured_on_all_samples():
    curve = curve_of(fixed(models.deep(), rel_max=5e-5))
    distant = [point for point in curve.points if point.error > MODERATE]
    assert any(point.is_bound for point in distant)


def test_what_a_task_may_bear_is_measured_whatever_its_error(monkeypatch):
    monkeypatch.setattr(TradeOff, "_recommended", lambda *_: None)
    curve = curve_of(fixed(overflowing_classifier(), rel_max=1e-6))
    assert any(p.count and p.error > MODERATE and not p.is_bound for p in curve.points)


@pytest.mark.parametrize("options", [{"snr_db": 70}, {"cosine": 0.9999999}])
def test_the_front_holds_no_plan_of_whose_error_only_a_bound_is_known(options):
    curve = curve_of(fixed(overflowing_classifier(), **options))
    assert any(point.is_bound for point in curve.points)
    assert len(curve.front) > 2
    assert not any(curve.points[place].is_bound for place in curve.front)


def test_what_lacks_nodes_that_the_search_had_to_keep_is_known_to_be_infinite_inside():
    run = fixed(overflowing_classifier())
    curve, held = curve_of(run), run.space.held_nodes
    assert held
    assert any(p.infinite_inside for p in curve.points)
    for one in curve.points:
        assert held <= curve.kept(one) or one.infinite_inside


def test_what_overflows_on_samples_of_the_search_is_not_recommended():
    curve = curve_of(fixed(pricing_classifier(), rel_max=1e-6))
    low = curve.points[0]
    assert (low.count, low.error, low.searched, low.serves) == (0, inf, False, False)
    assert curve.recommended is not None
    assert "price" in curve.kept(curve.points[curve.recommended])


def test_with_a_metric_what_is_known_of_a_few_samples_is_no_bound():
    run = fixed(classifier(40), metric="snr", metric_drop=0)
    bench = run.space.bench
    tried = next(plan for plan, outcome in bench.tried().items() if outcome.sample is None)
    assert bench.bound(tried) == 0
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


@given(bounds)
def test_when_all_that_is_left_open_was_measured_no_bound_could_be_on_the_front(triples):
    points = [point("", cost, error, is_bound=bound) for cost, error, bound in triples]
    while (place := next_open(points)) is not None:
        assert points[place].is_bound
        points[place] = points[place].model_copy(update={"is_bound": False})
    exact = [p for p in points if not p.is_bound]
    assert all(any(excludes(k, p) for k in exact) for p in points if p.is_bound)


def test_what_is_measured_next_is_far_from_what_is_known():
    points = [
        point("", 1.0, 9.0),
        point("0", 1.1, 2.0, is_bound=True),
        point("1", 1.5, 2.0, is_bound=True),
        point("2", 1.5, 1.0, is_bound=True),
        point("0-1", 1.6, 9.5, is_bound=True),
        point("0-2", 2.0, 0.0),
    ]
    assert next_open(points) == 3


@pytest.fixture(scope="module")
def measuring_normal() -> Fixed:
    return fixed(models.layer_norm())


def measuring(run: Fixed, measuring_here: Criterion | None = None) -> Measuring:
    criterion = measuring_here or run.space.variant.case.criterion
    return Measuring(run.curve, criterion, run.space, run.heldout)


def low(curve: Curve) -> Point:
    return next(point for point in curve.points if point.count == 0)


def test_an_error_is_that_of_all_samples_by_what_was_allowed_in_the_run(measuring_normal):
    curve, space = measuring_normal.curve, measuring_normal.space
    plan = curve.points[curve.plan]
    measuring_here, wider = (
        measuring(measuring_normal),
        measuring(measuring_normal, Criterion(rel_max=0.1)),
    )
    assert measuring_here.error(plan) == pytest.approx(
        space.excess(measuring_normal.result.kept) * space.bench.tolerance.factor
    )
    assert wider.error(plan) == pytest.approx(measuring_here.error(plan) / 10)
    assert measuring_here.error(low(curve)) > 1
    assert measuring_here.count == 2


def test_what_passes_on_all_samples_fits(measuring_normal):
    curve, measuring_here = measuring_normal.curve, measuring(measuring_normal)
    assert measuring_here.fits(curve.points[curve.plan])
    assert not measuring_here.fits(low(curve))
    fp32 = next(point for point in curve.points if is_fp32(curve, point))
    before = measuring_here.count
    assert measuring_here.fits(fp32)
    assert measuring_here.count == before


def test_what_is_infinite_inside_has_no_error_that_counts():
    ill = overflowing_classifier()
    curve = fixed(ill, rel_max=0.5).curve
    measured: list[Any] = []
    point = low(curve)

    def choosing(space, heldout):
        measuring_here = Measuring(curve, Criterion(), space, heldout)
        measured.extend(
            (
                measuring_here.error(point),
                measuring_here.fits(point),
                low(measuring_here.measured(point, scored=True)),
            )
        )
        return Chosen(frozenset(), "choose")

    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    settings = replace(request.settings, chosen=Chosen(frozenset(), "choose"))
    fix(case, settings, Silent(), choosing=choosing)
    error, fits, described = measured
    assert (error, fits, described.infinite_inside) == (inf, False, True)


def test_what_was_measured_is_told():
    run = fixed(models.layer_norm())
    curve = run.curve
    bound = next(point for point in curve.points if point.is_bound)
    measuring_here = measuring(run)
    assert measuring_here.measured(bound, scored=True).points == curve.points
    measuring_here.fits(bound)
    described = measuring_here.measured(bound, scored=True)
    place = curve.points.index(bound)
    assert not described.points[place].is_bound
    assert described.points[place].error >= bound.error * 0.999
    assert place in described.front
