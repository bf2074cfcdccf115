import hashlib
import os
import sys
from pathlib import Path

import onnx
import pytest

from halfwise.errors import BackendMissing, CaseError
from halfwise.graph.loading import load_network
from halfwise.tensorrt import link
from halfwise.tensorrt.failures import EngineFailed, WorkerEnded
from halfwise.tensorrt.link import Link, Log
from tests.fake_tensorrt.start import once_only
from tests.workers import told_source

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def linked(monkeypatch):
    monkeypatch.setattr(link, "worker_source", told_source)
    linked = Link("told", [sys.executable], 30)
    yield linked
    linked.close()


def test_it_comes_up_when_it_is_asked(linked):
    assert linked.process_id is None
    linked.ask({"op": "have", "hashes": []})
    first = linked.process_id
    linked.close()
    linked.ask({"op": "have", "hashes": []})
    assert linked.process_id not in (None, first)


def test_what_does_not_come_up_again_is_told_without_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(link, "worker_source", told_source)
    linked = Link("told", once_only([sys.executable], tmp_path / "started"), 30)
    linked.connect()
    linked.close()
    with pytest.raises(EngineFailed) as lost:
        linked.ask({"op": "have", "hashes": []})
    assert lost.value.status == "lost"
    assert lost.value.message.endswith("is lost: it does not restart: sh ended with status 1.")


def test_a_file_travels_once(linked, tmp_path, monkeypatch):
    file = tmp_path / "f"
    file.write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    linked.need({empty: file})
    monkeypatch.setattr(linked, "exchange", None)
    linked.need({empty: file})


def test_a_library_that_crashes_when_it_is_imported(monkeypatch, tmp_path):
    (tmp_path / "tensorrt.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BackendMissing, match="Importing TensorRT ended with SIGSEGV"):
        Link("odd", [sys.executable], 30).connect()


def test_a_cache_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    linked = Link("here", [sys.executable], 30)
    linked.connect()
    linked.close()
    assert linked.cache.startswith(str(tmp_path / "halfwise-worker-"))


def test_what_died_tells_how(linked):
    with pytest.raises(EngineFailed, match="The build ended its process with status 9") as died:
        linked.ask({"op": "build", "config": {"plugins": ["exit9"]}}, what="The build")
    assert died.value.status == "crashed"


def test_the_log_keeps_the_end_and_every_complaint():
    log = Log()
    for number in range(500):
        severity = "warning" if number % 2 else "info"
        log.hear({"kind": "log", "severity": severity, "text": str(number)})
    log.hear({"kind": "started"})
    assert list(log.last)[-2:] == ["info: 498", "warning: 499"]
    assert len(log.last) == 30
    assert log.complaints[:2] == ["warning: 1", "warning: 3"]
    assert len(log.complaints) == 200
    assert log.seconds >= 0


def test_the_hash_of_a_model_is_that_of_the_network(model):
    files = link.model_files(model)
    assert files.main == "m.onnx"
    assert list(files.paths) == list(files.hashes) == ["m.onnx", "w.bin"]
    assert files.sha256 == load_network(model).sha256
    assert files.hashes["w.bin"] == link.file_sha256(model.parent / "w.bin")


def test_external_data_that_is_missing(model):
    (model.parent / "w.bin").unlink()
    with pytest.raises(CaseError, match=r"w\.bin"):
        link.model_files(model)


def test_what_is_no_model(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no protobuf")
    with pytest.raises(CaseError, match="cannot be read as ONNX"):
        link.model_files(tmp_path / "m.onnx")
    with pytest.raises(CaseError, match="cannot be read as ONNX"):
        link.model_files(tmp_path / "absent.onnx")


def test_a_model_in_one_file_has_the_hash_of_the_file(model, tmp_path):
    onnx.save(onnx.load(model), tmp_path / "one.onnx")
    files = link.model_files(tmp_path / "one.onnx")
    assert files.sha256 == files.hashes["one.onnx"]


@pytest.mark.parametrize("size", [0, 1, link.CHUNK, link.CHUNK + 1, 2 * link.CHUNK])
def test_there_and_back(linked, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    linked.need({sha256: tmp_path / "a"})
    linked.take(sha256, size, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data
    assert (tmp_path / "b").stat().st_mode == (tmp_path / "a").stat().st_mode


def test_what_arrives_damaged_leaves_nothing(linked, tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    sha256 = hashlib.sha256(b"abc").hexdigest()
    linked.need({sha256: tmp_path / "a"})
    (Path(linked.cache) / "files" / sha256).write_bytes(b"cba")
    (tmp_path / "b").write_bytes(b"older")
    with pytest.raises(WorkerEnded, match="sent a damaged file"):
        linked.take(sha256, 3, tmp_path / "b")
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"a", "b"}
    assert (tmp_path / "b").read_bytes() == b"older"
