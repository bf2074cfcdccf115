from halfwise.fixing.engines.attempts import USUAL, WITH_TF32, Terms
from halfwise.graph.roles import roles_of
from tests.unit.casing import names
from tests.unit.fixing.engines.test_moves import REGION, moving


def test_what_is_constrained():
    net = moving()
    roles = roles_of(net)
    fp32 = names("s0", "t0", "s1", "t1", "s2", "m1")
    assert USUAL.constrained(net, roles, fp32) == ("s0", "t0", "s1", "t1", "s2", "m1")
    assert Terms(computing=REGION).constrained(net, roles, fp32) == ("s0", "s1", "s2", "m1")
    # s0 reads an input of the graph, so nothing low is next to it.
    assert Terms(border=REGION).constrained(net, roles, fp32) == ("s2", "m1")
    assert Terms(border=names("s2")).constrained(net, roles, fp32) == (
        *("s0", "t0", "s1", "t1", "s2", "m1"),
    )


def test_terms_with_fewer_constraints_are_loose():
    assert not USUAL.loose
    assert not WITH_TF32.loose
    assert Terms(border=REGION).loose
    assert Terms(computing=REGION).loose
