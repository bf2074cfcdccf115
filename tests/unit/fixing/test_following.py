"""Where the error comes from that guards do not explain."""

import pytest

from tests import models
from tests.unit.fixing.test_loop import Clock, found

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_error_is_followed_where_guards_do_not_explain():
    fixed = found(models.deep(), rel_max=5e-4)
    assert [step.node for step in fixed.growth] == [f"rotate_{i}" for i in range(10)]
    assert fixed.followed is not None
    assert fixed.followed.kept == ()
    assert fixed.followed.accumulates


def test_without_time_the_error_is_not_followed(monkeypatch):
    fixed = found(models.deep(), Clock(monkeypatch, "growth"), rel_max=5e-4)
    assert not fixed.search.exhausted
    assert (fixed.growth, fixed.followed) == ((), None)
    assert fixed.planner.budget.cut == ["growth", "curve"]
    assert all(r.kind != "tolerance" for r in fixed.plan.remarks)


def test_without_time_no_origin_is_sought(monkeypatch):
    fixed = found(models.deep(), Clock(monkeypatch, "origin"), rel_max=5e-4)
    assert len(fixed.growth) == 10
    assert fixed.followed is not None
    assert fixed.followed.out_of_time
    assert (fixed.followed.tried, fixed.followed.origin) == ((), None)
    assert fixed.planner.budget.cut == ["origin", "curve"]
    assert all(r.kind != "tolerance" for r in fixed.plan.remarks)
