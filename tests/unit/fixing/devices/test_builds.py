from contextlib import ExitStack
from pathlib import Path

import pytest

from halfwise.case import EngineSettings
from halfwise.fixing.devices.builds import Bay, KindBuilds
from halfwise.progress import Silent
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.worker.journal import Journal
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.processes import wait_for

WAITS = Fault("build", "wait", when={"low": "fp16"})


@pytest.fixture
def kind(fake_worker, tmp_path):
    """Makes the builds of workers that share everything, and the model that they build."""
    with ExitStack() as stack:

        def kind(*faults):
            workers = [
                stack.enter_context(Worker(f"w{i}", fake_worker(faults=each)))
                for i, each in enumerate(faults)
            ]
            bays = tuple(map(Bay, workers))
            for bay in bays:
                stack.callback(bay.end)
            model = tmp_path / "model.onnx"
            model.write_bytes(models.layer_norm().proto.SerializeToString())
            journal = Journal(tmp_path / "journal.jsonl")
            builds = KindBuilds(
                *(workers[0], EngineSettings(), "weak", journal, Silent()),
                folder=tmp_path,
                bays=bays,
            )
            return builds, model

        yield kind


def test_what_is_begun_is_what_is_waited_for(kind):
    builds, model = kind([])
    builds.begin(lambda: builds.build(model, "FP32"))
    assert builds.outcomes == []
    # The worker is not idle: this one waits until it is asked for.
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"))
    first, second = builds.build(model, "FP32"), builds.build(model, "FP16", low="fp16")
    assert [(b.number, b.purpose, b.status) for b in (first, second)] == [
        *((1, "FP32", "built"), (2, "FP16", "built"))
    ]
    assert builds.outcomes == [first, second]


def test_another_worker_builds_and_the_engine_comes_here(kind):
    builds, model = kind([], [])
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"), helpers=True)
    outcome = builds.build(model, "FP16", low="fp16")
    assert outcome.engine.side == "here"
    assert Path(outcome.engine.path).stat().st_size == outcome.engine.bytes
    assert builds.worker.describe(outcome.engine)


def test_a_worker_that_is_lost_builds_no_more(kind):
    builds, model = kind([], [Fault("build", "disconnect")])
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"), helpers=True)
    outcome = builds.build(model, "FP16", low="fp16")
    # It is built once more, by the other.
    assert [b.status for b in builds.outcomes] == ["lost", "built"]
    assert outcome.engine.side == "worker"
    assert builds.bays[1].lost
    builds.begin(lambda: builds.build(model, "FP32"), helpers=True)
    assert builds.build(model, "FP32").engine.side == "worker"


def test_what_nobody_waits_for_is_ended(kind, tmp_path):
    builds, model = kind([], [WAITS])
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"), helpers=True)
    wait_for((tmp_path / "journal.jsonl").read_text)
    builds.settle()
    assert [b.status for b in builds.outcomes] == ["lost"]
    assert builds.bays[1].idle
    assert builds.bays[1].worker.info.gpu
