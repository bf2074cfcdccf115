"""The pytest marker and the action, with a model that is right and one that is not."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from halfwise import api
from tests import models
from tools import readme

MARKED = """
import pytest

@pytest.mark.halfwise(model="model.onnx", inputs="inputs.npz", candidate="right.onnx")
def test_right(): ...

@pytest.mark.halfwise(model="model.onnx", inputs="inputs.npz", candidate="wrong.onnx")
def test_wrong(): ...

@pytest.mark.halfwise(model="model.onnx", inputs="inputs.npz", no_repair=True)
def test_more(halfwise_result):
    assert {kept.node for kept in halfwise_result.run.plan.keep} == {"conv_b", "relu", "conv_c"}

def test_without(): ...

def test_unmarked(halfwise_result): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its inputs, a mixed model that is right, and an FP16 one that is not."""
    made, ill = tmp_path_factory.mktemp("project"), models.conv_chain()
    onnx.save(ill.proto, made / "model.onnx")
    inputs = [ill.sample(i) for i in range(models.COUNT)]
    mixed = api.fix(ill.proto, inputs, no_repair=True).model
    assert mixed is not None
    onnx.save(mixed, made / "right.onnx")
    with pytest.warns(UserWarning, match="Nothing was judged"):
        onnx.save(api.convert_float_to_float16(ill.proto), made / "wrong.onnx")
    np.savez(made / "inputs.npz", **dict(ill.inputs))  # type: ignore[arg-type]
    return made


def test_a_marked_test_fails_where_the_verdict_does(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED, encoding="utf-8")
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers", "-c", os.devnull)
    done = subprocess.run(
        [sys.executable, *words, "--rootdir", ".", "test_marked.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = re.findall(r"^ERROR (\S+)", done.stdout, re.MULTILINE)
    assert errors == ["test_marked.py::test_wrong", "test_marked.py::test_unmarked"]
    assert "3 passed" in done.stdout
    assert "FAILED in emulation" in done.stdout
    assert "halfwise_result needs @pytest.mark.halfwise" in done.stdout


def step() -> dict[str, Any]:
    """The step of the action that judges."""
    action = yaml.safe_load((readme.ROOT / "action.yml").read_text(encoding="utf-8"))
    return next(s for s in action["runs"]["steps"] if s.get("id") == "verify")


@pytest.mark.parametrize(("candidate", "code"), [("right.onnx", 0), ("wrong.onnx", 10)])
def test_the_action_ends_as_verify_does_and_shows_why(
    folder: Path, tmp_path: Path, candidate: str, code: int
) -> None:
    given = {
        "MODEL": str(folder / "model.onnx"),
        "CANDIDATE": str(folder / candidate),
        "INPUTS": str(folder / "inputs.npz"),
        "BASELINE": "",
        "OPTIONS": "--rel-max 0.02 --budget 'run-timeout=60'",
        "RUN": "run",
    }
    assert step()["env"].keys() == given.keys()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step()["run"]],
        cwd=tmp_path,
        env={**os.environ, **given, "PATH": path, "GITHUB_STEP_SUMMARY": "summary.md"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert ("PASSED" if code == 0 else "FAILED") in summary.splitlines()[1]
    assert (tmp_path / "run" / "report.html").is_file()
