import os
import time

import pytest

from halfwise.backends.tensorrt import ahead
from halfwise.backends.tensorrt.ahead import started, taken
from halfwise.backends.tensorrt.client import Worker
from halfwise.backends.tensorrt.transport import Connection
from halfwise.errors import BackendMissing


def is_gone(process_id, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_the_first_worker_of_the_command_is_the_one_that_was_started(fake_worker):
    command = fake_worker()
    with started(command):
        with Worker("first", command) as worker:
            first = worker.process_id
            assert worker.info.tensorrt == "8.6.1"
            with Worker("second", command) as other:
                assert other.process_id != first
        assert taken(command) is None
    assert is_gone(first)


def test_one_that_nobody_takes_ends_with_the_block(fake_worker, monkeypatch):
    made = []

    class Watched(Connection):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self.process_id)

    monkeypatch.setattr(ahead, "Connection", Watched)
    with ahead.started(fake_worker()):
        assert not is_gone(made[0], seconds=0.1)
    assert is_gone(made[0])


def test_a_worker_of_another_command_is_not_given_away(fake_worker):
    with started(fake_worker()):
        assert taken(["python3"]) is None


def test_what_cannot_be_started_is_told_by_who_needs_it():
    command = ["/no/such/python"]
    with (
        started(command),
        pytest.raises(BackendMissing, match="does not answer"),
        Worker("none", command),
    ):
        pass


def test_a_command_that_reads_nothing_does_not_block():
    with started(["sleep", "60"]):
        connection = taken(["sleep", "60"])
        assert connection is not None
        connection.close(patience=0.0)
