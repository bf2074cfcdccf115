import errno
import os

import pytest

from halfwise.errors import UsageError
from halfwise.fixing.engines.conclude import CLEARLY, Early, Judging, proven_folder
from halfwise.interruption import offered
from tests import models
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.fixing.engines.test_run import proven, wide
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.engine_runs import build, latency

KEPT = names(*models.layer_norm().kept)


def judging(ready, place=None):
    heldout = ready.fixed.heldout.for_watcher(ready.listener)
    return Judging(ready.attempts, Early(ready.run, place), heldout)


def test_what_passes_is_judged_told_and_put_where_it_can_be_used(stage, tmp_path, monkeypatch):
    def link(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    ready = stage(models.layer_norm())
    monkeypatch.setattr(os, "link", link)  # then they are copied
    tried = judging(ready, tmp_path / "run.proven")
    with offered() as interruption:
        tried.early = Early(ready.run, tmp_path / "run.proven")
        assert not tried.attempt(frozenset(), "plain").passed
        assert (tried.early.told, interruption.ready) == ([], False)
        assert tried.attempt(KEPT, "the plan").passed
        assert interruption.take()
    (told,) = tried.early.told
    assert tried.early.over
    assert (told.build, told.path) == (2, str(tmp_path / "run.proven" / "build-2" / "model.engine"))
    files = {path.name for path in (tmp_path / "run.proven" / "build-2").iterdir()}
    assert files == {"model.engine", "model.fp32.onnx", "build_engine.py"}
    (line,) = (n for n in ready.listener.notes if "proven" in n)
    assert line.startswith("build 2 is proven on held-out data, FP16 with 4 nodes in FP32, ")
    # Another one is told only where it is clearly faster.
    assert tried.attempt(KEPT, "again").passed
    assert len(tried.early.told) == 1


def test_in_strong_typing_the_mixed_model_goes_along(stage, tmp_path):
    ready = stage(models.layer_norm(), version="10.0.1")
    judging(ready, tmp_path / "run.proven").attempt(KEPT, "the plan")
    files = {path.name for path in (tmp_path / "run.proven" / "build-1").iterdir()}
    assert files == {"model.engine", "model.onnx", "build_engine.py"}


def test_without_room_it_is_told_all_the_same(stage, tmp_path):
    ready = stage(models.layer_norm())
    (tmp_path / "run.proven").touch()  # no folder
    tried = judging(ready, tmp_path / "run.proven")
    tried.attempt(KEPT, "the plan")
    assert [told.path for told in tried.early.told] == [None]


def test_what_fails_on_held_out_samples_is_not_confirmed(stage):
    ready = stage(wide(), options={"max_abs": 0.06}, lossy={"scale": 1.01})
    tried = judging(ready)
    found = tried.attempt(frozenset(), "plain")
    assert not found.passed
    assert tried.heldout.joined == ["inputs[3]"]
    assert tried.early.told == []
    assert tried.attempt(names("scale"), "more").passed
    assert len(tried.early.told) == 1


def test_only_what_is_clearly_faster_is_told_after_the_first(stage):
    early = stage(models.layer_norm()).run.early
    assert early.worth(None)
    early.tell(build(1, ""), early.bench.fp32, latency(1.0), "tf32")
    assert not early.worth(None)
    assert not early.worth(latency(CLEARLY))
    assert early.worth(latency(0.99 * CLEARLY))
    early.interruption.take()
    early.tell(build(2, ""), early.bench.fp32, None, "fp16")
    assert early.worth(latency(0.9))


def test_engines_of_a_run_that_ended_early_are_not_overwritten(tmp_path):
    assert proven_folder(None, resume=False) is None
    place = tmp_path / "run.proven"
    assert proven_folder(tmp_path / "run", resume=False) == place
    place.mkdir()
    with pytest.raises(UsageError, match="has engines of a run that ended early"):
        proven_folder(tmp_path / "run", resume=False)
    assert proven_folder(tmp_path / "run", resume=True) == place


def test_nothing_joins_once_something_passed_that_was_not_judged(stage):
    # Its error would be known on the samples of before alone, on which it passes.
    ready = stage(wide(), options={"max_abs": 0.06}, lossy={"scale": 1.01})
    tried = judging(ready)
    tried.early.tell(build(1, ""), ready.run.fp32, latency(1e-6), "tf32")
    assert tried.attempt(names("shift"), "slower than what is told").passed
    tried.early.told.clear()
    assert tried.attempt(frozenset(), "plain").passed
    assert tried.heldout.joined == []


def test_what_is_off_on_calibration_samples_is_not_told_and_ends_no_search(stage):
    """TF32 is off on the one that is large; it is the fastest, and passes on what is held out."""
    s = Sketch()
    x = s.input("x", [1, 16])
    y = s.op("MatMul", x, models.weights(16, 16, seed=3, scale=0.25), name="product")
    z = s.op("Sigmoid", s.op("Tanh", x, name="tanh"), name="sigmoid")
    inputs = {"x": models.signals(1, 16, seed=3, peak=1, count=16)}
    inputs["x"][0] *= 100
    pace = {"fp32": 2.0, "tf32": 0.5, "low": 1.8, "border": 0.0}
    ready = stage(Ill(s.proto(y, z), inputs), options={"max_abs": 5e-3}, pace=pace)
    found = proven(ready)
    tf32 = next(row for row in found.engines.results if row.rung == "tf32")
    assert tf32.verdict.passed
    assert tf32.excess > 1
    assert tf32.build.number not in [told.build for told in found.engines.proven]
    assert not found.engines.spared
    assert found.keep == {"product"}
