from math import inf

from halfwise.records import replace
from halfwise.reporting.plan import curve_table, overflowing
from halfwise.reporting.view import report
from tests.unit.records.curves import curve, point, score
from tests.unit.reporting.runs import guard, run, verdict

OWN = (score(passed=True, value=1.0),)
LOW = point("", 1.0, 9.0, scores=(score(passed=False, value=0.9),))
ONE = point("0", 1.2, 3.04, scores=(score(passed=True, value=0.995),))
PLAN = point("0-1", 2.0, 0.5, is_bound=True, scores=(score(passed=True, value=1.0),))
MADE = curve(LOW, ONE, PLAN, plan=2, reference=OWN)


def test_the_front_is_a_small_table():
    table = curve_table(run(curve=MADE))
    assert table is not None
    assert [column.title for column in table.columns] == [
        *("kept", "cost", "error / allowed", "top1", ""),
    ]
    assert table.rows == (
        ("0", "1 ×", "9", "0.9 ✗", ""),
        ("1", "1.2 ×", "3.04", "0.995", ""),
        ("2", "2 ×", "≥ 0.5", "1", "this plan"),
    )


def test_of_several_outputs_the_worst_score_is_shown():
    two = (score(passed=False, value=0.7), score(passed=True, value=1.0))
    table = curve_table(run(curve=curve(point("", 1.0, 2.0, scores=two), reference=(*OWN, *OWN))))
    assert table is not None
    assert table.rows[0][3] == "0.7 ✗"


def test_plans_with_int8_are_told_by_what_they_leave_out():
    int8 = curve(point("", 0.6, 3.0), point("1", 0.8, 0.5, scores=OWN), plan=1, reference=OWN)
    table = curve_table(run(curve=replace(int8, rung="int8")))
    assert table is not None
    assert table.columns[0].title == "not INT8"
    assert [(row[0], row[-1]) for row in table.rows] == [("0", ""), ("1", "this plan")]


def test_a_score_of_nothing_is_no_number():
    empty, wrong = (
        replace(score(passed=p, value=v), evidence=0, unit="tokens")
        for p, v in ((True, 1.0), (False, 0.9))
    )
    two = (point("", 1.0, 2.0, scores=(empty,)), point("0", 1.1, 1.0, scores=(wrong,)))
    table = curve_table(run(curve=curve(*two, reference=OWN)))
    assert table is not None
    assert [row[3] for row in table.rows] == ["–", "0.9 ✗"]


def test_a_plan_that_passes_although_it_overflows_within_the_headroom_is_told():
    low = point("", 1.0, inf, nonfinite=True, scores=(score(passed=False),))
    near = (guard("/norm", "headroom"),)
    made = run(curve=curve(low, PLAN, plan=0, reference=OWN), guards=near)
    assert overflowing(made)
    assert overflowing(made) in report(made).caution
    assert overflowing(run(curve=curve(low, PLAN, plan=1), guards=near)) == ""
    assert overflowing(replace(made, verdict=verdict(passed=False))) == ""
    assert overflowing(run()) == ""


def test_without_plans_there_is_no_table():
    assert curve_table(run()) is None
    assert curve_table(run(curve=curve(point("", 1.0, 0.5), front=()))) is None
