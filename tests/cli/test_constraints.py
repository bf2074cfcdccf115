import io
import json
import sys

import onnx
import pytest

from tests.faults import numbers


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(numbers.logarithm(True), path)
    return str(path)


def test_a_good_specification(call, model):
    code, out, err = call("constraints", "check", "eps:fp32", "--model", model, "--trt-version=8.6")
    assert (code, err) == (0, "")
    assert out.startswith("Nothing found\n")


def test_a_command_word_by_word(call, model):
    words = ["trtexec", f"--onnx={model}", "--fp16", "--layerPrecisions=e*:fp32"]
    code, out, _ = call("constraints", "check", "--trt-version", "8.6", *words)
    assert code == 10
    assert "no-effect" in out
    assert "wildcard-unknown" in out
    corrected = out.rpartition("Corrected command\n")[2].strip()
    assert corrected == (
        f"trtexec --onnx={model} --fp16 --precisionConstraints=obey --layerPrecisions=eps:fp32"
    )


def test_a_pasted_command_from_standard_input(call, model, monkeypatch):
    text = f"trtexec --onnx={model} --fp16 \\\n --precisionConstraints=obey \\\n"
    pasted = io.StringIO(text + " --layerPrecisions='log':fp32,nothing:fp32\n")
    monkeypatch.setattr(sys, "stdin", pasted)
    code, out, _ = call("constraints", "check", "-", "--trt-version", "10.3", "--json")
    assert code == 10
    report = json.loads(out)
    assert [f["rule"] for f in report["findings"]] == ["unmatched"]
    assert report["corrected"].endswith("--layerPrecisions=log:fp32")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["eps:fp32"], 2, "No model is named"),
        (["--fp16"], 2, "There is neither --layerPrecisions nor"),
        (["eps:fp32", "--model", "none.onnx"], 3, "none.onnx is not a file"),
    ],
)
def test_bad_requests(call, arguments, code, message):
    found, out, err = call("constraints", "check", *arguments, "--trt-version", "8.6")
    assert (found, out) == (code, "")
    assert message in err
    assert "\nhint: " in err


def test_a_version_is_needed(call):
    code, _, err = call("constraints", "check", "eps:fp32")
    assert code == 2
    assert "--trt-version" in err
