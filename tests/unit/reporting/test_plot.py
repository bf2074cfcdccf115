import re
from math import inf

from halfwise.page.sections import plot
from halfwise.records import EngineRound
from tests.unit.records.curves import curve, point
from tests.unit.reporting.engine_runs import KEEP, engines
from tests.unit.reporting.runs import run

THREE = curve(point("", 1.0, 9.0), point("0", 1.2, 3.0), point("0-1", 2.0, 0.5), plan=2)
CIRCLE = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="5" fill="(#\w+)"/>')


def places(picture):
    return [(float(x), float(y), colour) for x, y, colour in CIRCLE.findall(str(picture))]


def test_plans_are_placed_by_cost_and_by_the_logarithm_of_their_error():
    first, second, own = places(plot(run(curve=THREE)))
    assert first[0] < second[0] < own[0]
    assert first[1] < second[1] < own[1]  # Down the page, errors fall.
    assert first[2] == second[2] != own[2]


def test_what_is_not_finite_lies_above_and_what_is_exact_below():
    ends = point("", 1.0, inf), point("0", 1.2, 0.5), point("0-1", 2.0, 0.0)
    first, middle, last = places(plot(run(curve=curve(*ends, plan=1))))
    assert first[1] < middle[1] < last[1]


def test_a_single_plan_has_no_picture():
    assert plot(run(curve=curve(point("0", 1.2, 0.5), plan=0))) is None
    assert plot(run()) is None


def test_engines_are_placed_by_their_time():
    rounds = tuple(
        EngineRound(
            step="a plan", build=i, keep=keep, measured=error, passed=error < 1, median_ms=ms
        )
        for i, (keep, error, ms) in enumerate([((), 40.0, 1.0), (KEEP, 0.5, 1.5)], 1)
    )
    made = engines(rounds=rounds, keep=KEEP)
    picture = plot(run(curve=THREE, engines=made))
    assert len(places(picture)) == 2
    assert "time in ms" in str(picture)
