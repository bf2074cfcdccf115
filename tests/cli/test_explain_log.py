import io
import json
import sys

import pytest

LINE = "[E] [TRT] 6: The engine plan file is not compatible with this version of TensorRT, "
LINE += "expecting library version 8.2.3 got 8.2.1, please rebuild.\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "build.log"
    path.write_text(LINE + "[W] nobody knows this\n")
    return path


def test_a_log_is_explained(call, log):
    code, out, _ = call("explain-log", str(log))
    assert code == 10
    assert out.startswith("1 error, 1 warning; 1 not known\n")
    assert "The engine was built by TensorRT 8.2.1; this is TensorRT 8.2.3." in out
    assert "warning: nobody knows this" in out


def test_json(call, log):
    code, out, _ = call("explain-log", str(log), "--json")
    assert code == 10
    assert [f["kind"] for f in json.loads(out)["findings"]] == ["engine-version", "unknown"]


def test_standard_input(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    code, out, _ = call("explain-log", "-")
    assert code == 10
    assert "1 error" in out


def test_no_log(call, tmp_path, log):
    for arguments in ((str(tmp_path / "none"),), (str(log), "--model", str(log))):
        code, out, err = call("explain-log", *arguments)
        assert (code, out) == (3, "")
        assert err.startswith("error: ")
        assert "\nhint: " in err


CRASHED = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --fp16 {}
[05/20/2025-17:00:41] [V] [TRT] =============== Computing costs for /a/Conv
[05/20/2025-17:00:41] [V] [TRT] --------------- Timing Runner: {{ForeignNode[/n/Pow.../n/Add]}} \
(Myelin[0x80000023])
[05/20/2025-17:00:42] [V] [TRT] Tactic: 0x0000000000000000 Time: 0.03
{}
"""


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("Segmentation fault (core dumped)", "crash"),
        ("build.sh: line 3: 12345 Segmentation fault      (core dumped) trtexec --fp16", "crash"),
        ("Aborted (core dumped)", "crash"),
        ("Bus error (core dumped)", "crash"),
        ("Killed", "killed"),
    ],
)
def test_a_crash_its_layer_and_the_command(call, tmp_path, end, kind):
    (tmp_path / "a.log").write_text(CRASHED.format("--layerPrecisions=*:fp32", end))
    code, out, _ = call("explain-log", str(tmp_path / "a.log"), "--json")
    assert code == 10
    report = json.loads(out)
    assert report["command"] == "trtexec --onnx=m.onnx --fp16 --layerPrecisions=*:fp32"
    (finding,) = report["findings"]
    assert (finding["kind"], finding["severity"]) == (kind, "error")
    assert finding["nodes"] == ["/n/Pow", "/n/Add"]
    assert "Time: 0.03" in finding["before"]
    _, out, _ = call("explain-log", str(tmp_path / "a.log"))
    assert "At: /n/Pow, /n/Add." in out
    assert "constraints check - --model MODEL --trt-version 8.6.1" in out


def test_a_crash_of_which_the_log_tells_no_layer(call, tmp_path):
    (tmp_path / "a.log").write_text("[I] TensorRT version: 10.3.0\n\n段错误\n")
    code, out, _ = call("explain-log", str(tmp_path / "a.log"))
    assert code == 10
    assert "--verbose does" in out
    assert "The last line before: [I] TensorRT version: 10.3.0" in out


def test_warnings_are_no_errors(call, tmp_path):
    (tmp_path / "a.log").write_text("[W] nobody knows this\n")
    assert call("explain-log", str(tmp_path / "a.log"))[0] == 0


def test_an_error_code_without_a_severity_is_an_error(call, tmp_path):
    (tmp_path / "a.log").write_text("[a.cpp::b::3] Error Code 7: Nobody Knows (what this is)\n")
    code, out, _ = call("explain-log", str(tmp_path / "a.log"))
    assert code == 10
    assert "Error Code 7" in out


POLYGRAPHY = """\
[I] RUNNING | Command: polygraphy run model.onnx --onnxrt --trt --fp16
[W] Input tensor: x (dtype=DataType.FLOAT, shape=(-1, 3)) | No shapes provided; Will use shape: \
[1, 3] for min/opt/max in profile.
[I]             Minimum Required Tolerance: elemwise error | [abs=9.6093] OR [rel=1.2e+03] (…)
[E]         FAILED | Output: 'flow' | Difference exceeds tolerance (rel=1e-05, abs=1e-05)
[E]     FAILED | Mismatched outputs: ['flow']
[E] Accuracy Summary | trt vs. onnxrt | Passed: 0/1 iterations | Pass Rate: 0.0%
"""


def test_a_comparison_of_polygraphy(call, tmp_path):
    (tmp_path / "a.log").write_text(POLYGRAPHY)
    code, out, _ = call("explain-log", str(tmp_path / "a.log"), "--json")
    report = json.loads(out)
    assert code == 10
    kinds = [f["kind"] for f in report["findings"]]
    assert kinds == ["comparison-output", "shape-default", "tolerance-needed"]
    assert "values of flow differ" in report["findings"][0]["sentence"]
    assert "9.6093" in report["findings"][2]["sentence"]
    assert report["command"] == "polygraphy run model.onnx --onnxrt --trt --fp16"
    passed = "[I] Accuracy Summary | a vs. b | Passed: 2/2 iterations | Pass Rate: 100.0%\n"
    (tmp_path / "b.log").write_text(passed)
    assert call("explain-log", str(tmp_path / "b.log"))[0] == 0


def test_an_assertion_of_the_c_library(call, tmp_path):
    text = "trtexec: /_src/foo.cpp:33: int main(): Assertion `x' failed.\nAborted (core dumped)\n"
    (tmp_path / "a.log").write_text(text)
    _, out, _ = call("explain-log", str(tmp_path / "a.log"), "--json")
    assert [f["kind"] for f in json.loads(out)["findings"]] == ["assertion", "crash"]
