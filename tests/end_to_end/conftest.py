"""The command line as a user calls it, inside this process: starting Python anew takes a second."""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from halfwise.cli import main
from tests.models import Ill


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        """The content of `run.json`."""
        return json.loads((self.folder / "run.json").read_text(encoding="utf-8"))

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def kept(self) -> set[str]:
        return {entry["node"] for entry in self.record["plan"]["keep"]}


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run `halfwise` with arguments; paths are relative to the test's own folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, folder="run"):
        monkeypatch.setattr(sys, "argv", ["halfwise", *map(str, arguments)])
        # Real streams: the command line reconfigures them.
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            main()
        for stream in (out, err):
            stream.seek(0)
        assert isinstance(end.value.code, int)
        return Ended(end.value.code, out.read(), err.read(), tmp_path / folder)

    return call


@pytest.fixture
def saved(tmp_path):
    """Save a model and its inputs in the test's own folder; return their paths."""

    def saved(ill: Ill, name: str = "model") -> tuple[Path, Path]:
        model, inputs = tmp_path / f"{name}.onnx", tmp_path / f"{name}.npz"
        onnx.save(ill.proto, model)
        np.savez(inputs, **dict(ill.inputs))  # type: ignore[arg-type]
        return model, inputs

    return saved


@pytest.fixture
def fix(call, saved):
    """Fix a model through the command line, results in the folder `run`."""

    def fix(ill: Ill, *options):
        model, inputs = saved(ill)
        return call("fix", model, "--inputs", inputs, "-o", "run", *options)

    return fix


@pytest.fixture
def environment(tmp_path):
    """What a subprocess needs to find the package wherever it starts."""
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source), "TMPDIR": str(tmp_path)}
