from contextlib import ExitStack

import pytest

from halfwise.case import EngineSettings
from halfwise.fixing.engines.device import DeviceBuilds
from halfwise.progress import Silent
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import Journal
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.processes import wait_for

WAITS = Fault("build", "wait", when={"low": "fp16"})


@pytest.fixture
def device(fake_worker, tmp_path):
    """Makes the builds of a worker, and the model that it builds."""
    with ExitStack() as stack:

        def device(*faults):
            worker = stack.enter_context(Worker("w", fake_worker(faults=faults)))
            model = tmp_path / "model.onnx"
            model.write_bytes(models.layer_norm().proto.SerializeToString())
            journal = Journal(tmp_path / "journal.jsonl")
            builds = DeviceBuilds(worker, EngineSettings(), "weak", journal, Silent())
            stack.callback(builds.end)
            return builds, model

        yield device


def test_what_is_begun_is_what_is_waited_for(device):
    builds, model = device()
    builds.begin(lambda: builds.build(model, "FP32"))
    assert builds.outcomes == []
    # The worker is not idle: this one waits until it is asked for.
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"))
    first, second = builds.build(model, "FP32"), builds.build(model, "FP16", low="fp16")
    assert [(b.number, b.purpose, b.status) for b in (first, second)] == [
        *((1, "FP32", "built"), (2, "FP16", "built"))
    ]
    assert builds.outcomes == [first, second]


def test_what_is_lost_is_built_once_more(device):
    builds, model = device(Fault("build", "disconnect", on=(1,)))
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"))
    assert builds.build(model, "FP16", low="fp16").status == "built"
    assert [b.status for b in builds.outcomes] == ["lost", "built"]


def test_what_nobody_waits_for_is_ended(device, tmp_path):
    builds, model = device(WAITS)
    builds.begin(lambda: builds.build(model, "FP16", low="fp16"))
    wait_for((tmp_path / "journal.jsonl").read_text)
    builds.settle()
    assert [b.status for b in builds.outcomes] == ["lost"]
    assert builds.last is not None
    assert builds.last.done()
    assert builds.worker.info.gpu
