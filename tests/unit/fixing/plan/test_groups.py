"""Which nodes are tried together."""

from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.groups import COARSE_GROUPS, places, stretches, suspicions
from halfwise.records import NodeName


def names(*indices: int) -> frozenset[NodeName]:
    return frozenset(NodeName(f"n{i}") for i in indices)


@given(st.integers(1, 200), st.integers(1, 50))
def test_stretches_are_a_partition_into_few(count, classes):
    nodes = [NodeName(f"n{i}") for i in range(count)]
    found = stretches(nodes, {n: i % classes for i, n in enumerate(nodes)})
    assert sorted(n for group in found for n in group) == sorted(nodes)
    assert len(found) <= COARSE_GROUPS


def test_where_blocks_repeat_their_places_stay_together():
    nodes = [NodeName(f"n{i}") for i in range(64)]
    classes = {n: i % 8 for i, n in enumerate(nodes)}
    assert [len({classes[n] for n in group}) for group in stretches(nodes, classes)] == [1] * 8
    assert places(nodes, classes)[0] == names(*range(0, 64, 8))


def test_suspicions_about_one_place_go_together():
    classes = {NodeName(f"n{i}"): i % 2 for i in range(6)}
    assert suspicions([names(0), names(1), names(2)], classes) == [names(1), names(0, 2)]
