import os
import signal
import threading
import time

import pytest

from halfwise.emulation import budget as bounded
from halfwise.emulation.budget import (
    OutOfTime,
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
    assert caught.value.message == "An evaluation took longer than 0.05 s and was stopped."
    assert caught.value.late
    assert "--budget run-timeout" in caught.value.hint


def test_a_call_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_GRACE", 0.05)
    later = threading.Event()
    with limited(0.05), pytest.raises(RunFailed):
        call(later.wait, nothing, "It")
    assert call(lambda: 4, nothing, "It") == 4
    later.set()


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
    monkeypatch.setattr(bounded, "REPEATING_SECONDS", 0.2)
    monkeypatch.setattr(bounded, "_AGAIN", 0.02)
    with limited(), forgiving():
        expect_repeating()
        for seconds in ("0.2", "0.02"):
            with pytest.raises(RunFailed, match=f"longer than {seconds} s"):
                too_long()
        monkeypatch.setattr(bounded, "_LONGER", 1e9)  # whatever ended shows what is usual
        call(lambda: 3, nothing, "It")
        with pytest.raises(RunFailed, match=r"longer than 0\.2 s"):
            too_long()
    with limited(0.03):
        expect_repeating()
        with pytest.raises(RunFailed, match=r"0\.03"):
            too_long()


def test_what_is_over_stops_a_call_and_refuses_further_ones() -> None:
    stopped = threading.Event()
    with ending(time.monotonic() + 1e6, lambda: True), pytest.raises(OutOfTime):
        call(lambda: pytest.fail("it ran"), stopped.set, "It")
    began = threading.Event()

    def evaluate() -> None:
        began.set()
        assert stopped.wait(60)

    until = time.monotonic() + 1e6
    with limited(1e6), ending(until, began.is_set), pytest.raises(OutOfTime):
        call(evaluate, stopped.set, "It")
