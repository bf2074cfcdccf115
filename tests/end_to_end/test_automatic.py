"""`--metric auto`: what is recognised decides, the record tells it; unknown outputs are refused."""

import shlex

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
    ended = fix(classifier, "--metric", "auto")
    assert ended.code == 0, ended.out
    assert "recognised as class scores (rows sum to 1) and judged by top1" in " ".join(
        ended.err.split()
    )
    criterion, verdict = ended.record["criterion"], ended.record["verdict"]
    assert (criterion["metric"], criterion["recognised"][0]["metric"]) == ("auto", "top1")
    parts = verdict["metric"]["parts"]
    assert [part["metric"] for part in parts] == ["top1", "rel-max"]
    assert all(part["passed"] for part in parts)
    assert ended.kept == set()
    assert [repair["rule"] for repair in ended.record["plan"]["repairs"]] == ["scale"]
    told = " ".join(ended.out.split())
    assert "default tolerance for other outputs" in told
    assert "emulated: top1 of" in told
    assert "top1 and the largest error of other outputs are each one number over all" in told
    assert "auto 0" not in told
    assert "auto 1" not in told
    verified = call(
        "verify", "model.onnx", ended.model, "--inputs", "model.npz", "--metric", "auto"
    )
    assert verified.code == 0, verified.out


def test_what_is_unknown_has_no_metric(fix):
    ended = fix(models.small(), "--metric", "auto")
    assert ended.code == 2
    assert "recognises none of the outputs" in " ".join(ended.err.split())
    assert "[1, 8]" in ended.err
    dropped = fix(models.small(), "--metric", "auto", "--metric-drop", "0.1")
    assert dropped.code == 2
    assert "not apply to --metric auto" in " ".join(dropped.err.split())


def test_engines_are_judged_by_what_is_recognised(fix, classifier, call, fake_worker):
    worker = ("--target", "tensorrt", "--trt-command", shlex.join(fake_worker()))
    builds = ("--budget", "builds=3", "--engine", "repeat=1")
    ended = fix(classifier, "--metric", "auto", *builds, *worker)
    assert ended.code == 0, ended.out
    metric = ended.record["verdict"]["metric"]
    assert ended.record["verdict"]["level"] == "engine"
    assert [part["metric"] for part in metric["parts"]] == ["top1", "rel-max"]
    again = call("verify", ended.folder, "--inputs", "model.npz", *worker)
    assert again.code == 0, again.out + again.err
