import sys

import pytest

from halfwise.api.workers import WorkerSpec
from halfwise.api.working import usable
from halfwise.errors import BackendMissing
from halfwise.progress import Silent


class Notes(Silent):
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def test_a_worker_is_up_and_ends_with_the_block(fake_worker):
    notes = Notes()
    with usable(WorkerSpec("fake", tuple(fake_worker()), "test"), notes) as worker:
        assert worker.info.tensorrt == "8.6.1"
        assert worker.process_id
    assert not worker.process_id
    assert notes.lines[0].startswith("TensorRT 8.6.1 on Fake GPU (env ")


def test_one_that_cannot_build_is_refused():
    bare = usable(WorkerSpec("bare", (sys.executable, "-I"), "test"), Silent())
    with pytest.raises(BackendMissing, match="cannot import tensorrt"):
        bare.__enter__()
