"""The command line as a user calls it, inside this process: starting Python anew takes a second."""

import io
import json
import os
import shlex
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from halfwise.cli import main
from halfwise.fixing.space import Best
from halfwise.tensorrt.workers import configuration
from tests import models
from tests.fake_tensorrt.start import once_only, worker_command
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
        content: dict[str, Any] = json.loads((self.folder / "run.json").read_bytes())
        return content

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    @property
    def kept(self) -> set[str]:
        return {entry["node"] for entry in self.record["plan"]["keep"]}


pytest.register_assert_rewrite("tests.end_to_end.soundness")


REPORTING = ("fix", "ladder", "choose", "verify", "diagnose", "report", "observe", "compare")
"""Commands that print one screen where the whole report is not asked for."""


def fixing(model, inputs="model.npz", *options):
    return ("fix", model, "--inputs", inputs, "-o", "run", *options)


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run `halfwise` with arguments; paths are relative to the test's own folder.

    Reports are whole: with `--full`, unless `screen` asks for what users see first.
    """
    monkeypatch.chdir(tmp_path)

    def call(*arguments, folder="run", screen=False):
        if arguments and arguments[0] in REPORTING and not screen:
            arguments = (arguments[0], "--full", *arguments[1:])
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

    def fix(ill: Ill, *options, screen=False):
        model, inputs = saved(ill)
        return call("fix", model, "--inputs", inputs, "-o", "run", *options, screen=screen)

    return fix


@pytest.fixture
def environment():
    """What a subprocess needs to find the package wherever it starts."""
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source)}


@pytest.fixture
def refused(call, tmp_path):
    """Run a command that must be refused; return what it says on its error lines."""

    def refused(exit_code, *arguments):
        before = sorted(tmp_path.rglob("*"))
        ended = call(*arguments)
        assert ended.code == exit_code, ended.out + ended.err
        assert ended.out == ""
        assert "Traceback" not in ended.err
        # Not `before == after`: Python may have compiled the user's function.
        assert not {p.name for p in tmp_path.iterdir()} - {p.name for p in before} - {"__pycache__"}
        messages = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        assert len(messages) == 1
        assert any(line.startswith("hint: ") for line in ended.err.splitlines())
        return " ".join(ended.err[ended.err.index("error: ") :].split())

    return refused


@pytest.fixture
def files(saved):
    """A model that is fine and its inputs."""
    return saved(models.small())


@pytest.fixture
def engines(call, saved, fake_worker):
    """Fix a model in engines of the stand-in for TensorRT: `engines(ill, *options, **knobs)`.

    `version` and knobs are those of `fake_worker`. Few builds, unless options ask for more.
    """

    def engines(ill: Ill, *options, version="8.6.1", **knobs):
        model, inputs = saved(ill)
        command = shlex.join(fake_worker(version, **knobs))
        few = [] if any(str(o).startswith("builds=") for o in options) else ["--budget", "builds=1"]
        few += (
            [] if any(str(o).startswith("repeat=") for o in options) else ["--engine", "repeat=1"]
        )
        where = ("--target", "tensorrt", "--trt-command", command)
        return call(*fixing(model, inputs, *where, *few, *options))

    return engines


@pytest.fixture
def named(cuda_library, interpreter, tmp_path, _quick_timing, monkeypatch):
    """Name stand-ins in halfwise.toml, each with a GPU; return the options that name them."""

    def named(**workers):
        lines = ["[workers]"]
        for number, (name, knobs) in enumerate(workers.items()):
            gpu = {"NAME": knobs.pop("gpu", f"GPU of {name}"), "UUID": str(number)}
            environment = {f"HALFWISE_FAKE_CUDA_{key}": value for key, value in gpu.items()}
            once = knobs.pop("once", False)
            folder, version = tmp_path / "workers" / name, knobs.pop("version", "8.6.1")
            command = worker_command(
                *(folder, cuda_library, version),
                environment=environment,
                interpreter=interpreter,
                **knobs,
            )
            command = once_only(command, folder / "started") if once else command
            lines.append(f"{json.dumps(name)} = {json.dumps(shlex.join(command))}")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        configuration().parent.mkdir(parents=True, exist_ok=True)
        configuration().write_text("\n".join(lines))
        return [w for name in workers for w in ("--trt-worker", name)]

    return named


@pytest.fixture
def pressed(monkeypatch):
    """Press Ctrl-C where a plan has passed on all samples: once, or at once again."""

    def press(times: int) -> None:
        passed = Best.passed

        def then(*given: Any) -> None:
            nonlocal times
            passed(*given)
            while times:
                times -= 1
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Best, "passed", then)

    return press
