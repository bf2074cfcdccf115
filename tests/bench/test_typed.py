"""The bench of typed files as far as it goes without a GPU: on the processor."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bench.gpu import typed
from halfwise import api
from halfwise.records import replace
from halfwise.store import write_run
from tests import models

CPU = "CPUExecutionProvider"


@pytest.fixture
def work(fake_worker: Callable[..., list[str]], tmp_path: Path) -> Path:
    """A folder as `bench.gpu.figures` leaves it, of one job."""
    folder = tmp_path / "job"
    folder.mkdir()
    ill = models.conv_chain()
    onnx.save(ill.proto, folder / "model.onnx")
    ((name, array),) = ill.inputs.items()
    np.savez(folder / "inputs.npz", allow_pickle=False, **{name: array})
    words: dict[str, Any] = {"target": "tensorrt", "trt_command": shlex.join(fake_worker())}
    where = (folder / "model.onnx", str(folder / "inputs.npz"))
    api.fix(*where, out=folder / "run", builds=1, max_builds=1, **words)
    return tmp_path


def spoil(file: Path) -> None:
    """Double what the last constant of a model holds."""
    model = onnx.load(file)
    last = model.graph.initializer[-1]
    doubled = 2 * numpy_helper.to_array(last)
    last.CopyFrom(numpy_helper.from_array(doubled.astype(doubled.dtype), last.name))
    onnx.save(model, file)


def test_typed_files_are_beside_their_engines(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = typed.typed
    monkeypatch.setattr(
        typed, "typed", lambda name, run, samples: original(name, run, samples, CPU)
    )
    result = typed.measure(["job", "other"], work)
    assert result.skipped == "no engine was delivered: other"
    assert result.reached
    measured: dict[str, Any] = {f.what.removeprefix("job: "): f.measured for f in result.figures}
    assert measured["within the run's thresholds"] is True
    assert measured["SNR of the typed file (dB)"] > 40
    assert abs(measured["engine's SNR − its (dB)"]) < typed.BEYOND
    assert measured[f"nodes that {CPU} ran"] >= 3
    saved = json.loads(result.save(work).read_text(encoding="utf-8"))
    assert set(saved["details"]["job"]) == {"engine", "node by node", "fused"}
    assert [p.name for p in (work / "job" / "run").glob("*.profile*")] == []
    spoil(work / "job" / "run" / "model.onnx")
    missed = {f.what for f in typed.measure(["job"], work).figures if not f.reached}
    assert missed == {"job: engine's SNR − its (dB)", "job: within the run's thresholds"}


def test_of_an_engine_all_in_fp32_the_typed_file_is_told_alone(work: Path) -> None:
    folder = work / "job" / "run"
    run = api.report(folder)
    assert run.engines is not None
    full = replace(run.engines, rung="tf32")
    (folder / "run.json").unlink()
    write_run(folder, replace(run, engines=full))
    figures, _ = typed.typed("job", folder, typed.held_out(work / "job"), CPU)
    assert [f.what for f in figures if f.reach is not None] == [
        f"job: nodes that {CPU} ran",
        "job: within the run's thresholds",
    ]
    assert figures[2].measured == "tf32"
    assert typed.beside("job", work / "job") == []


def test_samples_of_a_job_are_those_that_were_held_out(tmp_path: Path) -> None:
    data = np.arange(8, dtype=np.float32).reshape(8, 1)
    np.savez(tmp_path / "inputs.npz", x=data)
    assert [s["x"].item() for s in typed.held_out(tmp_path)] == [3, 7]
    np.savez(tmp_path / "heldout.npz", x=data[:1])
    assert [s["x"].item() for s in typed.held_out(tmp_path)] == [0]


def test_without_a_cuda_provider_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["typed", "--work", str(tmp_path), "job"])
    assert typed.main() == 1
    assert "no CUDA provider" in capsys.readouterr().out
