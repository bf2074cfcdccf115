"""What no sample tests never passes, and says so by name."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.control import MATRIX, graph
from tests.models import Ill, signals, small
from tests.unit.graph.sketch import Sketch, f32

COUNT = 8


def choice(flags) -> Ill:
    s = Sketch()
    x, flag = s.input("x", [4, 8]), s.input("flag", [], TensorProto.BOOL)
    bodies = {
        f"{side}_branch": graph(
            side, [helper.make_node("Tanh", [x], [f"{side}_y"])], (), [(f"{side}_y", MATRIX)]
        )
        for side in ("then", "else")
    }
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **bodies))
    data = {"x": signals(4, 8, seed=2, count=COUNT), "flag": np.array(flags)}
    return Ill(s.proto(s.op("Relu", "chosen", name="relu")), data)


def test_a_branch_that_never_runs_is_not_judged(fix, call):
    ended = fix(choice([True] * COUNT))
    assert ended.code == 10
    assert ended.out.startswith("NOT JUDGED in emulation on 2 held-out samples")
    told = "If node choose: else_branch never ran, on any sample; input"
    for words in (told, "Why it is not judged", "--keep choose", "--allow unjudged"):
        assert words in ended.out
    verdict = ended.record["verdict"]
    assert (verdict["passed"], verdict["judged"]) == (False, False)
    assert [(u["kind"], u["name"], u["body"]) for u in verdict["unjudged"]] == [
        ("never-ran", "choose", "else_branch")
    ]
    judge = ("verify", "model.onnx", ended.model, "--inputs", "model.npz")
    judged = call(*judge)
    assert judged.code == 10
    for words in (told, "Give samples that test what is not judged", "--allow unjudged"):
        assert words in judged.out
    assert call(*judge, "--allow", "unjudged").code == 0
    # As the FP32 model has it, nothing in it can be wrong.
    assert call("verify", "model.onnx", "model.onnx", "--inputs", "model.npz").code == 0


def test_what_runs_on_some_sample_is_judged(fix):
    ended = fix(choice([True, False] * (COUNT // 2)))
    assert ended.code == 0, ended.out
    assert ended.record["verdict"]["unjudged"] == []


@pytest.fixture
def verified(call, saved):
    """Verify a model, one node, against itself."""

    def verified(op, *operands, options=()):
        s = Sketch()
        y = s.op(op, s.input("x", [8, 8]), *operands, name="y")
        model, inputs = saved(Ill(s.proto(y), {"x": signals(8, 8, seed=3, count=COUNT)}))
        return call("verify", model, model, "--inputs", inputs, *options)

    return verified


@pytest.mark.parametrize(
    ("operands", "options", "why"),
    [
        (("Add", f32(np.nan)), (), "output y_out: FP32 itself gives no finite value"),
        (("Mul", f32(0)), (), "output y_out: zeros would pass for its values"),
        (("Mul", f32(1e-3)), ("--require", "max-abs=1"), "zeros would pass"),
        (("Sub", f32(9)), ("--metric", "mask-iou"), "mask-iou: FP32 itself finds nothing"),
        (("Mul", f32(0)), ("--metric", "psnr"), "psnr has no peak"),
    ],
)
def test_outputs_that_nothing_tests_are_not_judged(verified, operands, options, why):
    ended = verified(*operands, options=options)
    assert ended.code == 10
    assert why in " ".join(ended.out.split())
    assert verified(*operands, options=(*options, "--allow", "unjudged")).code == 0


METRIC = """
import numpy as np
calls = []

def score(references, candidates, labels):
    calls.append(None)
    print("looking at", len(candidates))
    {}
"""


@pytest.mark.parametrize(
    ("body", "code", "why"),
    [
        ("return 0.5", 10, "score would accept near-zero values"),
        ("return float('inf')", 3, "is inf for the reference's own outputs"),
        ("return 1.0 + len(calls)", 3, "on a second call"),
        ("return '0.5'", 3, "returned str, not one number"),
        ("candidates[0]['y_out'][:] = 0; return 1.0", 3, "read-only"),
        ("return float(np.mean([(c['y_out'] > 0).mean() for c in candidates]))", 0, ""),
    ],
    ids=["constant", "infinite", "state", "text", "writes", "sound"],
)
def test_a_metric_that_cannot_decide_does_not(verified, tmp_path, body, code, why):
    (tmp_path / "score.py").write_text(METRIC.format(body))
    options = ("--metric", "score.py:score", "--metric-drop", "0.01", "--json")
    ended = verified("Tanh", options=options)
    assert ended.code == code, ended.out + ended.err
    assert why in " ".join((ended.out + ended.err).split())
    if ended.out:
        assert json.loads(ended.out)["verdict"]["passed"] == (code == 0)


@pytest.mark.parametrize(
    ("shift", "code", "why"),
    [
        (0, 0, ""),
        (1, 3, "8 classes: 0 to 7"),
        (-1, 3, "is class -1"),
        (None, 10, "Do the labels fit?"),
    ],
    ids=["sound", "from-1", "below-0", "wrong"],
)
def test_labels_that_do_not_fit_decide_nothing(verified, tmp_path, shift, code, why):
    classes = signals(8, 8, seed=3, count=COUNT).argmax(-1)
    labels = (classes + 4) % 8 if shift is None else classes + shift
    labels[0, 0], labels[1, 0] = (
        (labels[0, 0], labels[1, 0]) if shift is None else (shift, 7 + shift)
    )
    np.save(tmp_path / "labels.npy", labels)
    ended = verified("Tanh", options=("--metric", "top1", "--labels", "labels.npy"))
    assert ended.code == code, ended.out + ended.err
    assert why in " ".join((ended.out + ended.err).split())


def test_held_out_data_that_copy_the_calibration_are_left_out(call, saved):
    model, inputs = saved(small())
    ended = call("fix", model, "--inputs", inputs, "--heldout", inputs, "-o", "run")
    assert ended.code == 10
    verdict = ended.record["verdict"]
    assert not verdict["unseen"]
    assert [failure["kind"] for failure in verdict["failures"]] == ["seen"]
    assert "8 of 8 held-out samples" in " ".join(ended.out.split())


def test_few_positives_that_are_lost_fail(call, saved):
    """Of 400 elements two are above the threshold; the candidate finds none of them."""
    found = []
    for limit in (1.0, 2.0):
        s = Sketch()
        y = s.op("Greater", s.input("x", [1, 400]), f32(limit), name="y")
        values = -np.abs(signals(1, 400, seed=4, count=COUNT)) - 1
        values[:, :, 7:9] = 1.5
        found.append(saved(Ill(s.proto(y), {"x": values}), f"limit_{limit}"))
    (model, inputs), (other, _) = found
    ended = call("verify", model, other, "--inputs", inputs)
    assert ended.code == 10
    assert ended.out.startswith("FAILED")
    assert "0 of those that differ from the most common value" in " ".join(ended.out.split())
    assert call("verify", model, model, "--inputs", inputs).code == 0
