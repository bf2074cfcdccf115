import pytest

from halfwise.case import Settings
from halfwise.emulation.budget import Budget
from halfwise.fixing.duration import expected


def told(run, *, certain=0, budget=1500.0, time_budget=1800.0, samples=4):
    settings = Settings(budget=budget, time_budget=time_budget)
    whole = Budget(time_budget, work=budget * samples)
    return expected(whole, settings, run * samples, samples, certain)


def test_the_longest_time_is_that_of_the_work():
    assert told(0.1) == (
        "repairs and search: quick if FP16 is fine as it is, at most about 200 s, besides loading "
        "models (0.1 s a run)"
    )


def test_where_seconds_end_it_first_both_are_told():
    assert told(10.0).endswith(
        "at most what the time budget of 1800 s leaves, while all of --budget "
        "inferences=1500 may take 20000 s, besides loading models (10 s a run)"
    )


@pytest.mark.parametrize(
    ("run", "alone"),
    [(0.001, "less than 1 s"), (0.5, "about 31 s"), (1e4, "about 1800 s")],
)
def test_what_guards_let_expect(run, alone):
    assert f"the search alone {alone} if" in told(run, certain=10)
