"""Lowering group by group."""

from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.halving import lowered
from halfwise.records import NodeName

NODES = [NodeName(f"n{i:02}") for i in range(16)]


@given(st.frozensets(st.sampled_from(NODES)), st.integers(1, 16))
def test_only_groups_that_are_needed_stay(needed, size):
    groups = [frozenset(NODES[i : i + size]) for i in range(0, 16, size)]
    expected = frozenset[NodeName]().union(*(g for g in groups if g & needed))
    assert lowered(frozenset(NODES), groups, needed.issubset) == expected


@given(st.frozensets(st.sampled_from(NODES)))
def test_a_group_is_taken_apart_where_it_may_be(needed):
    assert lowered(frozenset(NODES), [frozenset(NODES)], needed.issubset, split=NODES) == needed


def test_a_group_of_two_is_taken_apart_too():
    pair = frozenset(NODES[:2])
    assert lowered(pair, [pair], lambda kept: NODES[0] in kept, split=NODES) == {NODES[0]}
