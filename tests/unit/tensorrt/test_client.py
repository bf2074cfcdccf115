import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfwise.errors import BackendMissing, CaseError, RecordMismatch, UsageError
from halfwise.fixing.engines.measure import is_lost
from halfwise.progress import Silent
from halfwise.records import BuildConfig, BuildOutcome, EngineFile, NodeName
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.failures import EngineFailed, WorkerEnded
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.workers import WorkerSpec
from tests.processes import children_of, is_running, kill

FEEDS = {"x": np.arange(4, dtype=np.float32).reshape(2, 2), "n": np.array([3], np.int64)}


def config(model, how="well", **further):
    sha256 = model_files(model).sha256
    return BuildConfig(
        model_sha256=sha256, typing="weak", keep=(NodeName("gone"),), plugins=(how,), **further
    )


def build(worker, model, how="well", *, timeout=None, **further) -> BuildOutcome:
    settings = config(model, how)
    outcome: BuildOutcome = worker.build(
        model, settings, number=3, purpose="mixed", timeout=timeout, **further
    )
    assert (outcome.number, outcome.purpose, outcome.config) == (3, "mixed", settings)
    return outcome


def test_what_it_tells(worker, cache):
    info = worker.info
    assert (info.name, info.tensorrt, info.gpu, info.typing) == (
        *("told", "8.6.0", "Paper GPU"),
        ("weak",),
    )
    assert (info.compute_capability, info.driver) == ("9.0", "535.1")
    assert (info.free_bytes, info.memory_bytes) == (6 << 30, 8 << 30)
    assert info.trouble == ""
    assert any(str(cache) in note for note in info.notes)
    worker.demand_usable()


def test_a_build(worker, model):
    outcome = build(worker, model)
    assert (outcome.status, outcome.message, outcome.seconds) == ("built", "", 0.25)
    assert outcome.log == ("warning: Detected layernorm nodes in FP16.",)
    assert outcome.engine is not None
    assert outcome.engine.side == "worker"
    assert outcome.layers[0].nodes == ("conv",)
    assert outcome.layers[0].constrained
    assert outcome.unconstrained == {"gone": "no layer of the network names it"}


def test_files_travel_once_and_external_data_too(worker, model, cache, tmp_path):
    first = build(worker, model).engine
    assert first is not None
    stored = {path.name: path.stat().st_mtime_ns for path in (cache / "files").iterdir()}
    fetched = worker.fetch(first, tmp_path / "e.engine")
    assert (fetched.side, fetched.path) == ("here", str(tmp_path / "e.engine"))
    assert (tmp_path / "e.engine").read_bytes() == b"engine of m.onnx,w.bin" + model.read_bytes()
    assert set(model_files(model).hashes.values()) < stored.keys()
    assert build(worker, model).engine == first
    assert not list(cache.glob("files/*.part"))
    assert [p.name for p in tmp_path.glob(".halfwise*")] == []


@pytest.mark.parametrize(
    ("how", "status", "name", "message"),
    [
        ("SIGSEGV", "crashed", "SIGSEGV", "The build ended with SIGSEGV."),
        ("SIGABRT", "crashed", "SIGABRT", "The build ended with SIGABRT."),
        (
            *("SIGKILL", "crashed", "SIGKILL"),
            "The build ended with SIGKILL: usually memory ran out on its host.",
        ),
        ("exit3", "crashed", None, "The build ended its process with status 3."),
        ("hang", "timeout", None, "The build took longer than 2 s and was ended."),
        ("fail", "failed", None, "TensorRT built no engine."),
        (
            *("parse", "failed", None),
            "TensorRT 8.6.0 cannot parse the model at node n1 (Odd): The parser rejects the "
            "operator Odd: no importer (the first of 2 parser errors).",
        ),
        (
            *("lose", "lost", None),
            "The connection to worker told is lost: python was ended by SIGKILL.",
        ),
    ],
)
def test_what_goes_wrong_is_recorded_and_the_next_build_works(
    worker, model, how, status, name, message
):
    outcome = build(worker, model, how, timeout=2.0 if how == "hang" else None)
    assert (outcome.status, outcome.signal) == (status, name)
    expected = message.replace("python was", f"{Path(sys.executable).name} was")
    assert outcome.message == expected
    assert outcome.engine is None
    assert "warning: Detected layernorm nodes in FP16." in outcome.log
    if how.startswith("SIG"):
        assert "noise: about to die" in outcome.log
    if how == "parse":
        assert outcome.log[-1] == (
            "error: In node -2 with name: n2 and operator: Odd (parser): ERROR: no importer"
        )
    assert build(worker, model).status == "built"


def test_what_no_build_can_do_without_is_an_error(worker, model):
    with pytest.raises(BackendMissing, match="plugin library cannot be loaded"):
        build(worker, model, "plugin")


def test_a_worker_that_is_gone_for_good_is_recorded(worker, model, monkeypatch):
    build(worker, model, "lose")
    monkeypatch.setattr(worker, "_command", ("/nowhere/python3",))
    outcome = build(worker, model)
    assert outcome.status == "lost"
    assert "/nowhere/python3: No such file or directory" in outcome.message


def test_runs_and_times(worker, model):
    engine = build(worker, model).engine
    outputs = worker.run(engine, 0, FEEDS)
    assert outputs.keys() == {"y", "m"}
    np.testing.assert_array_equal(outputs["y"], FEEDS["x"])
    assert outputs["m"].dtype == np.int32  # as the engine has it
    assert outputs["m"].tolist() == [3]
    latency = worker.time(engine, 0, FEEDS, iterations=7, seconds=0.01, warmup=0.01)
    assert (latency.iterations, latency.median_ms, latency.device_bytes) == (7, 1.5, 7)
    assert latency.shapes == {"x": (2, 2), "n": (1,)}
    assert worker.inspect(engine, 0, FEEDS) == '{"Layers": []}'
    x, n, *_ = worker.describe(engine).tensors
    assert (x.name, x.is_input, x.shape, n.dtype) == ("x", True, (-1, 2), "int32")


def test_values_that_the_engine_cannot_hold(worker, model):
    engine = build(worker, model).engine
    with pytest.raises(CaseError, match="input 'n' holds 1099511627776, which int32 cannot hold"):
        worker.run(engine, 0, FEEDS | {"n": np.array([1 << 40])})


@pytest.mark.parametrize(
    ("profile", "status", "name", "message"),
    [
        (9, "crashed", "SIGSEGV", "The run ended with SIGSEGV."),
        (8, "timeout", None, "The run took longer than 2 s and was ended."),
        (7, "lost", None, "The connection to worker told is lost: "),
    ],
)
def test_runs_that_fail(worker, model, profile, status, name, message):
    engine = build(worker, model).engine
    worker.describe(engine)
    with pytest.raises(EngineFailed) as failed:
        worker.run(engine, profile, FEEDS, 2.0 if status == "timeout" else None)
    assert (failed.value.status, failed.value.signal) == (status, name)
    assert failed.value.message.startswith(message)
    assert failed.value.exit_code == 6
    assert worker.run(engine, 0, FEEDS).keys() == {"y", "m"}


def test_refusals_are_errors_of_their_kind(worker, model):
    engine = build(worker, model).engine
    with pytest.raises(CaseError, match=r"Input x has shape \[9, 2\]"):
        worker.run(engine, 6, FEEDS)
    with pytest.raises(RecordMismatch, match="TensorRT cannot read the engine"):
        worker.run(engine, 5, FEEDS)
    absent = EngineFile(sha256="0" * 64, bytes=1, side="worker", path="/x")
    with pytest.raises(EngineFailed, match="The worker has no file 000"):
        worker.run(absent, 0, FEEDS)


def test_an_engine_from_here(worker, tmp_path):
    path = tmp_path / "mine.engine"
    path.write_bytes(b"mine" * 5_000_000)
    engine = worker.upload(path)
    assert (engine.side, engine.bytes) == ("worker", 20_000_000)
    assert Path(engine.path).stat().st_size == engine.bytes
    assert worker.run(engine, 0, FEEDS).keys() == {"y", "m"}
    worker.forget(engine)
    assert not Path(engine.path).exists()


def lose(worker):
    """Kill both processes of a worker, as a broken connection does."""
    kill([worker.process_id, *children_of(worker.process_id)])


def test_an_engine_travels_again_where_the_cache_went_with_the_container(worker, tmp_path, cache):
    path = tmp_path / "mine.engine"
    path.write_bytes(b"mine")
    engine = worker.upload(path)
    lose(worker)
    (cache / "files" / engine.sha256).unlink()
    assert worker.run(engine, 0, FEEDS).keys() == {"y", "m"}


def test_an_engine_that_went_with_the_connection_is_lost(worker, model, tmp_path, cache):
    engine = build(worker, model).engine
    assert engine is not None
    worker.fetch(engine, tmp_path / "e.engine")
    lose(worker)
    (cache / "files" / engine.sha256).unlink()
    with pytest.raises(EngineFailed, match="is lost") as failed:
        worker.fetch(engine, tmp_path / "again.engine")
    assert failed.value.status == "lost"
    lose(worker)
    assert worker.run(engine, 0, FEEDS).keys() == {"y", "m"}


def test_nothing_is_left_behind(worker, model):
    build(worker, model)
    running = [worker.process_id, *children_of(worker.process_id)]
    assert len(running) == 2
    worker.__exit__(None, None, None)
    assert worker.process_id is None
    assert not any(map(is_running, running))


@pytest.mark.usefixtures("cache")
def test_it_ends_where_the_block_fails():
    numbers: list[Any] = []

    def use():
        with Worker("w", [sys.executable]) as worker:
            numbers.append(worker.process_id)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert not any(map(is_running, numbers))


@pytest.mark.usefixtures("cache")
def test_without_tensorrt():
    with Worker("here", [sys.executable]) as worker:
        assert worker.info.tensorrt is None
        assert "cannot import tensorrt: No module named 'tensorrt'." in worker.info.trouble
        with pytest.raises(BackendMissing, match="Worker here cannot use TensorRT: Python"):
            worker.demand_usable()


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        (["/nowhere/python3"], "/nowhere/python3: No such file", "interpreter"),
        (["/"], "/: Permission denied", "interpreter"),
        (["sh", "-c", "echo python3: command not found >&2; exit 127"], "not found", "full path"),
        (["sh", "-c", "echo 'x: Permission denied (publickey).' >&2; exit 255"], "255", "a key"),
        (["sh", "-c", "echo 'the input device is not a TTY'; exit 1"], "not a TTY", "Remove -t"),
        (["sh", "-c", "sleep 100"], "did not answer within 1 s", "interpreter"),
    ],
)
def test_a_worker_that_does_not_come_up(command, message, hint):
    with pytest.raises(BackendMissing) as missing:
        Worker("odd", command, limit=1.0 if "sleep 100" in command else 600.0).__enter__()
    assert missing.value.message.startswith("Worker odd does not answer: ")
    assert message in missing.value.message
    assert " ".join(command) in missing.value.message
    assert hint in missing.value.hint


def test_a_file_that_arrives_damaged_ends_the_worker(worker, model, tmp_path, cache):
    engine = build(worker, model).engine
    assert engine is not None
    there = cache / "files" / engine.sha256
    there.write_bytes(there.read_bytes()[::-1])
    with pytest.raises(WorkerEnded, match="sent a damaged file") as ended:
        worker.fetch(engine, tmp_path / "e.engine")
    assert ended.value.exit_code == 6
    assert is_lost(ended.value)  # it tells nothing of the engine
    assert worker.process_id is None
    assert not (tmp_path / "e.engine").exists()


def test_a_file_of_another_size_than_promised_is_refused(worker, model, tmp_path, cache):
    engine = build(worker, model).engine
    assert engine is not None
    with (cache / "files" / engine.sha256).open("ab") as file:
        file.write(b"more")
    with pytest.raises(WorkerEnded, match="damaged file"):
        worker.fetch(engine, tmp_path / "e.engine")
    assert not (tmp_path / "e.engine").exists()


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


@pytest.mark.parametrize("value", ["0", "1"])
def test_what_the_environment_does_to_tf32_is_told(fake_worker, value):
    notes = Notes()
    command = fake_worker(environment={"NVIDIA_TF32_OVERRIDE": value})
    spec = WorkerSpec("fake", tuple(command), "test")
    with usable(spec, notes) as worker:
        assert notes.lines[1] == worker.info.tf32_remark
    if value == "0":
        with usable(spec, notes, exact=True) as worker:
            assert worker.info.tf32_override == "0"


def test_where_tf32_cannot_be_kept_out_nothing_is_built(fake_worker):
    command = fake_worker(environment={"NVIDIA_TF32_OVERRIDE": "1"})
    refused = usable(WorkerSpec("fake", tuple(command), "test"), Silent(), exact=True)
    with pytest.raises(UsageError, match="results shown as FP32 may be TF32") as caught:
        refused.__enter__()
    words = shlex.split(caught.value.hint.rstrip("."))[-1]
    with usable(WorkerSpec("fake", tuple(shlex.split(words)), "hint"), Silent(), exact=True) as it:
        assert it.info.tf32_override is None
