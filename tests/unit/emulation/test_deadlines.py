import os
import signal
import threading
import time

import pytest

from halfwise.emulation import deadlines
from halfwise.emulation.deadlines import (
    OutOfTime,
    TimeBudget,
    call,
    ending,
    expect_repeating,
    forgiving,
    limited,
)
from halfwise.errors import RunFailed, TookTooLong


def nothing() -> None:
    pass


def test_a_call_gives_what_it_returns_or_raises() -> None:
    assert call(lambda: 3, nothing, "It") == 3
    with pytest.raises(KeyError, match="here"):
        call(lambda: dict[str, int]()["here"], nothing, "It")


def test_a_call_that_takes_too_long_is_stopped_and_told() -> None:
    stopped = threading.Event()
    with limited(0.05), pytest.raises(RunFailed) as caught:
        call(stopped.wait, stopped.set, "An evaluation")
    assert stopped.is_set()
    assert caught.value.message == "An evaluation took longer than 0.05 s and was ended."
    assert caught.value.late
    assert "--run-timeout" in caught.value.hint


def test_a_call_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_GRACE", 0.05)
    later = threading.Event()
    with limited(0.05), pytest.raises(RunFailed):
        call(later.wait, nothing, "It")
    assert call(lambda: 4, nothing, "It") == 4
    later.set()


def test_a_call_that_takes_long_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_PATIENCE", 0.01)
    told: list[str] = []
    go = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        go.set()

    with limited(60, tell=tell):
        assert call(lambda: go.wait(30), nothing, "It")
        assert call(lambda: 1, nothing, "It") == 1
    assert told == ["It takes longer than 0.01 s; it is ended at 60 s"]


def test_the_end_of_the_budget_stops_a_call_and_refuses_further_ones() -> None:
    stopped = threading.Event()
    with ending(time.monotonic() + 0.05):
        with pytest.raises(OutOfTime):
            call(stopped.wait, stopped.set, "It")
        with pytest.raises(OutOfTime):
            call(lambda: pytest.fail("it ran"), nothing, "It")
        with ending(None):
            assert call(lambda: 5, nothing, "It") == 5


def test_ctrl_c_stops_a_call() -> None:
    stopped = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        stopped.wait()

    with pytest.raises(KeyboardInterrupt):
        call(work, stopped.set, "It")
    assert stopped.is_set()


def test_a_child_of_the_process_has_threads_of_its_own() -> None:
    call(lambda: 1, nothing, "It")
    child = os.fork()
    if not child:
        os._exit(call(lambda: 7, nothing, "It"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


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


def too_long() -> None:
    stopped = threading.Event()
    call(stopped.wait, stopped.set, "An evaluation")


def test_the_second_call_that_takes_too_long_ends_the_command_by_the_words_of_the_first() -> None:
    with limited(0.02), limited():
        with pytest.raises(RunFailed):
            too_long()
        assert call(lambda: 3, nothing, "It") == 3
        with pytest.raises(TookTooLong, match=r"An evaluation took longer than 0\.02 s"):
            too_long()
    with limited(0.02), pytest.raises(RunFailed):
        too_long()


def test_a_search_may_try_any_number_but_for_what_has_to_run() -> None:
    with limited(0.02), forgiving():
        for _ in range(3):
            with pytest.raises(RunFailed):
                too_long()
        with forgiving(any_number=False), pytest.raises(TookTooLong):
            too_long()


def test_a_model_that_repeats_a_body_has_less_time_and_after_a_late_call_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "REPEATING_SECONDS", 0.2)
    monkeypatch.setattr(deadlines, "_AGAIN", 0.02)
    with limited(), forgiving():
        expect_repeating()
        for seconds in ("0.2", "0.02"):
            with pytest.raises(RunFailed, match=f"longer than {seconds} s"):
                too_long()
        monkeypatch.setattr(deadlines, "_LONGER", 1e9)  # whatever ended shows what is usual
        call(lambda: 3, nothing, "It")
        with pytest.raises(RunFailed, match=r"longer than 0\.2 s"):
            too_long()
    with limited(0.03):
        expect_repeating()
        with pytest.raises(RunFailed, match=r"0\.03"):
            too_long()
