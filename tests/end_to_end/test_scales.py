"""Boxes beside scores in one output: 1 % of 640 allows any score, 1 % of a score does not."""

import numpy as np
import onnx
import pytest

from tests.end_to_end.conftest import fixing
from tests.unit.graph.sketch import Sketch, f32

SLICES = "slices 4-7 of axis 1"


def detector(*, flat: bool = False) -> onnx.ModelProto:
    """Return a model of [1, 4, 60] twice → [1, 8, 60]: boxes in pixels, then scores.

    The scores' logits go through a sum of 4,000, where FP16 has steps of 4.

    Args:
        flat: All scores are 0.5 instead.
    """
    s = Sketch()
    boxes, features = (s.input(name, [1, 4, 60]) for name in ("boxes", "features"))
    pixels = s.op("Add", s.op("Mul", boxes, f32(300.0), name="scale"), f32(320.0), name="pixels")
    logits = s.op("Add", s.op("Mul", features, f32(3.0), name="gain"), f32(4000.0), name="up")
    logits = s.op("Sub", logits, f32(4000.0), name="down")
    if flat:
        logits = s.op("Mul", logits, f32(0.0), name="nothing")
    scores = s.op("Sigmoid", logits, name="score")
    return s.proto(s.op("Concat", pixels, scores, name="joined", axis=1))


@pytest.fixture
def files(tmp_path):
    walks = np.random.default_rng(0).standard_normal((2, 24, 1, 4, 60)).cumsum(-1)
    boxes, features = f32(walks / np.abs(walks).max())
    np.savez(tmp_path / "model.npz", boxes=boxes, features=features)
    onnx.save(detector(), tmp_path / "model.onnx")
    onnx.save(detector(flat=True), tmp_path / "flat.onnx")


@pytest.mark.usefixtures("files")
def test_scores_that_are_all_a_half_fail(call):
    ended = call("verify", "model.onnx", "flat.onnx", "--inputs", "model.npz", "-o", "run")
    assert ended.code == 10, ended.err
    verdict = ended.record["verdict"]
    (output,) = verdict["outputs"].values()
    assert output["rel_max"] < 0.01
    boxes, scores = sorted(output["groups"], key=lambda group: -group["scale"])
    assert (scores["axis"], scores["ranges"], scores["passed"]) == (1, [[4, 7]], False)
    assert (boxes["ranges"], boxes["passed"]) == ([[0, 3]], True)
    (failure,) = verdict["failures"]
    assert failure["kind"] == "tolerance"
    assert scores["worst_sample"] in failure["names"].values()
    assert SLICES in ended.out
    assert "too much" in ended.out


@pytest.mark.usefixtures("files")
def test_what_the_scores_need_is_kept(call):
    ended = call(*fixing("model.onnx"))
    assert ended.code == 0, ended.err
    assert {"up", "down"} <= ended.kept
    assert not ended.kept & {"scale", "pixels"}
    assert SLICES in ended.out
