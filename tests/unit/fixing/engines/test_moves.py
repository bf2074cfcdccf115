"""What is tried in place of a plan that was refused, and in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.attempts import Candidate, Terms
from halfwise.fixing.engines.moves import Allowed, Moves, Proposal
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, roles_of
from halfwise.records import Move
from halfwise.tensorrt.layers import Region
from tests import graph_rules
from tests.graphs import graphs, plans
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.engine_runs import build
from tests.unit.tensorrt.test_layers import chain_regions as chain

NOTHING = names()


def refused(keep, terms=Terms()):  # noqa: B008 - frozen
    unbuilt = build(2, "").model_copy(update={"engine": None, "status": "failed"})
    return Candidate(keep, "", unbuilt, terms=terms)


def moves(net: Network, keep, nodes=None, *, kind="no-kernel", terms=Terms(), **allowed):  # noqa: B008
    roles = roles_of(net)
    region = Region(("a", "b"), nodes, shown=True) if nodes else Region((), frozenset(roles))
    return list(
        Moves(net, roles, refused(keep, terms), region, kind, Allowed(**allowed)).proposals()
    )


def kinds(found: list[Proposal]) -> list[str]:
    told = [p.step for p in found if isinstance(p.step, Move)]
    assert len(told) == len(found)
    return [f"{m.kind} {m.level}" if m.kind == "level" else m.kind for m in told]


def moving() -> Network:
    """Nodes s0 to s3 that compute, each with a Transpose behind it, then eight that compute."""
    s = Sketch()
    last = s.input("x", [4, 4])
    for i in range(4):
        last = s.op("Transpose", s.op("Exp", last, name=f"s{i}"), name=f"t{i}")
    for i in range(8):
        last = s.op("MatMul", last, f32([[1.0] * 4] * 4), name=f"m{i}")
    return s.network(last)


REGION = names("s0", "t0", "s1", "t1", "s2", "t2", "s3", "t3")


def test_fewer_constraints_come_first_then_the_whole_region_then_other_ways_to_build():
    keep = names("s1", "s2", "m7")
    found = moves(moving(), keep, REGION)
    assert kinds(found) == [
        *("computing", "border", "region", "level 5", "computing", "border"),
        *("island", "level 1", "none"),
    ]
    plans = {kind: p.keep for kind, p in zip(kinds(found), found, strict=True)}
    assert plans["computing"] == keep | names("s0", "s3")
    assert plans["none"] == names("m7")
    steps = [p.step for p in found if isinstance(p.step, Move)]
    assert {(m.refused, m.ends) for m in steps} == {(2, ("a", "b"))}


def test_terms_of_the_moves():
    found = moves(moving(), names("s1", "s2", "m1"), REGION)
    by_kind: dict[str, Terms] = {}
    for p in found:
        by_kind.setdefault(kinds([p])[0], p.terms)
    assert by_kind["computing"] == Terms(computing=REGION)
    assert by_kind["border"] == Terms(border=REGION)
    assert by_kind["level 5"] == Terms(level=5)
    assert by_kind["region"] == Terms()


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        ("no-kernel", ["level 5", "level 1"]),
        ("timeout", ["level 1", "level 5"]),
        ("crash", ["level 1", "level 5"]),
    ],
)
def test_what_takes_too_long_is_tried_at_a_lower_level_first(kind, levels):
    found = kinds(moves(moving(), names("s1"), REGION, kind=kind))
    assert [k for k in found if k.startswith("level")] == levels


def test_what_may_not_be_changed_is_left():
    found = kinds(moves(moving(), names("s1", "m1"), None, constraints=False, level=False))
    assert not {"computing", "border", "level 5", "level 1"} & set(found)
    assert "tf32" in found
    assert "tf32" not in kinds(moves(moving(), names("s1", "m1"), None, tf32=False))
    # TF32 has no effect on what is no product.
    assert "tf32" not in kinds(moves(moving(), names("s1", "m1"), REGION))
    higher = moves(moving(), names("s1"), REGION, terms=Terms(level=5))
    assert not any(k.startswith("level") for k in kinds(higher))
    assert all(p.terms.level == 5 for p in higher)


def test_a_region_with_most_of_the_model_is_kept_after_all_that_keeps_less():
    keep = names("exp1", "exp2", "exp6")
    found = moves(chain(), keep, frozenset(roles_of(chain())))
    assert kinds(found)[-2:] == ["region", "none"]
    assert found[-1].keep == NOTHING
    islands = [p.keep for p in found if kinds([p]) == ["island"]]
    assert islands[0] == keep | names("mul1", "mul2", "mul6")
    assert islands == sorted(islands, key=len)


def test_where_nothing_of_the_region_is_kept_it_is_kept_whole():
    found = moves(moving(), NOTHING, REGION)
    assert kinds(found)[0] == "region"
    assert found[0].keep == names("s0", "s1", "s2", "s3")
    assert "none" not in kinds(found)


def test_what_is_kept_beside_a_region_that_no_engine_shows_makes_the_model_the_region():
    net, keep = moving(), names("s0", "s1", "s2")
    roles = roles_of(net)
    beside = Region(("a", "b"), names("m1", "m2"))
    found = list(Moves(net, roles, refused(keep), beside, "no-kernel", Allowed()).proposals())
    whole = Terms(computing=frozenset(roles))
    assert next(p.terms for p in found if kinds([p]) == ["computing"]) == whole


@given(graphs(opsets=graph_rules.EVERY_OPSET, rules=graph_rules.rules_at), st.data())
def test_what_is_tried_is_other_plans_each_once(drawn, data):
    net = network_from_proto(drawn.proto)
    roles = roles_of(net)
    computing = frozenset(n for n, role in roles.items() if role.role is Role.COMPUTE)
    kept = data.draw(plans(net)) & computing
    order = [node_name(n) for n in net.nodes()]
    nodes = frozenset(data.draw(st.sets(st.sampled_from(order), min_size=1)))
    found = moves(net, kept, nodes)
    assert found == moves(net, kept, nodes)
    made = [p.plan for p in found]
    assert len(set(made)) == len(made)
    assert (kept, Terms()) not in made
    for keep, terms in made:
        assert keep <= computing
        assert keep != kept or terms != Terms()
        # What is kept beside the region stays so.
        assert kept - nodes <= keep
        full = roles.computing & keep
        assert set(terms.constrained(net, roles, full)) <= set(
            Terms().constrained(net, roles, full)
        )
