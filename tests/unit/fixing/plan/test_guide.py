"""What the guide proposes."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.guide import (
    COARSE_GROUPS,
    Guide,
    Sites,
    places,
    sites_of,
    stretches,
    suspicions,
)
from halfwise.graph.cut import Cut, Terms
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import Role, roles_of
from halfwise.records import NodeName
from tests import models

NODES = [NodeName(f"n{i}") for i in range(6)]
SITES = [(n,) for n in NODES]


def guide(costs):
    return Guide(SITES, lambda: Terms(dict(zip(NODES, map(float, costs), strict=True))))


@given(
    st.lists(st.integers(1, 50), min_size=6, max_size=6),
    st.lists(st.floats(0.01, 5), min_size=6, max_size=6),
)
def test_plans_keep_more_and_more_of_what_adds_much_for_its_cost(costs, errors):
    made = guide(costs)
    made.fit({frozenset((n,)): e for n, e in zip(NODES, errors, strict=True)})
    always = frozenset(NODES[:1])
    plans = made.plans(frozenset(NODES), always)
    assert all(a < b for a, b in pairwise(plans))
    assert (plans[0], plans[-1]) == (always, frozenset(NODES))
    worth = {n: e * e / c for n, e, c in zip(NODES, errors, costs, strict=True)}
    for plan in plans[1:]:
        kept = [worth[n] for n in plan - always]
        left = [worth[n] for n in NODES if n not in plan]
        assert not left or min(kept) >= max(left) * 0.9


def test_merit_is_error_added_for_cost_saved():
    made = guide([1] * 6)
    made.fit({frozenset((n,)): 0.5 for n in NODES})
    low = frozenset(NODES[:2])
    assert made.merit(low, NODES[2], 0.5) == pytest.approx(0.5, rel=0.01)
    assert made.merit(low, NODES[2], 0.0) == math.inf


CUT_NODES = tuple(NodeName(f"n{i}") for i in range(6))


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
    ends = st.one_of(st.sampled_from(CUT_NODES), st.booleans())
    values = st.tuples(ends, st.lists(ends, min_size=1, max_size=3).map(tuple), costs)
    terms = Terms(
        {name: draw(costs) for name in CUT_NODES}, draw(st.lists(values, min_size=1, max_size=8))
    )
    pairs = st.lists(st.sampled_from(CUT_NODES), min_size=1, max_size=2, unique=True).map(tuple)
    sites = draw(st.lists(pairs, min_size=1, max_size=8))
    added = [draw(st.integers(0, 9)) for _ in sites]
    always = draw(st.frozensets(st.sampled_from(CUT_NODES), max_size=2))
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
        frozenset(n for n, bit in zip(CUT_NODES, bits, strict=True) if bit)
        for bits in product((0, 1), repeat=len(CUT_NODES))
    )
    best = min(total(plan) for plan in subsets if always <= plan)
    assert total(kept) == pytest.approx(best, rel=1e-4, abs=1e-4 * whole)


def test_a_stretch_is_kept_whole_where_its_casts_would_cost_more():
    """The node in the middle adds nothing to the error."""
    first, middle, last = CUT_NODES[:3]
    terms = Terms(
        {first: 1.0, middle: 1.0, last: 1.0},
        [(first, (middle,), 5.0), (middle, (last,), 5.0)],
    )
    cut = Cut(terms, [(first,), (last,)])
    assert cut.kept(np.array([1.0, 1.0]), 100.0) == {first, middle, last}
    assert cut.kept(np.array([1.0, 1.0]), 0.01) == frozenset()


def names(*indices):
    return frozenset(NodeName(f"n{i}") for i in indices)


def chain(count):
    """Input, nodes one after another, output."""
    nodes = [NodeName(f"n{i}") for i in range(count)]
    return [(nodes[0],), *pairwise(nodes), (nodes[-1],)]


def error(sites, added, low):
    return math.sqrt(sum(a for site, a in zip(sites, added, strict=True) if low & set(site)))


@given(st.lists(st.floats(0.01, 1), min_size=7, max_size=7), st.sets(st.integers(0, 5), min_size=2))
def test_what_single_nodes_contribute_predicts_sets_of_them(added, low):
    """Neighbours share the rounding between them, which sums of contributions would count twice."""
    sites = chain(6)
    fitted = Sites(sites)
    fitted.fit({names(i): error(sites, added, names(i)) for i in range(6)})
    true = error(sites, added, names(*low))
    assert fitted.predicted(names(*low)) == pytest.approx(true, rel=0.45)
    for i in range(6):
        assert fitted.predicted(names(i)) == pytest.approx(error(sites, added, names(i)), rel=0.05)


def test_infinite_errors_do_not_hide_the_others():
    fitted = Sites(chain(3))
    fitted.fit({names(0): math.inf, names(1): 0.5, names(2): math.nan})
    assert fitted.predicted(names(1)) == pytest.approx(0.5, rel=0.05)
    assert fitted.predicted(names(0)) > 1e3
    assert fitted.predicted(frozenset()) == 0


def test_the_sites_of_a_network_join_its_compute_nodes():
    network = network_from_proto(models.layer_norm().proto)
    roles = roles_of(network)
    found = sites_of(network, roles)
    compute = {n for n, role in roles.items() if role.role is Role.COMPUTE}
    assert {n for site in found for n in site} == compute
    assert any(len(site) == 2 for site in found)
    assert len(set(found)) == len(found)


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
