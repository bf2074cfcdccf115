"""Minimum cuts, against all plans of small worlds."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.cut import Cut, Terms
from halfwise.records import NodeName

NODES = tuple(NodeName(f"n{i}") for i in range(6))


def cost_of(terms, kept):
    """What a plan costs, by the definition of the terms."""

    def is_fp32(end):
        return end if isinstance(end, bool) else end in kept

    total = sum(cost for name, cost in terms.nodes.items() if name in kept)
    for producer, readers, cost in terms.values:
        differ = {is_fp32(r) for r in readers} - {is_fp32(producer)}
        total += cost * len(differ)
    return total


@st.composite
def worlds(draw):
    costs = st.integers(0, 20).map(float)
    ends = st.one_of(st.sampled_from(NODES), st.booleans())
    values = st.tuples(ends, st.lists(ends, min_size=1, max_size=3).map(tuple), costs)
    terms = Terms(
        {name: draw(costs) for name in NODES}, draw(st.lists(values, min_size=1, max_size=8))
    )
    pairs = st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True).map(tuple)
    sites = draw(st.lists(pairs, min_size=1, max_size=8))
    added = [draw(st.integers(0, 9)) for _ in sites]
    always = draw(st.frozensets(st.sampled_from(NODES), max_size=2))
    return terms, sites, np.array(added, float), always


@given(worlds(), st.sampled_from([0.01, 0.1, 0.3, 1.0, 3.0, 100.0]))
def test_no_plan_costs_less_with_its_error(world, weight):
    terms, sites, added, always = world
    whole = sum(terms.nodes.values()) + 2 * sum(cost for *_, cost in terms.values)
    unit = weight * (whole or 1.0) / (added.sum() or 1.0)

    def total(kept):
        error = sum(a for site, a in zip(sites, added, strict=True) if not kept.issuperset(site))
        return cost_of(terms, kept) + unit * error

    kept = Cut(terms, sites).kept(added, weight, always)
    assert always <= kept
    subsets = (
        frozenset(n for n, bit in zip(NODES, bits, strict=True) if bit)
        for bits in product((0, 1), repeat=len(NODES))
    )
    best = min(total(plan) for plan in subsets if always <= plan)
    assert total(kept) == pytest.approx(best, rel=1e-4, abs=1e-4 * whole)


def test_a_stretch_is_kept_whole_where_its_casts_would_cost_more():
    """The node in the middle adds nothing to the error."""
    first, middle, last = NODES[:3]
    terms = Terms(
        {first: 1.0, middle: 1.0, last: 1.0},
        [(first, (middle,), 5.0), (middle, (last,), 5.0)],
    )
    cut = Cut(terms, [(first,), (last,)])
    assert cut.kept(np.array([1.0, 1.0]), 100.0) == {first, middle, last}
    assert cut.kept(np.array([1.0, 1.0]), 0.01) == frozenset()
