"""`ladder`: each type is judged, FP32 itself first."""

import json
import shlex

import numpy as np
import onnxruntime
import pytest

from tests import tasks

LADDER = ("ladder", "model.onnx", "--inputs", "model.npz", "-o", "run")


@pytest.fixture
def given(saved, tmp_path):
    """A classifier; return what it gives, and write its classes as labels."""
    model, inputs = saved(tasks.classifier(16))
    session, x = onnxruntime.InferenceSession(model), np.load(inputs)["x"]
    outputs = np.concatenate(
        [session.run(None, {"x": x[i : i + 1].reshape(1, 16)})[0] for i in range(16)]
    )
    (tmp_path / "labels.json").write_text(json.dumps(outputs.argmax(axis=1).tolist()))
    return outputs


def rungs(ended):
    return {rung["rung"]: rung for rung in ended.record["rungs"]}


@pytest.mark.usefixtures("given")
def test_each_type_is_judged_and_the_cheapest_recommended(call):
    ended = call(*LADDER, "--rel-max", "1e-4")
    assert ended.code == 0, ended.err
    found = rungs(ended)
    assert list(found) == ["fp32", "tf32", "fp16"]
    # One product, rounded to 11 bits, is off by more than that; all in FP32 is not.
    assert [found[r]["passed"] for r in found] == [None, False, True]
    assert found["tf32"]["error"] > 1
    assert found["fp16"]["kept"] == len(ended.record["plan"]["keep"]) > 0
    assert found["fp32"]["cost"] == ended.record["worth"]["fp32"]
    assert found["fp16"]["cost"] == ended.record["worth"]["cost"]
    cheapest = min((r for r in found.values() if r["passed"] is not False), key=lambda r: r["cost"])
    assert [name for name, r in found.items() if r["chosen"]] == [cheapest["rung"]]
    told = " ".join(ended.out.split())
    assert "TF32 fails: output" in told
    assert "FP32 itself is not judged" in told
    again = call("report", "run")
    assert (again.code, again.out) == (0, ended.out)


def test_fp32_is_held_to_labels_and_to_what_the_framework_gives(call, given, tmp_path):
    labels = ("--metric", "top1", "--labels", "labels.json")
    right = call(*LADDER, *labels)
    assert right.code == 0, right.err
    assert (rungs(right)["fp32"]["passed"], rungs(right)["fp32"]["by"]) == (True, "labels")
    wrong = given.argmax(axis=1) + 1
    (tmp_path / "labels.json").write_text(json.dumps((wrong % 10).tolist()))
    guessing = call(*LADDER[:-1], "other", *labels, folder="other")
    assert guessing.code == 10
    (rung,) = guessing.record["rungs"]
    assert (rung["rung"], rung["passed"], rung["by"]) == ("fp32", False, "labels")
    assert guessing.record["plan"] is None
    assert "Do the labels fit?" in guessing.out
    np.savez(tmp_path / "expected.npz", probs_out=1.1 * given[:, None])
    off = call(*LADDER[:-1], "third", "--strict", "--expected", "expected.npz", folder="third")
    assert off.code == 10
    (rung,) = off.record["rungs"]
    assert (rung["passed"], rung["by"]) == (False, "expected")
    assert "Nothing lower was tried" in off.out


@pytest.mark.usefixtures("given")
def test_engines_tell_times(call, fake_worker):
    def engines(**knobs):
        command = shlex.join(fake_worker(**knobs))
        few = ("--to", "fp16", "--budget", "builds=1", "--engine", "repeat=1")
        return ("--target", "tensorrt", "--trt-command", command, *few)

    ended = call(*LADDER, *engines())
    assert ended.code == 0, ended.err
    found, delivered = rungs(ended), ended.record["engines"]["rung"]
    assert all(found[rung]["latency"]["median_ms"] > 0 for rung in ("fp32", "tf32", "fp16"))
    assert [name for name, r in found.items() if r["chosen"]] == [delivered]
    assert "delivered" in ended.out
    assert "measures times" not in ended.out
    wrong = call(*LADDER[:-1], "wrong", "--strict", *engines(broken={"dense": 1.5}), folder="wrong")
    assert wrong.code == 10
    assert [(r["rung"], r["passed"]) for r in wrong.record["rungs"]] == [("fp32", False)]
    assert "Nothing lower was tried" in wrong.out
