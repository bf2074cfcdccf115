"""Words on what the samples can show."""

import pytest

from halfwise.records import Criterion, FailureBound
from halfwise.reporting.bound import bound_part
from halfwise.reporting.view import report
from tests.unit.reporting.runs import run, verdict


def line(bound=None, **more):
    shown = bound_part(run(verdict=verdict(failure_bound=bound, **more)))
    return None if shown is None else shown.lines[0]


def of(judged, failing, upper):
    return FailureBound(judged=judged, failing=failing, upper=upper, confidence=0.95)


@pytest.mark.parametrize(
    ("bound", "begins", "says"),
    [
        (of(10, 0, 0.2589), "None of 10 samples is out", "with 95 % confidence at most 26 % "),
        (of(12, 1, 0.3387), "1 of 12 samples is out", "at most 34 % "),
        (of(12, 2, 0.4382), "2 of 12 samples are out", "at most 44 % "),
        (of(59, 0, 0.04952), "None of 59", "at most 5.0 % "),
        (of(1000, 0, 0.002991), "None of 1000", "at most 0.30 % "),
        (of(1, 1, 1), "1 of 1 sample is", "at most 100 % "),
    ],
)
def test_bounds(bound, begins, says):
    assert line(bound).startswith(begins)
    assert says in line(bound)
    assert "drawn from them independently" in line(bound)


def test_no_sample_no_bound():
    assert line() is None


def test_a_pooled_threshold_is_held_by_each_sample_by_itself():
    judged = run(criterion=Criterion(snr_db=40), verdict=verdict(failure_bound=of(10, 0, 0.26)))
    shown = bound_part(judged)
    assert shown is not None
    assert "out of tolerance by itself" in shown.lines[0]


def test_samples_that_joined_the_search_are_told():
    told = line(of(20, 0, 0.5).model_copy(update={"joined": 10}))
    assert told.startswith("None of 20 samples is out of tolerance; with the 10 that joined the ")
    assert "as failing too, with 95 % confidence at most 50 % of all inputs are" in told


def test_the_first_line_says_how_little_few_samples_show():
    def title(bound, **more):
        return report(run(verdict=verdict(failure_bound=bound, **more))).title

    told = title(of(10, 0, 0.2589))
    assert told.endswith(" held-out samples, at most 26 % of inputs fail (95 %)")
    assert "at most" not in title(of(29, 0, 0.0982))
    assert "at most" not in title(of(10, 2, 0.5), passed=False)
    assert "at most" not in title(None)
