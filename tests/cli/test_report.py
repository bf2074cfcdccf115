import os
import subprocess
import sys

import pytest

from halfwise.store import run_json, write_run
from tests.unit.reporting.runs import run, verdict, verification


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("made", [run, verification])
def test_report_of_a_saved_run_exits_as_the_run_did(call, tmp_path, made, passed):
    saved = made(verdict=verdict(passed=passed))
    write_run(tmp_path, saved)
    code, out, err = call("report", str(tmp_path))
    assert code == (0 if passed else 10)
    assert out.startswith("PASSED" if passed else "FAILED")
    assert err == ""


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


def test_report_loads_nothing_that_runs_models(tmp_path):
    write_run(tmp_path, run())
    code = f"""
import sys
from halfwise.cli import main
sys.argv = ["halfwise", "report", {str(tmp_path)!r}]
try:
    main()
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert ended.stdout.startswith("PASSED")
    assert ended.stderr == "[]\n"
