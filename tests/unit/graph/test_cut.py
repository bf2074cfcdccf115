from itertools import product
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from halfwise.graph.cut import smallest_source_side

THINGS = range(6)
"""The first is the source, the last the target."""

costs = st.lists(
    st.tuples(
        st.sampled_from(THINGS[:-1]), st.sampled_from(THINGS[1:]), st.sampled_from([1.0, 2.0, 5.0])
    ).filter(lambda cost: cost[0] != cost[1]),
    max_size=14,
)


def cost_of(side, costs):
    return sum(cost for one, other, cost in costs if one in side and other not in side)


@given(costs)
def test_no_side_is_cheaper_and_none_as_cheap_is_smaller(given_costs):
    sides = [
        frozenset({0, *(i for i, chosen in enumerate(choice, 1) if chosen)})
        for choice in product((False, True), repeat=4)
    ]
    found = smallest_source_side(given_costs, 0, 5)
    cheapest = min(cost_of(side, given_costs) for side in sides)
    assert cost_of(found, given_costs) == cheapest
    # What costs as little contains it.
    assert all(found <= side for side in sides if cost_of(side, given_costs) == cheapest)


def test_what_may_not_be_is_not():
    assert smallest_source_side(
        [("s", "a", 1), ("s", "b", 9), ("b", "a", inf), ("a", "t", 3)], "s", "t"
    ) == {"s", "a", "b"}
    assert smallest_source_side(
        [("s", "a", 1), ("s", "b", 1), ("b", "a", inf), ("a", "t", 3)], "s", "t"
    ) == {"s"}


def test_a_long_chain_ends():
    chain = [(i, i + 1, inf) for i in range(5000)]
    assert smallest_source_side([*chain, (5000, "t", 1), ("s", 0, 2)], "s", "t") == {
        "s",
        *range(5001),
    }
