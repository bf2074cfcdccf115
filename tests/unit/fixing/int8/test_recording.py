from halfwise.fixing.int8.recording import int8_plan_of
from halfwise.fixing.recording import plan_of
from tests.unit.casing import names
from tests.unit.fixing.int8.test_planner import FOUND, INT8, MADE


def test_a_plan_tells_what_has_int8_and_what_stays_as_below():

    below = plan_of(MADE, FOUND, frozenset(), 2, [])
    found = INT8.find(frozenset())
    rewritten, placed = INT8.rewrite(found.kept)
    plan = int8_plan_of(below, INT8, found, placed, rewritten.casts)
    assert frozenset(plan.int8) == INT8.choices - names("product2")
    assert [kept.node for kept in plan.left_out] == ["product2"]
    assert (plan.keep, plan.low, plan.ranges) == (below.keep, "fp16", "minmax")
    assert plan.casts == rewritten.casts > 0
