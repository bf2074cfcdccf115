"""Commands about TensorRT."""

import io
import json
import sys

import pytest

from halfwise import api
from halfwise.errors import BuildFailed, CaseError, RecordMismatch
from halfwise.records import EngineBuild
from halfwise.tensorrt import versions, worker
from halfwise.tools.migrate import Migrated
from tests.unit.reporting.engine_runs import build
from tests.unit.reporting.runs import run
from tests.unit.reporting.test_inspection import inspection
from tests.unit.tensorrt.recipes import recipe

MADE = EngineBuild(model="m.onnx", build=build(1, "e"), inspection=inspection(), findings=())
BUILD = ("build", "m.onnx", "-o", "e.engine")


def test_build_only_what_is_given_is_passed_on(call, answer):
    calls = answer("build", MADE)
    assert call(*BUILD)[0] == 0
    options = calls[0][1]
    assert options.pop("watcher")
    assert options == {"inputs": None}


def test_build_options(call, answer):
    calls = answer("build", MADE)
    code, out, _ = call(
        *BUILD, "--to", "bf16", "--engine", "minShapes=x:1",
        "--engine", "tf32", "--trt-worker", "orin", "--json", "--inputs", "x.npz",
        "--budget", "build-timeout=5",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["model"] == "m.onnx"
    options = calls[0][1]
    expected = {
        "to": "bf16",
        "min_shapes": ["x:1"],
        "tf32": True,
        "trt_worker": "orin",
        "inputs": "x.npz",
        "build_timeout": 5.0,
    }
    assert {name: options[name] for name in expected} == expected


def test_a_build_without_an_engine(call, answer):
    answer("build", BuildFailed("TensorRT builds no engine.", "a: no importer\nb: no importer"))
    code, out, err = call(*BUILD)
    assert (code, out) == (5, "")
    assert err.endswith(
        "error: TensorRT builds no engine.\nhint: a: no importer\n  b: no importer\n"
    )


@pytest.mark.parametrize(
    "missing", [("build", "m.onnx"), ("build", "-o", "e"), (*BUILD, "--target", "webgpu")]
)
def test_build_usage(call, missing):
    assert call(*missing)[0] == 2


def test_every_option_of_building_is_there(call, answer):
    calls = answer("build", MADE)
    assert callable(api.build)
    call(
        *BUILD,
        "--engine",
        "workspace=4G",
        "--engine",
        "optimization-level=0",
        "--engine",
        "plugin=p.so",
        "--typing",
        "weak",
    )
    given = calls[0][1]
    assert (given["workspace"], given["optimization_level"]) == ("4G", 0)
    assert (given["plugin"], given["typing"]) == (["p.so"], "weak")


def test_inspect(call, answer):
    calls = answer("inspect", inspection())
    code, out, _ = call("inspect", "e.engine", "--model", "m.onnx", "--budget", "run-timeout=3")
    assert code == 0
    assert out.startswith("FP16 90 %")
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["e.engine"]
    assert (str(options["model"]), options["inputs"], options["run_timeout"]) == ("m.onnx", None, 3)


def test_inspect_json(call, answer):
    answer("inspect", inspection())
    code, out, _ = call("inspect", "e.engine", "--json")
    assert code == 0
    assert json.loads(out)["layers"] == 7


def test_an_engine_that_cannot_be_read(call, answer):
    answer("inspect", RecordMismatch("It cannot be read.", "Build it again."))
    code, out, err = call("inspect", "e.engine")
    assert (code, out) == (7, "")
    assert err.endswith("error: It cannot be read.\nhint: Build it again.\n")


def exported(*files, written=(), notes=()):
    return api.Exported(recipe(notes=notes), {name: f"# {name}\n" for name in files}, written)


def test_export_without_a_place_it_is_printed(call, answer):
    calls = answer("export", exported("build_engine.sh", notes=("Judge it.",)))
    code, out, err = call("export", "runs/demo", "--as", "trtexec")
    assert (code, out) == (0, "# build_engine.sh\n")
    assert err == "note: Judge it.\n"
    ((arguments, options),) = calls
    assert (str(arguments[0]), arguments[1]) == ("runs/demo", "trtexec")
    assert options.pop("watcher")
    assert options == {"out": None}


def test_export_every_option_reaches_the_library(call, answer, tmp_path):
    path = tmp_path / "r.py"
    calls = answer("export", exported("build_engine.py", written=(path,)))
    code, out, _ = call(
        *("export", "r", "--as", "python", "-o", str(path), "--trt-version", "8.6"),
        *(
            "--typing",
            "weak",
            "--model",
            "m.onnx",
            "--engine",
            "minShapes=x:1",
            "--engine",
            "minShapes=x:2",
        ),
        *(
            "--engine",
            "optShapes=x:3",
            "--engine",
            "maxShapes=x:4",
        ),
    )
    assert (code, out) == (0, f"written: {path}\n")
    ((_, options),) = calls
    assert options.pop("watcher")
    assert {k: str(v) for k, v in options.items()} == {
        "out": str(path),
        "trt_version": "8.6",
        "typing": "weak",
        "model": "m.onnx",
        "min_shapes": "['x:1', 'x:2']",
        "opt_shapes": "['x:3']",
        "max_shapes": "['x:4']",
    }


def test_export_several_files_need_a_folder(call, answer):
    answer("export", exported("build_engine.cpp", "CMakeLists.txt"))
    code, out, err = call("export", "r", "--as", "cpp")
    assert (code, out) == (2, "")
    assert " -o" in err


def test_export_where_there_is_no_recipe_it_says_why(call, answer):
    answer("export", CaseError("TensorRT 8.6 has no BF16.", "Give --trt-version 9."))
    code, _, err = call("export", "r", "--as", "json")
    assert code == 3
    assert err == "error: TensorRT 8.6 has no BF16.\nhint: Give --trt-version 9.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("export",),
        ("export", "r"),
        ("export", "r", "--as", "onnx"),
        ("export", "r", "--as", "json", "--typing", "none"),
    ],
)
def test_export_usage(call, arguments):
    assert call(*arguments)[0] == 2


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
    assert out.startswith("1 error, 1 warning; 1 ")
    assert "8.2.1" in out
    assert "nobody knows this" in out


def test_log_json(call, log):
    code, out, _ = call("explain-log", str(log), "--json")
    assert code == 10
    assert [f["kind"] for f in json.loads(out)["findings"]] == ["engine-version", "unknown"]


def test_log_standard_input(call, monkeypatch):
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
def test_a_crash_and_its_layer(call, tmp_path, end, kind):
    (tmp_path / "a.log").write_text(CRASHED.format("--layerPrecisions=*:fp32", end))
    code, out, _ = call("explain-log", str(tmp_path / "a.log"), "--json")
    assert code == 10
    report = json.loads(out)
    (finding,) = report["findings"]
    assert (finding["kind"], finding["severity"]) == (kind, "error")
    assert finding["nodes"] == ["/n/Pow", "/n/Add"]
    assert "Time: 0.03" in finding["before"]
    _, out, _ = call("explain-log", str(tmp_path / "a.log"))
    assert "At: /n/Pow, /n/Add." in out


def test_a_crash_of_which_the_log_tells_no_layer(call, tmp_path):
    (tmp_path / "a.log").write_text("[I] TensorRT version: 10.3.0\n\n段错误\n")
    code, out, _ = call("explain-log", str(tmp_path / "a.log"))
    assert code == 10
    assert "--verbose" in out
    assert ": [I] TensorRT version: 10.3.0" in out


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
    assert " flow " in report["findings"][0]["sentence"]
    assert "9.6093" in report["findings"][2]["sentence"]
    passed = "[I] Accuracy Summary | a vs. b | Passed: 2/2 iterations | Pass Rate: 100.0%\n"
    (tmp_path / "b.log").write_text(passed)
    assert call("explain-log", str(tmp_path / "b.log"))[0] == 0


def test_an_assertion_of_the_c_library(call, tmp_path):
    text = "trtexec: /_src/foo.cpp:33: int main(): Assertion `x' failed.\nAborted (core dumped)\n"
    (tmp_path / "a.log").write_text(text)
    _, out, _ = call("explain-log", str(tmp_path / "a.log"), "--json")
    assert [f["kind"] for f in json.loads(out)["findings"]] == ["assertion", "crash"]


def test_help_names_the_versions_that_are_taken_and_the_defaults(call):
    def told(command, option="--help"):
        return " ".join(call(command, option)[1].replace("│", " ").split())

    export = told("export")
    assert versions.DEFAULT_BUILDER in export
    assert f"{versions.text_of(worker.OLDEST)} to {versions.FIRST_WITHOUT_WEAK[0]}" in export
    assert "weak for 8.x" in export
    first = versions.text_of(versions.FIRST_WITH["strong typing by default"])
    assert f"strong from TensorRT {first}" in told("build", "--help-all")


def test_migrate_takes_options_of_trtexec_and_its_own(call, answer):
    found = Migrated(
        (), ("trtexec", "--onnx=typed/model.onnx"), ("--int8 …",), api.Result(run(), None)
    )
    calls = answer("migrate", found)
    words = ("trtexec", "--onnx=m.onnx", "--fp16", "--layerPrecisions=a:fp32")
    own = ("--inputs", "x.npz", "-o", "typed", "--rel-max", "0.1")
    code, out, error = call("migrate", *words, *own)
    assert code == 0
    (arguments, options) = calls[0]
    assert arguments == (list(words), "x.npz")
    assert (str(options["out"]), options["rel_max"]) == ("typed", 0.1)
    assert out.startswith("0 nodes in FP32; build it with: trtexec --onnx=typed/model.onnx\n")
    assert "--int8 …" in error
    assert "run" not in error
    _, _, error = call("migrate", "build.py", *own)
    assert error.startswith("Note: functions of build.py run")
