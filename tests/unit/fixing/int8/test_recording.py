import pytest

from halfwise.fixing.int8.recording import int8_plan_of
from halfwise.fixing.recording import plan_of
from halfwise.records import NodeName
from halfwise.reporting.remarks import explain_left_out
from tests.unit.casing import names
from tests.unit.fixing.int8.test_planner import FOUND, INT8, MADE, hold, residual_planner


def test_a_plan_tells_what_has_int8_and_what_stays_as_below():

    below = plan_of(MADE, FOUND, frozenset(), 2, [])
    found = INT8.find(frozenset())
    rewritten, placed = INT8.rewrite(found.kept)
    plan = int8_plan_of(below, INT8, found, placed, rewritten.casts)
    assert frozenset(plan.int8) == INT8.choices - names("product2")
    assert [kept.node for kept in plan.left_out] == ["product2"]
    assert (plan.keep, plan.low, plan.ranges) == (below.keep, "fp16", "minmax")
    assert plan.casts == rewritten.casts > 0


@pytest.mark.parametrize(("at", "beside"), [("sum", None), ("second", "second")])
def test_of_a_sum_it_tells_whether_the_convolution_is_the_reason(at, beside):
    made = residual_planner(at)
    found = made.find(frozenset())
    low = plan_of(MADE, FOUND, frozenset(), 2, [])
    plan = int8_plan_of(low, made, found, frozenset(), 0)
    assert set(plan.int8) == made.choices - found.kept
    told = {kept.node: kept for kept in explain_left_out(plan.left_out, None)}[NodeName("sum")]
    assert told.because is not None
    assert told.because.beside == beside
    assert ("convolution second is left out" in told.why) is (at == "second")


def test_a_sum_beside_a_convolution_that_is_held_in_fp32_says_so():
    made = residual_planner("")
    hold(made, "second")
    found = made.find(frozenset())
    low = plan_of(MADE, FOUND, frozenset(), 2, [])
    (told,) = int8_plan_of(low, made, found, frozenset(), 0).left_out
    assert told.because is not None
    assert (told.node, told.because.beside) == ("sum", "second")
