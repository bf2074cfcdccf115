from math import inf

from halfwise.records import replace
from halfwise.reporting.plan import curve_table, overflowing
from halfwise.reporting.view import report
from tests.unit.records.curves import curve, point
from tests.unit.reporting.runs import guard, run, verdict

LOW = point("", 1.0, 9.0)
ONE = point("0", 1.2, 3.04)
PLAN = point("0-1", 2.0, 0.5)
MADE = curve(LOW, ONE, PLAN, plan=2)


def test_the_front_is_a_small_table():
    table = curve_table(run(curve=MADE))
    assert table is not None
    assert [column.title for column in table.columns] == [
        *("kept", "cost", "error / allowed", ""),
    ]
    assert table.rows == (
        ("0", "1 ×", "9", ""),
        ("1", "1.2 ×", "3.04", ""),
        ("2", "2 ×", "0.5", "this plan"),
    )


def test_plans_with_int8_are_told_by_what_they_leave_out():
    int8 = curve(point("", 0.6, 3.0), point("1", 0.8, 0.5), plan=1)
    table = curve_table(run(curve=replace(int8, rung="int8")))
    assert table is not None
    assert table.columns[0].title == "not INT8"
    assert [(row[0], row[-1]) for row in table.rows] == [("0", ""), ("1", "this plan")]


def test_a_plan_that_passes_although_it_overflows_within_the_headroom_is_told():
    low = point("", 1.0, inf)
    near = (guard("/norm", "headroom"),)
    made = run(curve=curve(low, PLAN, plan=0), guards=near)
    assert overflowing(made)
    assert overflowing(made) in report(made).caution
    assert overflowing(run(curve=curve(low, PLAN, plan=1), guards=near)) == ""
    assert overflowing(replace(made, verdict=verdict(passed=False))) == ""
    assert overflowing(run()) == ""


def test_without_plans_there_is_no_table():
    assert curve_table(run()) is None
