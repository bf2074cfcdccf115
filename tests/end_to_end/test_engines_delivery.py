"""A run whose FP32 engine is right ends with an engine, whatever becomes of its worker."""

import hashlib
import shlex

import numpy as np
import pytest

from halfwise.fixing.engines.device import Fetched
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.start import once_only

EXACT, TF32, LOW = ({"low": None, "tf32": False}, {"low": None, "tf32": True}, {"low": "fp16"})


@pytest.fixture
def asked(saved, tmp_path):
    """What to call with a worker: `asked(command, *options, out="run")`."""
    ill = models.layer_norm()
    model, inputs = saved(ill)
    np.savez(tmp_path / "held.npz", x=ill.inputs["x"][:2])
    np.savez(inputs, x=ill.inputs["x"][2:])

    def asked(command, *options, out="run"):
        return (
            *("fix", model, "--inputs", inputs, "--heldout", "held.npz", "-o", out, *options),
            *("--target", "tensorrt", "--trt-command", shlex.join(command)),
            *("--engine", "repeat=1", "--budget", "builds=2", "--no-repair"),
        )

    return asked


def told(ended):
    return " ".join(ended.out.split())


def delivered(ended):
    """Return the row of the engine in the run folder, which is the file that was judged."""
    found = ended.record["engines"]
    sha256 = hashlib.sha256((ended.folder / "model.engine").read_bytes()).hexdigest()
    assert found["delivered"]["sha256"] == sha256
    built = [r for r in found["results"] if r["build"]["engine"]]
    (row,) = [r for r in built if r["build"]["engine"]["sha256"] == sha256]
    assert row["rung"] == found["rung"]
    assert row["verdict"]["passed"]
    return row


GONE = Fault("run", "disconnect", when=LOW)


def test_a_worker_that_is_gone_when_low_engines_run_leaves_those_of_fp32(
    call, asked, fake_worker, tmp_path
):
    worker = fake_worker(faults=[GONE])
    ended = call(*asked(once_only(worker, tmp_path / "started")))
    assert ended.code == 0, ended.err + ended.out
    row, found = delivered(ended), ended.record["engines"]
    assert row["rung"] in ("fp32", "tf32")
    assert row["latency"]["median_ms"] > 0
    assert found["causes"] == []
    ends = {tried["rung"]: tried["end"] for tried in found["rungs"]}
    assert (ends[row["rung"]], ends["fp16"]) == ("delivered", "lost")
    lost = [build for build in found["builds"] if build["status"] == "lost"]
    assert lost
    said = told(ended)
    assert "the worker was lost before any FP16 engine was judged" in said
    assert "is lost: it does not restart: sh ended with status 1." in said
    unsaid = ("within the tolerance", "could be built", "norms are one node", "FP16 plan passed")
    for wrong in (*unsaid, "Its command is", "--budget"):
        assert wrong not in said
    assert call("report", "run").out == ended.out
    again = call(*asked(fake_worker(), "--start-from", "run", out="again"), folder="again")
    assert again.code == 0, again.err
    assert again.record["engines"]["rung"] == "fp16"


def test_a_worker_that_is_gone_before_any_verdict_is_told_as_lost(
    call, asked, fake_worker, tmp_path
):
    worker = fake_worker(faults=[Fault("run", "disconnect", on=(1,))])
    ended = call(*asked(once_only(worker, tmp_path / "started")))
    assert (ended.code, ended.out) == (6, "")
    said = " ".join(ended.err.split())
    assert "is lost: " in said
    assert not ended.folder.exists()


def test_a_worker_that_comes_up_without_its_gpu_leaves_its_fp32_engine(
    call, asked, fake_worker, tmp_path
):
    worker = fake_worker(faults=[GONE])
    *environment, interpreter = worker
    then = 'exec env HALFWISE_FAKE_CUDA_DEVICES=0 "$@"'
    command = once_only([interpreter], tmp_path / "started", then=then)
    ended = call(*asked([*environment, *command]))
    assert ended.code == 0, ended.err + ended.out
    row, found = delivered(ended), ended.record["engines"]
    assert row["rung"] in ("fp32", "tf32")
    ends = {tried["rung"]: tried["end"] for tried in found["rungs"]}
    assert (ends[row["rung"]], ends["fp16"]) == ("delivered", "lost")
    assert {build["status"] for build in found["builds"][3:]} == {"lost"}
    assert "here shows no GPU" in told(ended)


def test_a_worker_that_is_gone_with_its_engines_leaves_nothing_but_advice(
    call, asked, fake_worker, tmp_path, monkeypatch
):
    worker = fake_worker(faults=[Fault("run", "disconnect", on=(3,))])
    with monkeypatch.context() as patched:
        patched.setattr(Fetched, "keep", lambda *_: None)
        ended = call(*asked(once_only(worker, tmp_path / "started")))
    assert (ended.code, ended.out) == (6, "")
    assert "is lost: " in " ".join(ended.err.split())
    assert not ended.folder.exists()
    assert call(*asked(fake_worker())).code == 0


def test_an_fp32_engine_that_crashes_when_it_is_timed_is_the_last_resort(call, asked, fake_worker):
    faults = [Fault("again", "segv", when=EXACT)]
    faults += [Fault("build", "memory", when=when) for when in (TF32, LOW)]
    ended = call(*asked(fake_worker(faults=faults)))
    assert ended.code == 0, ended.err + ended.out
    row = delivered(ended)
    assert (row["rung"], row["latency"], row["lost"]) == ("fp32", None, False)
    assert "SIGSEGV" in row["untimed"]
    assert "It could not be timed: Timing ended with SIGSEGV" in told(ended)
    assert "FP32, TF32 off was not timed" in told(ended)
