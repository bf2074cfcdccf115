"""Plans that extend those that nearly passed."""

from halfwise.fixing.plan.extension import BASES, MOST, extensions
from halfwise.records import NodeName


def names(*indices):
    return frozenset(NodeName(f"n{i}") for i in indices)


def test_what_contributes_most_for_its_cost_comes_first_and_groups_also_come_alone():
    needed = [(names(1), 4.0), (names(2), 3.0), (names(3), 1.0)]
    cost = {names(1): 16.0, names(2): 1.0, names(3): 0.5}.__getitem__
    plans = list(extensions([names(0)], needed, cost))
    assert plans[:3] == [names(0, 2), names(0, 2, 3), names(0, 1, 2, 3)]
    assert {names(0, 1), names(0, 3)} == set(plans[3:])


def test_nothing_is_tried_twice_and_what_is_kept_already_adds_nothing():
    plans = list(extensions([names(0, 1)], [(names(1), 2.0), (names(2), 1.0)], lambda _: 0.0))
    assert plans == [names(0, 1, 2)]
    assert not list(extensions([names(1)], [(names(1), 2.0)], lambda _: 0.0))


def test_few_plans_and_few_groups_are_taken():
    needed = [(names(100 + i), 100.0 - i) for i in range(50)]
    plans = list(extensions([names(i) for i in range(9)], needed, lambda _: 1e-6))
    assert frozenset().union(*plans) <= names(*range(BASES), *range(100, 100 + MOST))
