"""The bench of commands on a GPU, with the stand-in for TensorRT."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from pathlib import Path

import pytest

from bench.gpu import commands
from bench.gpu.commands import Command, main


@pytest.fixture
def python(fake_worker, tmp_path: Path) -> Path:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(fake_worker("8.6.1"))} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_how_each_command_ends_is_recorded(
    python: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("fix", "--budget", "builds=1", "--engine", "repeat=1", "--allow", "random")
    named = {
        "scaled": Command("scaled", few),
        "wrong": Command("scaled", ("fix", "--no-such-option")),
        "slow": Command("scaled", few, seconds=0.0),
        "nowhere": Command("nowhere", few),
    }
    monkeypatch.setattr(commands, "COMMANDS", named)
    words = ["--trt-python", str(python), "--models", str(folder.parent), "--results"]
    words += [str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["commands", *words])
    assert main() == 1
    found = json.loads((tmp_path / "results" / "gpu_commands.json").read_text())
    ends = {f["what"].partition(":")[0]: f["measured"] for f in found["figures"]}
    assert ends["wrong"] == "2"
    assert ends["slow"] == "took too long"
    assert ends["nowhere"] == "its model is not here"
    assert ends["scaled"] in ("0", "10")
    told = found["details"]["scaled"]
    assert next(row["name"] for row in told["engines"]) == "FP32, TF32 off"
    assert told["builds"][0]["status"] == "built"
    assert found["machine"]["tensorrt"] == "8.6.1"
