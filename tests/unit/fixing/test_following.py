"""Where the error comes from that guards do not explain."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from halfwise.fixing import following
from halfwise.fixing.following import with_growth
from tests import models
from tests.models.depth import one_channel
from tests.unit.fixing.test_loop import Clock, found
from tests.unit.judging.test_deciding import near_a_threshold

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_error_is_followed_where_guards_do_not_explain():
    fixed = found(models.deep(), rel_max=5e-4)
    assert [step.node for step in fixed.growth] == [f"rotate_{i}" for i in range(10)]
    assert fixed.followed is not None
    assert fixed.followed.kept == ()
    assert fixed.followed.accumulates


def test_a_channel_that_carries_the_error_is_named():
    fixed = found(one_channel())
    assert fixed.followed is not None
    channel = fixed.followed.channel
    assert channel is not None
    assert (channel.tensor, channel.axis, channel.index) == ("mix_out", 2, 5)
    assert channel.left <= 0.5 * fixed.followed.error
    assert channel.error > 5 * channel.rest
    assert channel.nodes == (*(f"rotate_{i}" for i in range(8)), "mix")


def test_no_channel_is_named_where_all_are_off_alike():
    followed = found(models.deep(), rel_max=5e-4).followed
    assert followed is not None
    assert followed.channel is None


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


def test_without_time_for_decisions_the_path_stays(monkeypatch):
    ill = near_a_threshold("Greater", 4.0)
    fixed = found(ill, Clock(monkeypatch, "origin"), rel_max=5e-3)
    assert fixed.growth
    assert fixed.followed is not None
    assert fixed.followed.out_of_time
    assert (fixed.followed.decided, fixed.followed.accumulates) == (None, False)
    assert fixed.planner.budget.cut == ["origin", "curve"]


def test_what_is_not_followed_is_shown_with_everything_low():
    fixed = found(models.layer_norm())
    assert fixed.growth == ()
    shown = with_growth(fixed, Path())
    assert len(shown.growth) == 8
    assert any(step.error == inf for step in shown.growth)
    assert replace(shown, growth=()) == fixed
    assert with_growth(shown, Path()) is shown
    assert with_growth(fixed, None) is fixed


def test_of_many_nodes_some_are_shown_the_last_one_too(monkeypatch):
    monkeypatch.setattr(following, "SPREAD", 3)
    shown = with_growth(found(models.layer_norm()), Path()).growth
    assert len(shown) == 3
    whole = found(models.layer_norm()).planner.case.network.nodes()
    assert shown[-1].node == [*whole][-1].name


def test_where_time_was_up_nothing_is_shown():
    fixed = found(models.layer_norm())
    fixed.planner.budget.ended_by.append("seconds")
    assert with_growth(fixed, Path()) is fixed
