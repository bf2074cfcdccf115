import pytest

from halfwise.reporting.ending import allow_more, spent
from tests.unit.reporting.runs import search


@pytest.mark.parametrize(
    ("ended_by", "told", "more"),
    [
        (("work",), "the budget of 1500 inferences over the data was spent", "--budget N"),
        (
            ("work", "seconds"),
            "the time budget of 300 s was spent, so another run may give another plan",
            "--time-budget SECONDS",
        ),
        (("seconds", "interrupt"), "the run was interrupted", "let the interrupted search finish"),
    ],
)
def test_what_ended_a_search_and_what_lets_it_go_on(ended_by, told, more):
    ended = search(exhausted=True, budget=1500.0, ended_by=ended_by)
    assert spent(ended) == told
    assert more in allow_more(ended)


def test_no_time_is_no_matter_of_the_clock():
    ended = search(exhausted=True, budget=1500.0, ended_by=("seconds",), seconds_budget=0.0)
    assert spent(ended) == "the time budget of 0 s was spent"


def test_records_of_before_know_seconds_alone():
    assert spent(search(exhausted=True)) == "the time budget of 300 s was spent"
    assert allow_more(search(exhausted=True)).endswith("more time (--time-budget SECONDS)")
