"""Larger plans that cost less."""

from halfwise.fixing.plan.closing import cheaper_plans
from halfwise.fixing.plan.cut import Terms
from halfwise.fixing.plan.guide import Guide
from halfwise.records import NodeName

NODES = [NodeName(f"n{i}") for i in range(6)]
COSTS = dict(zip(NODES, [1.0, 1.0, 1.0, 1.0, 3.0, 3.0], strict=True))
"""What each node of a chain costs more in FP32."""
CASTS = [0.1, 10.0, 10.0, 1.0, 1.0]
"""Cost of a Cast between each two of them."""


def names(*indices):
    return frozenset(NODES[i] for i in indices)


def price(kept):
    casts = sum(
        c for a, b, c in zip(NODES, NODES[1:], CASTS, strict=False) if (a in kept) != (b in kept)
    )
    return 20 + sum(COSTS[node] for node in kept) + casts


def guide():
    terms = Terms(dict(COSTS))
    for a, b, cost in zip(NODES, NODES[1:], CASTS, strict=False):
        terms.values.append((a, (b,), cost))
    return Guide([(n,) for n in NODES], lambda: terms)


def test_of_larger_plans_the_cheapest_keeps_nothing_that_saves_nothing():
    tried = names(1, 2, 3, 5)
    found = cheaper_plans(names(1), [tried, names(1, 2)], guide(), price, frozenset(NODES))
    assert found == ([tried], [names(1, 2, 3)])
    assert price(names(1, 2, 3)) < price(tried) < price(names(1))


def test_none_is_sought_where_none_that_passed_costs_less():
    given = [names(1, 2)], guide(), price, frozenset(NODES)
    assert cheaper_plans(names(1), *given) == ([], [])
    other = [frozenset[NodeName]()], guide(), price, given[3]  # such as everything low
    assert cheaper_plans(names(1), *other) == (other[0], [])
    alone = cheaper_plans(names(1), [names(1, 2, 3)], None, price, given[3])
    assert alone == ([names(1, 2, 3)], [])


def test_more_nodes_have_to_save_more():
    """Beside a plan that is nearly as cheap, the cheapest is not worth another node."""
    tried, ends = names(1, 2), (1, len(NODES))
    alike = lambda kept: 30.0 if len(kept) in ends else 25 - 0.1 * len(kept)  # noqa: E731
    assert cheaper_plans(names(1), [tried], guide(), alike, frozenset(NODES)) == ([tried], [])
    far = lambda kept: alike(kept) - 5 * (kept == names(1, 2, 3))  # noqa: E731
    assert cheaper_plans(names(1), [tried], guide(), far, frozenset(NODES))[1] == [names(1, 2, 3)]


def test_a_plan_of_other_nodes_hides_no_larger_one():
    """It passed at least on the worst samples, and may fail on others."""
    other, large = names(5), names(1, 2, 3, 4)
    costs = {names(1): 30.0, other: 24.0, large: 25.0, names(1, 2, 3): 24.9}
    found = cheaper_plans(
        names(1), [other, large], guide(), lambda kept: costs.get(kept, 40.0), frozenset(NODES)
    )
    assert found == ([other, large], [names(1, 2, 3)])
