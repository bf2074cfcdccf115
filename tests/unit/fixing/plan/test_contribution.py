"""The ranking, on contributions that add in quadrature."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.contribution import is_spread, lowerable, rankings
from halfwise.records import NodeName


def named(count):
    return [NodeName(f"n{i}") for i in range(count)]


class Measured:
    """Root of the summed squares of what each node contributes; counts the questions."""

    def __init__(self, errors):
        self.errors = dict(zip(named(len(errors)), errors, strict=True))
        self.calls = 0

    def __call__(self, low):
        self.calls += 1
        return math.sqrt(sum(self.errors[n] ** 2 for n in low))


def ranked(groups, contribution, enough):
    """The finest of the rankings."""
    return list(rankings(groups, contribution, enough))[-1]


def groups_of(nodes, length):
    return [nodes[i : i + length] for i in range(0, len(nodes), length)]


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.integers(1, 20),
    st.floats(0.01, 5),
)
def test_the_groups_are_a_partition_with_their_contributions(errors, length, enough):
    measured = Measured(errors)
    nodes = named(len(errors))
    found = ranked(groups_of(nodes, length), measured, enough)
    assert sorted(n for group, _ in found for n in group) == sorted(nodes)
    for group, contribution in found:
        assert contribution == pytest.approx(measured(group))


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
    st.integers(1, 20),
    st.floats(0.01, 5),
)
def test_what_stays_whole_contributes_little_and_singles_are_in_order(errors, length, enough):
    measured = Measured(errors)
    found = ranked(groups_of(named(len(errors)), length), measured, enough)
    whole = [c for group, c in found if len(group) > 1]
    singles = [c for group, c in found if len(group) == 1]
    assert math.sqrt(sum(c * c for c in whole)) <= enough * (1 + 1e-9)
    assert whole == sorted(whole)
    assert singles == sorted(singles)
    assert [len(group) > 1 for group, _ in found] == [True] * len(whole) + [False] * len(singles)


def test_few_nodes_that_matter_cost_few_measurements():
    """About 2 k log2(n/k) for k = 5 of n = 300, and far fewer than 300."""
    errors = [0.001] * 300
    for i in (3, 50, 51, 120, 199):
        errors[i] = 5.0
    measured = Measured(errors)
    found = ranked(groups_of(named(300), 17), measured, 0.5)
    assert {n for group, _ in found[-5:] for n in group} == {
        NodeName(f"n{i}") for i in (3, 50, 51, 120, 199)
    }
    assert measured.calls <= 18 + 2 * 5 * 5


def test_where_nothing_matters_groups_are_measured_once():
    measured = Measured([0.001] * 100)
    found = ranked(groups_of(named(100), 10), measured, 0.5)
    assert measured.calls == 10
    assert len(found) == 10


def test_infinite_and_undefined_contributions_come_last():
    values = {"n0": math.inf, "n1": math.nan, "n2": 0.25, "n3": 7.0}

    def contribution(low):
        return values[next(iter(low))] if len(low) == 1 else math.nan

    found = ranked([named(4)], contribution, 0.5)
    assert [c for _, c in found] == [0.25, 7.0, math.inf, math.inf]


def test_without_a_tolerance_a_tenth_of_everything_may_stay_whole():
    """A metric alone decides, so no error is known to be harmless."""
    errors = [1.0] * 4 + [0.01] * 16
    measured = Measured(errors)
    found = ranked(groups_of(named(20), 4), measured, None)
    singles = {n for group, _ in found if len(group) == 1 for n in group}
    assert singles == set(named(4))


def test_no_groups():
    assert list(rankings([], Measured([]), 0.5)) == [[]]
    assert list(rankings([[], []], Measured([]), None)) == [[]]


def test_a_ranking_comes_whenever_the_number_of_groups_has_doubled():
    """Whoever runs out of time has one of half the detail at least, and each is a partition."""
    measured = Measured([1.0] * 32)
    nodes = named(32)
    calls, sizes = [], []
    for ranking in rankings(groups_of(nodes, 8), measured, 0.01):
        calls.append(measured.calls)
        sizes.append(len(ranking))
        assert sorted(n for group, _ in ranking for n in group) == sorted(nodes)
    assert sizes == [4, 8, 16, 32]
    assert calls == [4, 12, 28, 60]


def test_the_last_ranking_is_the_finest_also_between_doublings():
    measured = Measured([5.0, 0.0, 0.0, 0.0])
    sizes = [len(ranking) for ranking in rankings([named(4)], measured, 0.5)]
    assert sizes == [1, 2, 3]


def singles(errors):
    return [(frozenset((n,)), e) for n, e in zip(named(len(errors)), errors, strict=True)]


@given(st.lists(st.floats(0, 10), max_size=60), st.floats(0, 20))
def test_as_many_groups_are_lowered_as_the_tolerance_bears(errors, allowed):
    measured = Measured(errors)
    ranking = singles(sorted(errors))
    by_name = dict(zip(named(len(errors)), sorted(errors), strict=True))
    measured.errors = by_name
    low = lowerable(ranking, lambda nodes: measured(nodes) <= allowed)
    assert measured(low) <= allowed
    assert len(low) == len(errors) or measured(low | {f"n{len(low)}"}) > allowed


def test_a_longer_range_that_passes_beyond_one_that_fails_is_found():
    """Halving ends at 7 of 16; errors cancel in the first ten."""
    asked = []

    def passes(nodes):
        asked.append(len(nodes))
        return len(nodes) in (1, 2, 3, 4, 5, 6, 7, 10)

    assert len(lowerable(singles([1.0] * 16), passes)) == 10
    assert len(asked) <= 5 + 2 * 3


def test_infinite_contributions_are_asked_about_as_any_other():
    ranking = singles([0.0, 1.0, math.inf, math.inf])
    assert len(lowerable(ranking, lambda nodes: len(nodes) <= 3)) == 3
    assert len(lowerable(ranking, lambda _: True)) == 4
    assert lowerable(ranking, lambda _: False) == frozenset()
    assert lowerable([], lambda _: True) == frozenset()


@pytest.mark.parametrize(
    ("errors", "spread"),
    [
        ([0.3] * 64, True),
        ([0.3] * 63, False),
        ([0.1] * 64, False),
        ([9.0] * 31 + [0.01] * 33, False),
        ([0.3] * 63 + [math.inf], False),
    ],
)
def test_error_is_spread_where_half_of_many_groups_must_be_kept(errors, spread):
    ranking = [(frozenset({n}), e) for n, e in zip(named(len(errors)), errors, strict=True)]
    assert is_spread(ranking) is spread
