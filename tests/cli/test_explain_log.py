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
    assert code == 0
    assert out.startswith("1 error, 1 warning; 1 not known\n")
    assert "The engine was built by TensorRT 8.2.1; this is TensorRT 8.2.3." in out
    assert "warning: nobody knows this" in out


def test_json(call, log):
    code, out, _ = call("explain-log", str(log), "--json")
    assert code == 0
    assert [f["kind"] for f in json.loads(out)["findings"]] == ["engine-version", "unknown"]


def test_standard_input(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    code, out, _ = call("explain-log", "-")
    assert code == 0
    assert "1 error" in out


def test_no_log(call, tmp_path, log):
    for arguments in ((str(tmp_path / "none"),), (str(log), "--model", str(log))):
        code, out, err = call("explain-log", *arguments)
        assert (code, out) == (3, "")
        assert err.startswith("error: ")
        assert "\nhint: " in err
