import shlex
import sys

import pytest

from halfwise.errors import BackendMissing, UsageError
from halfwise.progress import Silent
from halfwise.tensorrt.workers import WorkerSpec
from halfwise.tensorrt.working import usable


class Notes(Silent):
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def test_a_worker_is_up_and_ends_with_the_block(fake_worker):
    notes = Notes()
    with usable(WorkerSpec("fake", tuple(fake_worker()), "test"), notes, 60) as worker:
        assert worker.info.tensorrt == "8.6.1"
        assert worker.process_id
    assert not worker.process_id
    assert notes.lines[0].startswith("TensorRT 8.6.1 on Fake GPU (env ")


def test_one_that_cannot_build_is_refused():
    bare = usable(WorkerSpec("bare", (sys.executable, "-I"), "test"), Silent(), 60)
    with pytest.raises(BackendMissing, match="cannot import tensorrt"):
        bare.__enter__()


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_the_environment_does_to_tf32_is_told(fake_worker, value):
    notes = Notes()
    command = fake_worker(environment={"NVIDIA_TF32_OVERRIDE": value})
    spec = WorkerSpec("fake", tuple(command), "test")
    with usable(spec, notes, 60) as worker:
        assert notes.lines[1] == worker.info.tf32_remark
    if value == "0":
        with usable(spec, notes, 60, exact=True) as worker:
            assert worker.info.tf32_override == "0"


def test_where_tf32_cannot_be_kept_out_nothing_is_built(fake_worker):
    command = fake_worker(environment={"NVIDIA_TF32_OVERRIDE": "1"})
    refused = usable(WorkerSpec("fake", tuple(command), "test"), Silent(), 60, exact=True)
    with pytest.raises(UsageError, match="results shown as FP32 may be TF32") as caught:
        refused.__enter__()
    words = shlex.split(caught.value.hint.rstrip("."))[-1]
    with usable(
        WorkerSpec("fake", tuple(shlex.split(words)), "hint"), Silent(), 60, exact=True
    ) as it:
        assert it.info.tf32_override is None
