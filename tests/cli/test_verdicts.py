"""Commands that end with a verdict."""

import json
import os
import subprocess
import sys

import pytest

from halfwise import api
from halfwise.records import Run
from halfwise.store import run_json, write_run
from tests.unit.reporting.diagnoses import diagnosis
from tests.unit.reporting.runs import run, verdict, verification

FIX = ("fix", "m.onnx", "--inputs", "x.npz", "-o", "r")


@pytest.mark.parametrize("passed", [True, False])
def test_fix_as_json_prints_the_record_and_nothing_else(call, answer, passed):
    made = run(verdict=verdict(passed=passed))
    answer("fix", made)
    code, out, _ = call(*FIX, "--json")
    assert code == (0 if passed else 10)
    assert Run.from_json(out) == made


@pytest.mark.parametrize("passed", [True, False])
def test_one_screen_the_whole_report_or_the_verdict_alone(call, answer, passed):
    answer("fix", run(verdict=verdict(passed=passed)))
    code, screen, _ = call(*FIX)
    assert code == (0 if passed else 10)
    assert len(screen.splitlines()) <= 24
    assert screen.endswith(": halfwise report r --full\n")
    assert "In figures" not in screen
    code, whole, _ = call(*FIX, "--full")
    assert code == (0 if passed else 10)
    assert "In figures" in whole
    code, quiet, err = call(*FIX, "--quiet")
    assert (code, err) == (0 if passed else 10, "")
    assert len(quiet.splitlines()) == 1
    assert quiet.startswith("PASSED" if passed else "FAILED")


def test_what_no_folder_holds_is_shown_whole_by_the_option(call, answer):
    answer("verify", verification())
    line = ("verify", "m.onnx", "c.onnx", "--inputs", "x.npz")
    assert "--full" in call(*line)[1].splitlines()[-1]


def test_out_and_a_watcher_reach_the_library(call, answer):
    calls = answer("fix", run())
    assert call(*FIX)[0] == 0
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["m.onnx", "x.npz"]
    assert str(options.pop("out")) == "r"
    assert options.keys() == {"watcher"}


def test_verify(call, answer):
    calls = answer("verify", verification(verdict=verdict(passed=False)))
    code, out, _ = call(
        "verify", "m.onnx", "c.onnx", "--inputs", "x.npz", "--require", "max-abs=0.5"
    )
    assert code == 10
    assert out.startswith("FAILED")
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["m.onnx", "c.onnx", "x.npz"]
    assert (options["out"], options["max_abs"]) == (None, 0.5)


def test_one_worker_for_an_engine(call, answer):
    calls = answer("verify", verification())
    call("verify", "m.onnx", "e.engine", "--inputs", "x.npz", "--trt-command", "ssh a python3")
    assert calls[0][1]["trt_command"] == "ssh a python3"


DIAGNOSE = ("diagnose", "m.onnx", "--inputs", "x.npz", "-o", "run")


@pytest.fixture
def diagnosed(monkeypatch):
    """Put a stand-in in place of the library; return the calls that it got."""

    def diagnosed(run):
        calls = []

        def stand_in(*arguments, **options):
            calls.append((arguments, options))
            return api.Result(run, None)

        monkeypatch.setattr(api, "diagnose", stand_in)
        return calls

    return diagnosed


def test_a_rung_that_fails(call, diagnosed):
    calls = diagnosed(diagnosis())
    code, out, _ = call(*DIAGNOSE, "--expected", "e.npz", "--inputs-b", "b.npz", "--to", "bf16")
    assert code == 10
    assert out.splitlines()[0] == diagnosis().diagnosis[-1].cause
    options = calls[0][1]
    assert options["expected"] == "e.npz"
    assert options["inputs_b"] == "b.npz"
    assert options["to"] == "bf16"


def test_nothing_wrong_ends_with_0(call, diagnosed):
    diagnosed(diagnosis(passed=True))
    assert call(*DIAGNOSE)[0] == 0


def test_diagnose_json(call, diagnosed):
    diagnosed(diagnosis())
    code, out, _ = call(*DIAGNOSE, "--json")
    assert code == 10
    assert [rung["rung"] for rung in json.loads(out)["diagnosis"]] == [1, 2, 4]


def test_diagnose_needs_a_folder(call):
    assert call("diagnose", "m.onnx", "--inputs", "x.npz")[0] == 2


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("made", [run, verification])
def test_report_of_a_saved_run_exits_as_the_run_did(call, tmp_path, made, passed):
    saved = made(verdict=verdict(passed=passed))
    write_run(tmp_path, saved)
    code, out, err = call("report", str(tmp_path))
    assert code == (0 if passed else 10)
    assert out.startswith("PASSED" if passed else "FAILED")
    gone = f"warning: {tmp_path / 'model.onnx'} no longer exists"
    assert " ".join(err.split()) == (gone if saved.kind == "fix" else "")
    (tmp_path / "model.onnx").touch()
    assert call("report", str(tmp_path))[2] == ""


@pytest.mark.parametrize("passed", [True, False])
def test_report_makes_the_page_again(call, tmp_path, passed):
    write_run(tmp_path, run(verdict=verdict(passed=passed)))
    (tmp_path / "model.onnx").touch()
    there, elsewhere = tmp_path / "report.html", tmp_path / "copy.html"
    code = 0 if passed else 10
    assert call("report", str(tmp_path), "--html") == (code, f"{there}\n", "")
    of_file = call("report", str(tmp_path / "run.json"), "--html", "-o", str(elsewhere))
    assert of_file == (code, f"{elsewhere}\n", "")
    assert there.read_bytes() == elsewhere.read_bytes()
    assert call("report", str(tmp_path), "--html")[0] == code
    of_file = call("report", str(tmp_path), "--html", "-o", str(elsewhere))
    assert of_file[0] == 2
    assert "overwrites nothing" in " ".join(of_file[2].split())
    assert b"PASSED" in there.read_bytes() if passed else b"FAILED" in there.read_bytes()


def test_report_tells_where_a_page_cannot_be(call, tmp_path):
    write_run(tmp_path, run())
    (tmp_path / "model.onnx").touch()
    (tmp_path / "report.html").symlink_to(tmp_path / "run.json")
    code, out, err = call("report", str(tmp_path), "--html")
    assert (code, out) == (2, "")
    assert "only regular files" in err
    code, _, err = call("report", str(tmp_path), "--html", "-o", str(tmp_path / "no" / "a.html"))
    assert code == 2
    assert str(tmp_path / "no") in "".join(err.split())
    code, _, err = call("report", str(tmp_path), "-o", "a.html")
    assert code == 2
    assert "--html" in err


def test_report_as_json_is_the_file(call, tmp_path):
    write_run(tmp_path, run())
    code, out, _ = call("report", str(tmp_path), "--json")
    assert code == 0
    assert out == (tmp_path / "run.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"schema_version": 1}',
        run_json(run()).replace('"schema_version": 1', '"schema_version": 99'),
        run_json(run())[:-100],
        run_json(run()).replace('"level": "emulated"', '"level": "hoped"'),
    ],
)
def test_a_damaged_run_folder(call, tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content, encoding="utf-8")
    code, out, err = call("report", str(tmp_path))
    assert code == 7
    assert out == ""
    assert err.startswith("error: ")
    assert "hint: " in err


HEAVY = ("onnx", "onnx_ir", "onnxruntime", "scipy", "torch", "ml_dtypes")


@pytest.mark.parametrize("html", [(), ("--html",)])
def test_report_loads_nothing_that_runs_models(tmp_path, html):
    write_run(tmp_path, run())
    (tmp_path / "model.onnx").touch()
    code = f"""
import sys
from halfwise.cli import main
sys.argv = ["halfwise", "report", {str(tmp_path)!r}, *{html!r}]
try:
    main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert ended.stdout.startswith(str(tmp_path) if html else "PASSED")
    assert ended.stderr == "[]\n"


def test_the_demo_fixes_copies_of_the_example_and_prints_the_command(
    call, answer, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    calls = answer("fix", run())
    code, out, _ = call("demo")
    assert code == 0
    (files, options) = calls[0]
    assert [path.name for path in files] == ["model.onnx", "inputs.npz"]
    assert all(path.is_file() for path in (*files, options["heldout"]))
    assert options["out"] == files[0].with_name("run")
    assert "halfwise fix demo/model.onnx --inputs" in out


def test_a_second_demo_overwrites_nothing(call, answer, tmp_path):
    answer("fix", run())
    (tmp_path / "there").mkdir()
    code, _, err = call("demo", "-o", str(tmp_path / "there"))
    assert code == 2
    assert "already exists" in err
