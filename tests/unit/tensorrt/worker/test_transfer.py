import hashlib
import os

import onnx
import pytest

from halfwise.errors import CaseError, RunFailed
from halfwise.graph.loading import load_network
from halfwise.tensorrt.worker import transfer
from halfwise.tensorrt.worker.transfer import keep_aside


def test_the_hash_of_a_model_is_that_of_the_network(model):
    files = transfer.model_files(model)
    assert files.main == "m.onnx"
    assert list(files.paths) == list(files.hashes) == ["m.onnx", "w.bin"]
    assert files.sha256 == load_network(model).sha256
    assert files.hashes["w.bin"] == transfer.file_sha256(model.parent / "w.bin")


def test_external_data_that_is_missing(model):
    (model.parent / "w.bin").unlink()
    with pytest.raises(CaseError, match=r"w\.bin"):
        transfer.model_files(model)


def test_what_is_no_model(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no protobuf")
    with pytest.raises(CaseError, match="cannot be read as ONNX"):
        transfer.model_files(tmp_path / "m.onnx")
    with pytest.raises(CaseError, match="cannot be read as ONNX"):
        transfer.model_files(tmp_path / "absent.onnx")


def test_a_model_in_one_file_has_the_hash_of_the_file(model, tmp_path):
    onnx.save(onnx.load(model), tmp_path / "one.onnx")
    files = transfer.model_files(tmp_path / "one.onnx")
    assert files.sha256 == files.hashes["one.onnx"]


class Side:
    """The other side, as the worker does it."""

    def __init__(self, data=b""):
        self.data, self.requests, self.damage = data, [], False

    def ask(self, request, payload, expected):
        self.requests.append(request)
        if request["op"] == "put":
            assert request["offset"] == len(self.data)
            self.data += payload
            return {}, b""
        chunk = self.data[request["offset"] :][: request["length"]]
        answer = {"total": len(self.data)}
        assert not expected.fits(answer, len(chunk))
        return answer, memoryview(chunk[::-1] if self.damage else chunk)


@pytest.mark.parametrize("size", [0, 1, transfer.CHUNK, transfer.CHUNK + 1, 2 * transfer.CHUNK])
def test_there_and_back(tmp_path, size):
    data, side = os.urandom(size), Side()
    (tmp_path / "a").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    transfer.put(side.ask, sha256, tmp_path / "a")
    assert side.data == data
    assert [request["last"] for request in side.requests][:-1].count(True) == 0
    assert side.requests[-1]["last"]
    transfer.get(side.ask, sha256, size, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data


def test_what_arrives_damaged_leaves_nothing(tmp_path):
    side = Side(b"abc")
    side.damage = True
    (tmp_path / "b").write_bytes(b"older")
    with pytest.raises(transfer.Damaged):
        transfer.get(side.ask, hashlib.sha256(b"abc").hexdigest(), 3, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_bytes() == b"older"


def test_the_mode_is_that_of_any_new_file(tmp_path):
    (tmp_path / "new").write_bytes(b"")
    transfer.get(Side(b"abc").ask, hashlib.sha256(b"abc").hexdigest(), 3, tmp_path / "b")
    assert (tmp_path / "b").stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_file_without_room_is_not_asked_for(tmp_path):
    side = Side(b"abc")
    with pytest.raises(RunFailed, match="has room for"):
        transfer.get(side.ask, hashlib.sha256(b"abc").hexdigest(), 1 << 60, tmp_path / "b")
    assert not side.requests
    assert not list(tmp_path.iterdir())


def test_a_cache_that_is_not_taken_is_kept(tmp_path):
    cache = tmp_path / "t.cache"
    for number, content in enumerate((b"first", b"second", b"third")):
        cache.write_bytes(content)
        kept = tmp_path / ("t.cache.old" if not number else f"t.cache.old{number + 1}")
        assert f"It is {kept} now" in keep_aside(cache)
        assert kept.read_bytes() == content
        assert not cache.exists()


def test_one_that_is_gone_is_no_error(tmp_path):
    assert "did not take" in keep_aside(tmp_path / "t.cache")
