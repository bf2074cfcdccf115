"""Outputs are judged by their use unless the user says what is right."""

import json
import shlex

import numpy as np
import onnx
import pytest

from tests import models
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def classifier():
    """Class probabilities beside hidden values whose square overflows in FP16."""
    s = Sketch()
    x = s.input("x", [1, 16])
    p = s.op(
        "Softmax", s.op("MatMul", x, models.weights(16, 6, seed=1, scale=0.3), name="m"), name="p"
    )
    h = s.op("Sqrt", s.op("Mul", *2 * [s.op("Mul", x, 1e3, name="up")], name="square"), name="h")
    return models.Ill(s.proto(p, h), {"x": models.signals(1, 16, seed=3)})


def test_all_that_is_recognised_holds_beside_the_tolerance_of_the_rest(fix, classifier, call):
    ended = fix(classifier)
    assert ended.code == 0, ended.out
    criterion, verdict = ended.record["criterion"], ended.record["verdict"]
    assert criterion["metric"] == "auto"
    assert [
        (one["kind"], one["metric"], one["outputs"], one["evidence"])
        for one in criterion["recognised"]
    ] == [("class-scores", metric, ["p_out"], ["rows-sum"]) for metric in ("top1", "confidence")]
    parts = verdict["metric"]["parts"]
    assert [part["metric"] for part in parts] == ["top1", "confidence", "rel-max"]
    assert all(part["passed"] for part in parts)
    assert ended.kept == set()
    assert [repair["rule"] for repair in ended.record["plan"]["repairs"]] == ["scale"]
    told = " ".join(ended.out.split())
    assert "p_out judged as class scores (rows sum to 1)" in told
    assert "top1 ≥ 0.99, confidence ≥ 0.9" in told
    assert "other outputs: rel max ≤ 0.01" in told
    assert "auto 0" not in told
    assert "auto 1" not in told
    # `verify` and `--metric auto` ask the same.
    verifying = ("verify", "model.onnx", ended.model, "--inputs", "model.npz", "-o")
    for folder, options in (("default", ()), ("named", ("--metric", "auto"))):
        verified = call(*verifying, folder, *options, folder=folder)
        assert verified.code == 0, verified.out
        assert verified.record["criterion"] == criterion


def detector() -> models.Ill:
    """Centres and sizes, scores and classes that a NonMaxSuppression leaves, without names."""
    s = Sketch()
    x = s.input("x", [1, 16])
    places = s.op("MatMul", x, models.weights(16, 32, seed=1, scale=0.1), name="m")
    sizes = s.op("Exp", s.op("Reshape", places, [1, 8, 4]), name="sizes")
    boxes = s.op("Mul", sizes, np.array([200.0, 200, 30, 30], np.float32), name="boxes")
    logits = s.op("MatMul", x, models.weights(16, 16, seed=2, scale=0.3), name="n")
    scores = s.op("Sigmoid", s.op("Reshape", logits, [1, 2, 8]), name="scores")
    limits = ([8], np.array([0.5], np.float32), np.array([0.35], np.float32))
    chosen = s.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=1)
    at = s.op("Gather", chosen, [0, 2], axis=1)
    kinds = s.op("Gather", chosen, s.constant(np.array(1)), axis=1, name="c")
    outputs = (s.op("GatherND", boxes, at, name="a"), s.op("GatherND", scores, chosen, name="b"))
    return models.Ill(s.proto(*outputs, kinds), {"x": models.signals(1, 16, seed=3)})


def test_what_a_suppression_leaves_is_judged_as_boxes(fix):
    ended = fix(detector())
    assert ended.code == 0, ended.out
    one = ended.record["criterion"]["recognised"][0]
    assert (one["kind"], one["outputs"]) == ("boxes", ["a_out", "b_out", "c_out"])
    assert "suppressed" in one["evidence"]
    assert not one["boxes"]["corners"]
    told = " ".join(ended.out.split())
    assert "judged as boxes (beside scores, overlapping ones are dropped" in told
    assert ended.kept == set()


def probed(sharper: float) -> models.Ill:
    """Probabilities of eight classes, from logits times a factor."""
    s = Sketch()
    x = s.input("x", [1, 8])
    p = s.op("Softmax", s.op("Mul", x, sharper, name="logits"), name="p")
    return models.Ill(s.proto(p), {"x": models.signals(1, 8, seed=3, peak=2)})


def test_who_asks_for_every_number_gets_it(fix, saved, call):
    """A candidate whose class stays, and whose probability moves by less than 0.1."""
    ended = fix(models.small(), "--strict")
    assert (ended.code, ended.record["criterion"]["rel_max"]) == (0, 0.01)
    model, inputs = saved(probed(1.0))
    onnx.save(probed(1.1).proto, "near.onnx")
    onnx.save(probed(4.0).proto, "sure.onnx")

    def code(candidate: str, *options: str) -> int:
        found: int = call("verify", model, candidate, "--inputs", inputs, *options).code
        return found

    assert code("near.onnx") == 0
    assert code("near.onnx", "--strict") == code("near.onnx", "--rel-max", "0.01") == 10
    # The same classes, with other confidence.
    assert code("sure.onnx", "--metric", "top1") == 0
    assert code("sure.onnx") == 10


def test_labels_need_no_metric(fix, tmp_path):
    ill = probed(1.0)
    classes = np.asarray(ill.inputs["x"]).reshape(-1, 8).argmax(axis=1)
    classes[: len(classes) // 2] += 1
    (tmp_path / "labels.json").write_text(json.dumps((classes % 8).tolist()))
    ended = fix(ill, "--labels", tmp_path / "labels.json")
    assert ended.code == 0, ended.out
    top1, sure = ended.record["verdict"]["metric"]["parts"]
    assert (top1["metric"], sure["metric"]) == ("top1", "confidence")
    assert top1["required"] == pytest.approx(top1["value"] - 0.01)
    assert top1["required"] < 0.9
    assert f"top1 ≥ {top1['required']:.3g}, confidence ≥ 0.9" in " ".join(ended.out.split())


def test_labels_that_nothing_reads_are_refused(fix, tmp_path):
    (tmp_path / "labels.json").write_text(json.dumps([0] * 8))
    ended = fix(models.small(), "--labels", tmp_path / "labels.json")
    assert ended.code == 2
    assert "Nothing in the outputs is recognised that labels could judge." in ended.err


def test_what_is_unknown_is_held_to_the_default_tolerance(fix):
    ended = fix(models.small(), "--metric", "auto")
    assert (ended.code, ended.record["criterion"]["metric"]) == (0, None)
    assert "allowed: rel max ≤ 0.01" in ended.out
    dropped = fix(models.small(), "--metric", "auto", "--metric-drop", "0.1")
    assert dropped.code == 2
    assert "not apply to --metric auto" in " ".join(dropped.err.split())


def test_engines_are_judged_by_what_is_recognised(fix, classifier, fake_worker):
    worker = ("--target", "tensorrt", "--trt-command", shlex.join(fake_worker()))
    builds = ("--budget", "builds=3", "--engine", "repeat=1")
    ended = fix(classifier, *builds, *worker)
    assert ended.code == 0, ended.out
    metric = ended.record["verdict"]["metric"]
    assert ended.record["verdict"]["level"] == "engine"
    assert [part["metric"] for part in metric["parts"]] == ["top1", "confidence", "rel-max"]
