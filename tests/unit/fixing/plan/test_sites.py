"""What sites of rounding add to errors."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.plan.sites import Sites, explained, sites_of
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import Role, roles_of
from halfwise.records import NodeName
from tests import models


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


def test_r2_leaves_out_a_common_factor():
    pairs = [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, 16.0)]
    assert explained(pairs) == pytest.approx(1)
    assert explained(pairs[:3]) is None
    assert explained([*pairs, (1.0, math.inf), (0.0, 1.0)]) == pytest.approx(1)
    assert explained([(1.0, 3.0)] * 5) is None
    wrong = explained([(8.0, 1.0), (1.0, 2.0), (4.0, 4.0), (1.0, 8.0)])
    assert wrong is not None
    assert wrong < 0.8
