import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from halfwise.case import Case, Samples
from halfwise.emulation import bounded
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.delivery import concurrently, one_at_a_time
from halfwise.records import Criterion


class Told:
    """A watcher that keeps what it is told, and by which thread."""

    def __init__(self):
        self.lines = []

    def stage(self, name, _total=None):
        self.lines.append(("stage", name))

    def step(self, done, _total=None, _of="", *, most=False):
        self.lines.append(("step", done, most))

    def left(self, seconds):
        self.lines.append(("left", seconds))

    def expect(self, seconds, of):
        self.lines.append(("expect", seconds, of))

    def note(self, line):
        self.lines.append(("note", line))


def test_both_go_on_at_the_same_time():
    met = threading.Barrier(2)

    def search(_):
        met.wait()
        return 3

    with concurrently(search, Told()) as found:
        met.wait()
        assert found() == 3


def test_what_is_told_is_shown_when_it_is_waited_for():
    told, begun, go_on = Told(), threading.Event(), threading.Event()

    def search(watcher):
        watcher.stage("search", 2)
        watcher.step(1, 2)
        watcher.note("half")
        begun.set()
        go_on.wait()
        watcher.step(2, 2)

    with concurrently(search, told) as found:
        begun.wait()
        assert told.lines == []
        threading.Timer(0.05, go_on.set).start()
        found()
    assert told.lines == [("stage", "search"), ("note", "half"), ("step", 2, False)]


def test_errors_come_with_the_result():
    def search(_):
        raise CaseError("no")

    with concurrently(search, Told()) as found, pytest.raises(CaseError, match="no"):
        found()


def test_leaving_ends_the_search():
    def search(watcher):
        while True:
            watcher.step(1)

    with pytest.raises(KeyboardInterrupt), concurrently(search, Told()):
        raise KeyboardInterrupt
    assert not any(t.name.startswith("search") for t in threading.enumerate())


def test_the_users_code_runs_one_at_a_time():
    running, most = [], []

    def enter():
        running.append(1)
        most.append(len(running))
        time.sleep(0.005)
        running.pop()

    def metric(*_):
        enter()
        return 1.0

    def load(index):
        enter()
        return {"x": np.full(1, index, np.float32)}

    samples = Samples(("a", "b"), load)
    network: Any = None
    case = Case(network, samples, samples, Criterion(), metric, (), "")
    locked = one_at_a_time(case)
    metric_locked: Any = locked.metric
    calls = [
        lambda: locked.calibration[0],
        lambda: locked.heldout[0],
        lambda: metric_locked((), (), None),
    ]
    threads = [threading.Thread(target=call) for call in calls for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) == 12
    np.testing.assert_array_equal(locked.calibration[1]["x"], [1])
    assert one_at_a_time(replace(case, metric=None)).metric is None


def test_an_evaluation_ends_when_the_block_is_left():
    begun, stopped = threading.Event(), threading.Event()

    def search(_):
        def work():
            begun.set()
            stopped.wait()

        bounded.call(work, stopped.set, "An evaluation")
        pytest.fail("the search goes on")

    def leave():
        with concurrently(search, Told()):
            begun.wait()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert stopped.is_set()


def test_a_search_that_is_no_longer_wanted_begins_no_evaluation():
    left = threading.Event()

    def search(_):
        left.wait()
        bounded.call(lambda: pytest.fail("begun"), lambda: None, "An evaluation")

    def leave():
        with concurrently(search, Told()):
            threading.Timer(0.05, left.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()


def test_what_holds_for_evaluations_holds_beside():
    stopped = threading.Event()
    with (
        bounded.limited(0.05),
        concurrently(
            lambda _: bounded.call(stopped.wait, stopped.set, "An evaluation"), Told()
        ) as found,
        pytest.raises(RunFailed, match=r"longer than 0\.05 s"),
    ):
        found()
