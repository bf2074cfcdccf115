"""Plans measured for a choice, on a small model."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from halfwise.case import Chosen
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.measuring import Measuring, is_fp32
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import Criterion, Curve, Point
from tests import models
from tests.tasks import fixed, overflowing_classifier

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture(scope="module")
def normal() -> Fixed:
    return fixed(models.layer_norm())


def measuring(found: Fixed, own: Criterion | None = None) -> Measuring:
    planner = found.planner
    return Measuring(found.curve, own or planner.case.criterion, planner, found.heldout)


def low(curve: Curve) -> Point:
    return next(point for point in curve.points if point.count == 0)


def test_an_error_is_that_of_all_samples_by_what_was_allowed_in_the_run(normal):
    curve, trials = normal.curve, normal.planner.trials
    plan = curve.points[curve.plan]
    own, wider = measuring(normal), measuring(normal, Criterion(rel_max=0.1))
    assert own.error(plan) == pytest.approx(trials.excess(normal.found.kept) * trials.factor)
    assert wider.error(plan) == pytest.approx(own.error(plan) / 10)
    assert own.error(low(curve)) > 1
    assert own.count == 2


def test_what_passes_on_all_samples_fits(normal):
    curve, own = normal.curve, measuring(normal)
    assert own.fits(curve.points[curve.plan])
    assert not own.fits(low(curve))
    fp32 = next(point for point in curve.points if is_fp32(curve, point))
    before = own.count
    assert own.fits(fp32)
    assert own.count == before


def test_what_is_infinite_inside_has_no_error_that_counts():
    ill = overflowing_classifier()
    curve = fixed(ill, rel_max=0.5).curve
    seen: list[Any] = []
    point = low(curve)

    def choosing(planner, heldout):
        own = Measuring(curve, Criterion(), planner, heldout)
        seen.extend((own.error(point), own.fits(point), low(own.told(point, scored=True))))
        return Chosen(frozenset(), "choose")

    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    settings = replace(request.settings, chosen=Chosen(frozenset(), "choose"))
    fix(case, settings, Silent(), choosing=choosing)
    error, fits, told = seen
    assert (error, fits, told.infinite_inside) == (inf, False, True)


def test_what_was_measured_is_told(normal):
    curve = normal.curve
    bound = next(point for point in curve.points if point.is_bound)
    own = measuring(normal)
    assert own.told(bound, scored=True).points == curve.points
    own.fits(bound)
    told = own.told(bound, scored=True)
    place = curve.points.index(bound)
    assert not told.points[place].is_bound
    assert told.points[place].error >= bound.error * 0.999
    assert place in told.front
