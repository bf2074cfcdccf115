import time
from contextlib import suppress

import pytest

from halfwise.emulation.budget import Budget, OutOfTime, call
from halfwise.progress import offered


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


def test_only_what_is_bounded_is_counted(clock):
    budget = Budget(10, clock)
    took(clock, 100)
    with budget.bounding():
        took(clock, 9)
    took(clock, 100)
    assert not budget.is_spent
    assert ends(budget, clock, 1)
    assert budget.is_spent


def test_what_must_be_done_is_not_ended(clock):
    budget = Budget(0, clock)
    assert call(lambda: 3, lambda: None, "It") == 3
    budget.check()


@pytest.mark.parametrize("seconds", [0, -1])
def test_without_time_nothing_begins(clock, seconds):
    budget = Budget(seconds, clock)
    assert budget.within("growth", lambda: pytest.fail("it ran"), 7) == 7
    assert budget.within("growth", lambda: pytest.fail("it ran"), 8) == 8
    assert budget.cut == ["growth"]


def test_what_is_left_of_a_part_is_for_the_next(clock):
    budget = Budget(10, clock)

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
    budget = Budget(10, clock)

    def inner():
        took(clock, 20)
        budget.check()

    assert budget.within("observe", lambda: budget.within("growth", inner, 1, 0.5), 2) == 2
    assert budget.cut == ["observe"]


def test_a_running_evaluation_is_ended_and_the_time_stays_spent(clock):
    budget = Budget(0.05, clock)
    stopped: list[int] = []

    def evaluate():
        while not stopped:
            time.sleep(0.001)

    assert budget.within("search", lambda: call(evaluate, lambda: stopped.append(1), "It"), 5) == 5
    assert stopped
    assert budget.is_spent


def test_errors_go_through_and_are_counted(clock):
    budget = Budget(10, clock)

    def fails():
        took(clock, 20)
        raise KeyError

    with pytest.raises(KeyError):
        budget.within("search", fails, None)
    assert budget.is_spent
    assert not budget.cut


def test_without_seconds_there_is_no_end(clock):
    budget = Budget(float("inf"), clock)
    took(clock, 1e7)
    assert budget.within("observe", lambda: 3, None, 0.5) == 3


def spending(budget, work, times):
    """Return how often work can be spent in a block, of so many times."""
    done = 0

    def spend():
        nonlocal done
        for _ in range(times):
            budget.spend(work)
            done += 1

    budget.within("search", spend, None)
    return done


def test_work_ends_a_block_whatever_the_time(clock):
    budget = Budget(clock=clock, work=10)
    assert spending(budget, "trial", 9) == 4  # what begins before the end is done
    assert budget.is_spent
    assert spending(budget, "trial", 9) == 0
    assert (budget.spent, budget.cut, budget.ended_by) == (12, ["search"], ["work"])


def test_work_counts_everywhere_and_ends_nothing_that_must_be_done(clock):
    budget = Budget(clock=clock, work=10)
    budget.spend("judge", 4)
    budget.check()
    assert budget.is_spent
    assert spending(budget, "pass", 1) == 0


def test_a_part_of_the_work_leaves_the_rest(clock):
    budget = Budget(clock=clock, work=40)
    budget.spend("growth")

    def work():
        for _ in range(20):
            budget.spend("trial")

    assert budget.within("observe", work, "cut", 0.5) == "cut"
    assert budget.spent == 4 + 6 * 3
    assert not budget.is_spent
    assert spending(budget, "trial", 20) == 6


def test_what_ended_stages_is_told_in_order_and_once(clock):
    budget = Budget(10, clock, work=30)
    assert ends(budget, clock, 5) is False
    assert budget.ended_by == []
    assert ends(budget, clock, 5)
    budget.spend("trial", 10)
    budget.within("growth", lambda: None, None)
    budget.leave_out("growth")
    assert budget.ended_by == ["seconds", "work"]


def test_a_block_that_swallows_its_end_is_told_of_when_it_is_left_out(clock):
    budget = Budget(clock=clock, work=5)
    with budget.bounding(), suppress(OutOfTime):
        for _ in range(9):
            budget.spend("trial")
    budget.leave_out("growth")
    assert (budget.cut, budget.ended_by) == (["growth"], ["work"])


def test_ctrl_c_spends_everything(clock):
    with offered() as made:
        budget = Budget(10, clock, work=100)
        made.ready = True
        assert spending(budget, "trial", 2) == 2
        assert made.take()
        assert spending(budget, "trial", 2) == 0
        assert budget.within("curve", lambda: "whole", "cut") == "cut"
        assert budget.ended_by == ["interrupt"]
    budget.spend("judge")
    budget.check()
