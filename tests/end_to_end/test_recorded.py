"""`halfwise verify` on outputs that something else computed, and inputs of Polygraphy's."""

import numpy as np
import onnx
import onnxruntime
import pytest

from tests import models
from tests.polygraphy_files import write_feeds
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def recorded(saved, tmp_path):
    """A model, Polygraphy's file of inputs, an archive of FP16 outputs, and the outputs."""
    ill = models.small()
    model, _ = saved(ill)
    session = onnxruntime.InferenceSession(model)
    feeds = [ill.sample(i) for i in range(models.COUNT)]
    outputs = [{"relu_out": session.run(None, f)[0].astype(np.float16)} for f in feeds]
    inputs = write_feeds(tmp_path / "in.json", feeds)
    np.savez(tmp_path / "out.npz", relu_out=np.stack([o["relu_out"] for o in outputs]))
    return model, inputs, tmp_path / "out.npz", outputs


def test_inputs_are_read_by_fix_and_verify(recorded, call):
    model, inputs, _, _ = recorded
    fixed = call("fix", model, "--inputs", inputs, "--heldout", inputs, "-o", "run")
    # Held-out samples that are copies are left out.
    assert fixed.code == 10
    fixed = call(*("fix", model, "--inputs", inputs, "-o", "other"), folder="other")
    assert fixed.code == 0, fixed.err
    assert fixed.record["verdict"]["samples"] == ["in.json[3]", "in.json[7]"]


def test_recorded_outputs_are_judged_against_fp32(recorded, call):
    model, inputs, outputs, given = recorded
    ended = call("verify", model, outputs, "--inputs", inputs, "-o", "run")
    assert ended.code == 0, ended.err
    verdict = ended.record["verdict"]
    assert (verdict["level"], verdict["runner"]) == ("recorded", "out.npz")
    assert verdict["intermediate_nonfinite"] == []
    peak = max(float(np.abs(o["relu_out"]).max()) for o in given)
    assert 0 < verdict["outputs"]["relu_out"]["max_abs"] <= peak * 2**-11
    assert call("report", "run").out == ended.out


def test_infinite_outputs_fail(recorded, call):
    model, inputs, outputs, given = recorded
    broken = np.full_like(np.load(outputs)["relu_out"], np.inf)
    np.savez(outputs, relu_out=broken)
    ended = call("verify", model, outputs, "--inputs", inputs, "-o", "run")
    assert ended.code == 10
    count = models.COUNT * given[0]["relu_out"].size
    assert ended.record["verdict"]["outputs"]["relu_out"]["nonfinite"] == count


def test_a_metric_judges_recorded_outputs(recorded, call):
    model, _, outputs, _ = recorded
    snr = ("--metric", "snr", "--metric-drop", "0")
    ended = call("verify", model, outputs, "--inputs", "model.npz", *snr)
    assert ended.code == 10
    ended = call("verify", model, outputs, "--inputs", "model.npz")
    assert ended.code == 0


def test_what_has_no_meaning_is_refused(recorded, refused):
    model, inputs, outputs, _ = recorded
    verify = ("verify", model, outputs, "--inputs", inputs)
    assert "--accumulate" in refused(2, *verify, "--accumulate", "fp16")
    np.savez(outputs, other=np.zeros((models.COUNT, 8)))
    assert "The candidate's outputs are 'other', the model's 'relu_out'." in refused(3, *verify)
    np.savez(outputs, relu_out=np.zeros((models.COUNT, 1, 7)))
    assert "is 1×7; expected 1×8" in refused(3, *verify)
    assert "expected an .npz file" in refused(3, "verify", model, inputs, "--inputs", inputs)


@pytest.fixture
def every_tensor(tmp_path):
    """A model with two outputs of which the first is read on, its feeds, and all its tensors."""
    s = Sketch()
    x = s.input("x", [1, 4])
    a = s.op("Mul", x, 3.0, name="a")
    b = s.op("Add", a, 1.0, name="b")
    onnx.save(s.proto(b), tmp_path / "plain.onnx")
    onnx.save(s.proto(a, s.op("Shape", a, name="size"), b), tmp_path / "every.onnx")
    np.savez(tmp_path / "in.npz", x=models.signals(1, 4, seed=5))
    names = ["a_out", "b_out", "size_out"]
    session = onnxruntime.InferenceSession(tmp_path / "every.onnx")
    samples = np.load(tmp_path / "in.npz")["x"]
    found = zip(*(session.run(names, {"x": x}) for x in samples), strict=True)
    stacked = {name: np.stack(arrays) for name, arrays in zip(names, found, strict=True)}
    np.savez(tmp_path / "out.npz", odd=np.zeros(5), **stacked)  # type: ignore[arg-type]


@pytest.mark.usefixtures("every_tensor")
def test_records_may_hold_every_tensor(call):
    ended = call("verify", "plain.onnx", "out.npz", "--inputs", "in.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert set(ended.record["verdict"]["outputs"]) == {"b_out"}
    (warning,) = ended.record["warnings"]
    assert "only the candidate has them as outputs: a_out" in warning


@pytest.mark.usefixtures("every_tensor")
def test_models_may_give_out_every_tensor(call, refused):
    more = call(
        "verify", "plain.onnx", "every.onnx", "--inputs", "in.npz", "-o", "more", folder="more"
    )
    assert more.code == 0, more.err
    assert set(more.record["verdict"]["outputs"]) == {"b_out"}
    # Of the model's outputs those may lack that its own nodes read: a_out, but not size_out.
    told = refused(3, "verify", "every.onnx", "plain.onnx", "--inputs", "in.npz")
    assert "outputs are 'b_out'" in told
    both = call(
        "verify", "every.onnx", "out.npz", "--inputs", "in.npz", "-o", "both", folder="both"
    )
    assert both.code == 0, both.err
    assert set(both.record["verdict"]["outputs"]) == {"a_out", "b_out", "size_out"}


@pytest.mark.usefixtures("every_tensor")
def test_inner_tensors_that_the_candidate_does_not_give_out(call, tmp_path):
    proto = onnx.load(tmp_path / "every.onnx")
    del proto.graph.output[1]
    onnx.save(proto, tmp_path / "marked.onnx")
    ended = call("verify", "marked.onnx", "plain.onnx", "--inputs", "in.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert set(ended.record["verdict"]["outputs"]) == {"b_out"}
    assert "only the model has them as outputs" in ended.record["warnings"][0]
