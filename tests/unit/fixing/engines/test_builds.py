import pytest

from halfwise.errors import BackendMissing, RunFailed
from halfwise.tensorrt.worker.failures import EngineFailed, WorkerEnded
from tests import models
from tests.fake_tensorrt.faults import Fault


def test_builds_are_numbered_written_down_and_told(stage, tmp_path):
    ready = stage(models.layer_norm(), faults=[Fault("build", "abort", on=(2,))])
    builds, model = ready.run.builds, ready.attempts.fp32
    first = builds.build(model, "FP32")
    second = builds.build(model, "mixed", low="fp16", keep=["square"], tf32=True)
    assert [o.number for o in builds.outcomes] == [1, 2]
    assert (first.status, second.status, second.signal) == ("built", "crashed", "SIGABRT")
    assert (second.config.low, second.config.keep, second.config.tf32) == (
        "fp16",
        ("square",),
        True,
    )
    assert first.config.model_sha256 == second.config.model_sha256
    assert ready.listener.notes[:2] == ["build 1: FP32", "build 2: mixed"]
    assert "build 2 crashed" in ready.listener.notes[2]
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 4
    again = builds.build(model, "mixed", low="fp16", keep=["square"], tf32=True)
    assert again.status == "skipped"


@pytest.mark.parametrize(("on", "statuses"), [((1,), ["lost", "built"]), ((1, 2), ["lost"] * 2)])
def test_a_lost_connection_is_not_held_against_a_build_at_once(stage, on, statuses):
    ready = stage(models.layer_norm(), faults=[Fault("build", "disconnect", on=on)])
    builds = ready.run.builds
    ended = builds.build(ready.attempts.fp32, "FP32")
    assert [o.status for o in builds.outcomes] == statuses
    assert ended == builds.outcomes[-1]
    assert ended.number == 2


@pytest.mark.parametrize("error", [BackendMissing, WorkerEnded])
def test_a_worker_that_can_no_longer_build_is_lost(stage, monkeypatch, error):
    ready = stage(models.layer_norm())
    builds, model = ready.run.builds, ready.attempts.fp32

    def gone(*_, **__):
        raise error("There is no GPU.")

    with monkeypatch.context() as patched:
        patched.setattr(ready.worker, "build", gone)
        with pytest.raises(error):
            builds.build(model, "FP32")
    assert builds.build(model, "FP32").engine
    monkeypatch.setattr(ready.worker, "build", gone)
    lost = builds.build(model, "TF32", tf32=True)
    assert (lost.status, lost.begun, lost.message) == ("lost", False, "There is no GPU.")
    assert [outcome.number for outcome in builds.outcomes] == [1, 2, 3]
    assert not ready.journal.remembers


def test_progress_and_waiting_are_told(stage, monkeypatch):
    ready = stage(models.layer_norm(), version="10.0.1")
    steps, builds = [], ready.run.builds
    monkeypatch.setattr(ready.listener, "step", lambda done, *_: steps.append(done))
    build = ready.worker.build

    def waits(*arguments, log, **options):
        log("waiting", "Another build has this GPU.")
        log("info", "much")
        return build(*arguments, log=log, **options)

    monkeypatch.setattr(ready.worker, "build", waits)
    builds.build(ready.attempts.fp32, "x")
    assert steps == sorted(steps)
    assert steps
    assert ready.listener.notes[-1] == "Another build has this GPU."


def test_strong_typing_leaves_types_to_the_model(stage):
    ready = stage(models.layer_norm(), version="10.0.1")
    built = ready.run.builds.build(ready.attempts.fp32, "x", low="fp16", keep=["square"])
    assert (built.config.typing, built.config.low, built.config.keep) == ("strong", None, ())


def test_engines_are_forgotten_but_one(stage):
    ready = stage(models.layer_norm())
    builds, attempts = ready.run.builds, ready.attempts
    kept = builds.build(attempts.fp32, "a").engine
    gone = builds.build(attempts.fp32, "b", low="fp16").engine
    sample = ready.case.calibration[0]
    builds.forget(kept)
    assert ready.worker.run(kept, 0, sample).keys() == {"gamma_out"}
    with pytest.raises((EngineFailed, RunFailed)):
        ready.worker.run(gone, 0, sample)
