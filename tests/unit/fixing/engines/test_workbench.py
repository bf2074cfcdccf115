from typing import NamedTuple

import onnx
import pytest

from halfwise.errors import BackendMissing, RunFailed
from halfwise.fixing.engines.device import Fetched
from halfwise.graph.loading import network_from_proto
from halfwise.graph.weights import save
from halfwise.store import FP32_FILE
from halfwise.tensorrt.failures import EngineFailed, WorkerEnded, build_failed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.unit.reporting.engine_runs import build


def test_each_file_is_written_once(stage):
    bench = stage(models.layer_norm()).device
    network = bench.case.network
    path = bench.file("other", FP32_FILE, lambda: network)
    assert path.name == FP32_FILE
    assert bench.file("other", FP32_FILE, lambda: pytest.fail("written twice")) == path
    assert bench.fp32 != path
    assert {n.name for n in onnx.load(path).graph.node} >= models.layer_norm().kept


def test_many_weights_lie_beside_the_model(tmp_path):
    network = network_from_proto(models.large_weights().proto)
    save(network.model, tmp_path / "m.onnx")
    onnx.checker.check_model(tmp_path / "m.onnx")


class Room(NamedTuple):
    free: int


@pytest.fixture
def built(stage, tmp_path):
    """A stage, two engines, and a place for them."""
    ready = stage(models.layer_norm())
    builds, model = ready.device.builds, ready.device.fp32
    engines = [builds.build(model, low or "fp32", low=low).engine for low in (None, "fp16")]
    (tmp_path / "here").mkdir()
    return ready, engines, tmp_path / "here"


def test_what_lies_here_outlives_the_worker_s_files(built, tmp_path):
    ready, (first, second), folder = built
    Fetched(ready.worker, folder).keep(first)
    ready.worker.close()
    for file in (tmp_path / "worker-cache" / "files").iterdir():
        file.unlink()
    sample = ready.case.calibration[0]
    assert ready.worker.run(first, 0, sample).keys() == {"gamma_out"}
    with pytest.raises(EngineFailed, match="has no file"):
        ready.worker.run(second, 0, sample)


def test_without_room_engines_stay_there(built):
    ready, (first, second), folder = built
    fetched = Fetched(ready.worker, folder / "missing")
    fetched.keep(first)
    fetched.deliver(first, folder / "model.engine")
    assert (folder / "model.engine").stat().st_size == first.bytes
    ready.worker.forget(second)
    with pytest.raises(RunFailed, match="has no file"):
        Fetched(ready.worker, folder).keep(second)


@pytest.mark.parametrize(("missing", "kept"), [(1, 0), (0, 1)])
def test_room_is_left_for_models(built, monkeypatch, missing, kept):
    ready, (first, _), folder = built
    room = Room(2 * first.bytes - missing)
    monkeypatch.setattr("halfwise.fixing.engines.device.disk_usage", lambda _: room)
    Fetched(ready.worker, folder).keep(first)
    assert len(list(folder.iterdir())) == kept


def test_what_was_tidied_away_is_fetched_again(built):
    ready, (first, _), folder = built
    fetched = Fetched(ready.worker, folder)
    fetched.keep(first)
    (kept,) = folder.iterdir()
    kept.unlink()
    fetched.deliver(first, folder / "model.engine")
    assert (folder / "model.engine").stat().st_size == first.bytes


# --- builds ---------------------------------------------------------------------------------------


def test_builds_are_numbered_and_told(stage):
    ready = stage(models.layer_norm(), faults=[Fault("build", "abort", on=(2,))])
    builds, model = ready.device.builds, ready.device.fp32
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


@pytest.mark.parametrize(("on", "statuses"), [((1,), ["lost", "built"]), ((1, 2), ["lost"] * 2)])
def test_a_lost_connection_is_not_held_against_a_build_at_once(stage, on, statuses):
    ready = stage(models.layer_norm(), faults=[Fault("build", "disconnect", on=on)])
    builds = ready.device.builds
    ended = builds.build(ready.device.fp32, "FP32")
    assert [o.status for o in builds.outcomes] == statuses
    assert ended == builds.outcomes[-1]
    assert ended.number == 2


@pytest.mark.parametrize("error", [BackendMissing, WorkerEnded])
def test_a_worker_that_can_no_longer_build_is_lost(stage, monkeypatch, error):
    ready = stage(models.layer_norm())
    builds, model = ready.device.builds, ready.device.fp32

    def gone(*_, **__):
        raise error("There is no GPU.")

    with monkeypatch.context() as patched:
        patched.setattr(ready.worker, "build", gone)
        with pytest.raises(error):
            builds.build(model, "FP32")
    assert builds.build(model, "FP32").engine
    monkeypatch.setattr(ready.worker, "build", gone)
    lost = builds.build(model, "TF32", tf32=True)
    assert (lost.status, lost.message) == ("lost", "There is no GPU.")
    assert [outcome.number for outcome in builds.outcomes] == [2, 3, 4]  # 1 was none


def test_strong_typing_leaves_types_to_the_model(stage):
    ready = stage(models.layer_norm(), version="10.0.1")
    built = ready.device.builds.build(ready.device.fp32, "x", low="fp16", keep=["square"])
    assert (built.config.typing, built.config.low, built.config.keep) == ("strong", None, ())


def test_engines_are_forgotten_but_one(stage):
    ready = stage(models.layer_norm())
    builds = ready.device.builds
    kept = builds.build(ready.device.fp32, "a").engine
    gone = builds.build(ready.device.fp32, "b", low="fp16").engine
    sample = ready.case.calibration[0]
    builds.forget(kept)
    assert ready.worker.run(kept, 0, sample).keys() == {"gamma_out"}
    with pytest.raises((EngineFailed, RunFailed)):
        ready.worker.run(gone, 0, sample)


WHAT = "no engine of this model"


def test_a_crash_is_told_with_its_signal():
    crash = build(
        1, "x", status="crashed", signal="SIGSEGV", engine=None, message="The build ended."
    )
    error = build_failed(crash, WHAT)
    assert error.exit_code == 5
    assert error.message == "TensorRT builds no engine of this model (crashed by SIGSEGV): " + (
        "The build ended."
    )
    assert "tactic-sources" in error.hint
    slow = build(1, "x", status="timeout", engine=None, message="It took longer.")
    assert "build-timeout" in build_failed(slow, WHAT).hint


def test_no_option_of_the_builder_is_advised_where_the_parser_refuses():
    def hint(*log: str) -> str:
        refused = build(
            1, "x", status="failed", engine=None, parsed=False, message="Not parsed.", log=log
        )
        return build_failed(refused, WHAT).hint

    for log in ((), ("error: nobody knows",), ("error: Failed to parse the ONNX file",)):
        assert "tactic-sources" not in hint(*log)
        for help_ in (
            "halfwise lint",
            "halfwise explain-log",
            "--engine plugin",
        ):
            assert help_ in hint(*log)
    named = hint("error: No importer registered for op: Odd. Attempting to import as plugin.",
                 "error: getPluginCreator could not find plugin: Odd version: 1")  # fmt: skip
    assert "Odd" in named
    assert "optimization-level" not in named


def test_everything_of_the_log_is_explained_once():
    message = "The build failed: nobody knows."
    log = (
        "info: nothing",
        "error: 2: [x.cpp] Error Code 2: OutOfMemory (no further information)",
        "error: nobody knows.",
    )
    error = build_failed(
        build(1, "x", status="failed", engine=None, message=message, log=log), WHAT
    )
    assert len(error.hint.splitlines()) == 1
    assert "memory" in error.hint.lower()


def test_a_long_log_is_cut():
    names = [chr(ord("a") + i) for i in range(20)]
    log = tuple(f"error: a fault of kind {name}" for name in names)
    failed = build(1, "x", status="failed", engine=None, message="It failed.", log=log)
    lines = build_failed(failed, WHAT).hint.splitlines()
    assert len(lines) == 13
    assert lines[-1].startswith("and 8 more")
