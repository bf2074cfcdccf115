from pathlib import Path
from typing import NamedTuple

import onnx
import pytest

from halfwise.errors import RunFailed
from halfwise.fixing.engines.workbench import Fetched, ModelFiles, save
from halfwise.graph.loading import network_from_proto
from halfwise.store import FP32_FILE
from halfwise.tensorrt.failures import EngineFailed
from tests import models


def test_each_file_is_written_once(tmp_path):
    network, files = network_from_proto(models.layer_norm().proto), ModelFiles(tmp_path)
    path = files.file("fp32", FP32_FILE, lambda: network)
    assert path.name == FP32_FILE
    assert files.file("fp32", FP32_FILE, lambda: pytest.fail("written twice")) == path
    assert files.file("other", FP32_FILE, lambda: network) != path
    assert {n.name for n in onnx.load(path).graph.node} >= models.layer_norm().kept


def test_many_weights_lie_beside_the_model(tmp_path):
    made = network_from_proto(models.large_weights().proto)
    save(made.model, tmp_path / "m.onnx")
    onnx.checker.check_model(tmp_path / "m.onnx")


class Room(NamedTuple):
    free: int


@pytest.fixture
def built(stage, tmp_path):
    """A stage, two engines, and a place for them."""
    ready = stage(models.layer_norm())
    builds, model = ready.bench.builds, ready.bench.fp32
    engines = [builds.build(model, low or "fp32", low=low).engine for low in (None, "fp16")]
    (tmp_path / "here").mkdir()
    return ready, engines, tmp_path / "here"


def test_a_name_has_one_engine(built):
    ready, (first, second), folder = built
    fetched = Fetched(ready.worker, folder)
    here = fetched.bring("plan", first)
    assert (here.sha256, here.side) == (first.sha256, "here")
    assert fetched.bring("other", first) is here
    fetched.bring("plan", second)
    assert {p.name for p in folder.iterdir()} == {f"{e.sha256}.engine" for e in (first, second)}
    fetched.bring("other", second)
    assert {p.name for p in folder.iterdir()} == {f"{second.sha256}.engine"}
    sample = ready.case.calibration[0]
    for engine in (first, second):  # what is dropped here is still there
        assert ready.worker.run(engine, 0, sample).keys() == {"gamma_out"}


def test_what_lies_here_outlives_the_worker_s_files(built, tmp_path):
    ready, (first, second), folder = built
    Fetched(ready.worker, folder).bring("plan", first)
    ready.worker._link.close()
    for file in (tmp_path / "worker-cache" / "files").iterdir():
        file.unlink()
    sample = ready.case.calibration[0]
    assert ready.worker.run(first, 0, sample).keys() == {"gamma_out"}
    with pytest.raises(EngineFailed, match="has no file"):
        ready.worker.run(second, 0, sample)


def test_without_room_engines_stay_there(built):
    ready, (first, second), folder = built
    fetched = Fetched(ready.worker, folder / "missing")
    fetched.keep("plan", first)
    with pytest.raises(FileNotFoundError):
        fetched.bring("plan", first)
    assert fetched.deliver(first, folder / "model.engine").path == str(folder / "model.engine")
    ready.worker.forget(second)
    with pytest.raises(RunFailed, match="has no file"):
        Fetched(ready.worker, folder).keep("plan", second)


@pytest.mark.parametrize(("missing", "kept"), [(1, 0), (0, 1)])
def test_room_is_left_for_models(built, monkeypatch, missing, kept):
    ready, (first, _), folder = built
    room = Room(2 * first.bytes - missing)
    monkeypatch.setattr("halfwise.fixing.engines.workbench.disk_usage", lambda _: room)
    Fetched(ready.worker, folder).keep("plan", first)
    assert len(list(folder.iterdir())) == kept


def test_what_was_tidied_away_is_fetched_again(built):
    ready, (first, _), folder = built
    fetched = Fetched(ready.worker, folder)
    kept = fetched.bring("plan", first)
    assert fetched.deliver(first, folder / "model.engine") == kept
    Path(kept.path).unlink()
    assert fetched.deliver(first, folder / "model.engine").path == str(folder / "model.engine")
    assert (folder / "model.engine").stat().st_size == first.bytes
