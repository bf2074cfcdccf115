"""Plans to choose from, baselines, and what others read of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.records import Baseline, Change, mask, places, replace
from tests.unit.records.curves import curve, point


@given(st.sets(st.integers(0, 400)))
def test_places_are_read_back_as_written(some):
    assert places(mask(some)) == sorted(some)


def test_the_nodes_of_a_point_are_those_of_the_curve():
    made = curve(point("0 2", 1.1, 0.5))
    assert made.named(made.points[0].kept) == {"a", "c"}


def test_without_a_known_cost_fewer_nodes_are_cheaper():
    assert point("0-1", None, 1.0).price == 2


def test_the_plan_of_a_run_is_one_of_the_points_or_none():
    made = curve(point("", 1.0, 3.0), point("0 2", 2.0, 0.5), plan=0)
    assert made.of_plan(frozenset((made.nodes[0], made.nodes[2]))).plan == 1
    assert made.of_plan(frozenset()).plan == 0
    assert made.of_plan(frozenset(made.nodes)).plan is None
    assert made.of_plan(None).plan is None


@pytest.mark.parametrize(
    "damage",
    [
        {"plan": 1},
        {"plan": -1},
        {"kept": "8"},
        {"kept": "f" * 99_999},
        {"kept": "-1"},
        {"kept": "all"},
    ],
)
def test_places_beyond_what_there_is_are_refused(damage):
    whole = curve(point("0", 1.0, 0.5))
    if kept := damage.get("kept"):
        damage = {"points": (replace(whole.points[0], kept=kept),)}
    with pytest.raises(ValueError, match=r"place|invalid literal"):
        replace(whole, **damage)


def test_one_figure_that_got_worse_is_enough():
    fine = Change(kind="cost", before=1.0, now=1.0, limit=1.0, passed=True)
    found = Baseline(run="r", date="d", same_samples=True, changes=(fine,))
    assert found.passed
    worse = replace(fine, passed=False)
    assert not replace(found, changes=(fine, worse)).passed
