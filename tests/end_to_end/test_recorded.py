"""`halfwise verify` on outputs that something else computed, and inputs of Polygraphy's."""

import numpy as np
import onnxruntime
import pytest

from tests import models
from tests.polygraphy_files import write_feeds, write_runners


@pytest.fixture
def recorded(saved, tmp_path):
    """A model, Polygraphy's files of inputs and FP16 outputs, and the outputs."""
    ill = models.small()
    model, _ = saved(ill)
    session = onnxruntime.InferenceSession(model)
    feeds = [ill.sample(i) for i in range(models.COUNT)]
    outputs = [{"relu_out": session.run(None, f)[0].astype(np.float16)} for f in feeds]
    inputs = write_feeds(tmp_path / "in.json", feeds)
    broken = [{"relu_out": np.full_like(o["relu_out"], np.inf)} for o in outputs]
    runners = {"trt-runner-N0": outputs, "trt-runner-N1": broken}
    return model, inputs, write_runners(tmp_path / "out.json", runners), outputs


def test_inputs_are_read_by_fix_and_verify(recorded, call):
    model, inputs, _, _ = recorded
    fixed = call("fix", model, "--inputs", inputs, "--heldout", inputs, "-o", "run")
    assert fixed.code == 10, "held-out samples that are copies are left out"
    fixed = call(*("fix", model, "--inputs", inputs, "-o", "other"), folder="other")
    assert fixed.code == 0, fixed.err
    assert fixed.record["verdict"]["samples"] == ["in.json[3]", "in.json[7]"]


def test_recorded_outputs_are_judged_against_fp32(recorded, call):
    model, inputs, outputs, given = recorded
    arguments = ("verify", model, outputs, "--inputs", inputs, "-o", "run", "--runner")
    ended = call(*arguments, "trt-runner-N0")
    assert ended.code == 0, ended.err
    assert "PASSED (recorded outputs of trt-runner-N0) on 8 samples" in ended.out
    verdict = ended.record["verdict"]
    assert (verdict["level"], verdict["runner"]) == ("recorded", "trt-runner-N0")
    assert verdict["intermediate_nonfinite"] == []
    peak = max(float(np.abs(o["relu_out"]).max()) for o in given)
    assert 0 < verdict["outputs"]["relu_out"]["max_abs"] <= peak * 2**-11
    assert call("report", "run").out == ended.out


def test_infinite_outputs_fail(recorded, call):
    model, inputs, outputs, given = recorded
    ended = call(
        *("verify", model, outputs, "--inputs", inputs, "-o", "run", "--runner", "trt-runner-N1")
    )
    assert ended.code == 10
    count = models.COUNT * given[0]["relu_out"].size
    assert ended.record["verdict"]["outputs"]["relu_out"]["nonfinite"] == count


def test_an_archive_of_outputs(recorded, call, tmp_path):
    model, _, _, given = recorded
    np.savez(tmp_path / "engine.npz", relu_out=np.stack([o["relu_out"] for o in given]))
    ended = call("verify", model, "engine.npz", "--inputs", "model.npz", "--metric", "psnr")
    assert ended.code == 10
    assert "FAILED (recorded outputs of engine.npz) on 8 samples" in ended.out
    ended = call("verify", model, "engine.npz", "--inputs", "model.npz")
    assert ended.code == 0


def test_what_has_no_meaning_is_refused(recorded, refused):
    model, inputs, outputs, _ = recorded
    verify = ("verify", model, outputs, "--inputs", inputs)
    message = refused(2, *verify)
    assert "holds the outputs of 2 runners: trt-runner-N0, trt-runner-N1" in message
    assert "--accumulate" in refused(2, *verify, "--runner", "trt", "--accumulate", "fp16")
    assert "no meaning for a model" in refused(
        2, "verify", model, model, "--inputs", inputs, "--runner", "trt"
    )
    write_runners(outputs, {"trt": [{"other": np.zeros(8)}] * models.COUNT})
    assert "found the outputs other, expected relu_out" in refused(3, *verify)
    write_runners(outputs, {"trt": [{"relu_out": np.zeros((1, 7))}] * models.COUNT})
    assert "is 1×7, expected 1×8" in refused(3, *verify)
