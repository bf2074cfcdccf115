import time

import pytest

from halfwise.emulation.bounded import call
from halfwise.emulation.budget import TimeBudget


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def took(clock, seconds):
    clock.now += seconds


def ends(budget, clock, seconds):
    """Return whether a block that takes so long is ended."""

    def work():
        took(clock, seconds)
        budget.check()

    return budget.within("search", work, "ended") == "ended"


def test_only_what_is_bounded_or_counted_is_counted(clock):
    budget = TimeBudget(10, clock)
    took(clock, 100)
    with budget.bounding():
        took(clock, 4)
    took(clock, 100)
    with budget.counted():
        took(clock, 5)
    assert not budget.is_spent
    assert ends(budget, clock, 1)
    assert budget.is_spent


def test_what_must_be_done_is_not_ended(clock):
    budget = TimeBudget(0, clock)
    with budget.counted():
        took(clock, 5)
        budget.check()
        assert call(lambda: 3, lambda: None, "It") == 3
    budget.check()


@pytest.mark.parametrize("seconds", [0, -1])
def test_without_time_nothing_begins(clock, seconds):
    budget = TimeBudget(seconds, clock)
    assert budget.within("growth", lambda: pytest.fail("it ran"), 7) == 7
    assert budget.within("growth", lambda: pytest.fail("it ran"), 8) == 8
    assert budget.cut == ["growth"]


def test_what_is_left_of_a_part_is_for_the_next(clock):
    budget = TimeBudget(10, clock)

    def work():
        took(clock, 6)
        budget.check()

    assert budget.within("observe", work, "cut", 0.5) == "cut"
    with budget.bounding():
        took(clock, 3.5)
        budget.check()
    assert ends(budget, clock, 0.5)
    assert budget.cut == ["observe", "search"]


def test_within_a_block_the_outer_one_ends(clock):
    budget = TimeBudget(10, clock)

    def inner():
        took(clock, 20)
        budget.check()

    assert budget.within("observe", lambda: budget.within("growth", inner, 1, 0.5), 2) == 2
    assert budget.cut == ["observe"]


def test_time_that_is_counted_around_a_block_is_counted_once(clock):
    budget = TimeBudget(10, clock)
    with budget.counted():
        took(clock, 2)
        with budget.bounding():
            took(clock, 3)
    with budget.bounding():
        took(clock, 4.5)
        budget.check()


def test_a_running_evaluation_is_ended_and_the_time_stays_spent(clock):
    budget = TimeBudget(0.05, clock)
    stopped: list[int] = []

    def evaluate():
        while not stopped:
            time.sleep(0.001)

    assert budget.within("search", lambda: call(evaluate, lambda: stopped.append(1), "It"), 5) == 5
    assert stopped
    assert budget.is_spent


def test_errors_go_through_and_are_counted(clock):
    budget = TimeBudget(10, clock)

    def fails():
        took(clock, 20)
        raise KeyError

    with pytest.raises(KeyError):
        budget.within("search", fails, None)
    assert budget.is_spent
    assert not budget.cut


def test_without_seconds_there_is_no_end(clock):
    budget = TimeBudget(float("inf"), clock)
    took(clock, 1e7)
    assert budget.within("observe", lambda: 3, None, 0.5) == 3
