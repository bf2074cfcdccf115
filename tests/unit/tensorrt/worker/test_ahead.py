from functools import partial

import pytest

from halfwise.errors import BackendMissing
from halfwise.records import BuildConfig, Profile, ShapeRange, TensorName
from halfwise.tensorrt.worker import ahead
from halfwise.tensorrt.worker.ahead import started, taken
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.worker.transfer import model_files
from halfwise.tensorrt.worker.transport import Connection
from tests.engines import save_squares
from tests.processes import is_running, wait_for


def test_the_first_worker_of_the_command_is_the_one_that_was_started(fake_worker):
    command = fake_worker()
    with started(command):
        with Worker("first", command) as worker:
            first = worker.process_id
            assert worker.info.tensorrt == "8.6.1"
            with Worker("second", command) as other:
                assert other.process_id != first
        assert taken(command) is None
    assert first is not None
    wait_for(lambda: not is_running(first))


def test_one_that_nobody_takes_ends_with_the_block(fake_worker, monkeypatch):
    made = []

    class Watched(Connection):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self.process_id)

    monkeypatch.setattr(ahead, "Connection", Watched)
    with ahead.started(fake_worker()):
        assert is_running(made[0])
    wait_for(lambda: not is_running(made[0]))


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


def test_what_the_builder_said_ahead_is_told_by_the_first_build(fake_worker, tmp_path):
    model, _ = save_squares(tmp_path)
    shape = ShapeRange(min=(1, 4), opt=(1, 4), max=(1, 4))
    profiles = (Profile(shapes={TensorName("x"): shape}),)
    sha256 = model_files(model).sha256
    config = BuildConfig(model_sha256=sha256, typing="weak", profiles=profiles)
    command = fake_worker()
    with started(command), Worker("first", command) as worker:
        for number in (1, 2):
            lines: list[str] = []
            worker.build(
                model,
                config,
                number=number,
                purpose="test",
                timeout=None,
                log=partial(_note, lines),
            )
            assert sum("Init CUDA" in line for line in lines) == 1


def _note(lines, _, text):
    lines.append(text)
