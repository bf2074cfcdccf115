import pytest

from halfwise.records import Worth, replace
from halfwise.reporting.remarks import cost_line, nothing_gained
from tests.unit.reporting.runs import plan, run, verdict

NOTHING = Worth(cost=2.9, fp32=3.0)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (run(), False),
        (run(worth=Worth(cost=1.2, fp32=3.0)), False),
        (run(worth=NOTHING), True),
        # What fails has another reason.
        (run(worth=NOTHING, verdict=verdict(passed=False)), False),
    ],
)
def test_a_gain_is_no_remark_and_a_failure_has_another_reason(made, told):
    assert bool(nothing_gained(made)) == told


def test_the_cost_of_int8_is_uncertain_until_it_is_measured():
    timed = replace(NOTHING, measured=1.04)
    for worth, int8, doubt in (
        (NOTHING, True, True),
        (NOTHING, False, False),
        (timed, True, False),
    ):
        made = plan((), int8=("a",) if int8 else ())
        assert ("Uncertain" in cost_line(run(worth=worth, plan=made))) == doubt
