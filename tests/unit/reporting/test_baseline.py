import pytest

from halfwise.records import Baseline, Change, Failure, replace
from halfwise.reporting.parts import Lines
from halfwise.reporting.view import baseline_line, screen
from tests.unit.reporting.runs import run, verdict

WORSE = Change(kind="rel-max", of="y", before=0.001, now=0.0012, limit=0.00105, passed=False)
FINE = Change(kind="cost", before=1.2, now=1.1, limit=1.26, passed=True)
ELSEWHERE = Change(kind="time", of="A100, TensorRT 10.0", before=1, now=None, limit=1, passed=True)


def test_a_screen_tells_that_nothing_is_worse():
    found = Baseline(run="before", date="d", same_samples=True, changes=(FINE, ELSEWHERE))
    told = baseline_line(run(compared=found))
    parts = screen(run(compared=found)).parts
    assert any(told in part.lines for part in parts if isinstance(part, Lines))
    worse = replace(found, changes=(FINE, WORSE))
    assert baseline_line(run()) == ""
    assert "1 is worse" in baseline_line(run(compared=worse))


@pytest.mark.parametrize(
    ("kinds", "alone"), [([], False), (["worse"], True), (["worse", "tolerance"], False)]
)
def test_a_title_names_it_where_all_else_passes(kinds, alone):
    failures = tuple(Failure(kind=kind, text="x") for kind in kinds)
    title = screen(run(verdict=verdict(passed=not kinds, failures=failures))).title
    assert ("worse than the baseline" in title) == alone
