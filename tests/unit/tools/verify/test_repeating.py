"""Whole repetitions are tested in tests/end_to_end/test_engine_commands.py."""

import json
import shlex
from functools import partial

import numpy as np
import pytest

from halfwise import fix, verify_run
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.tensorrt.workers import trust_nearest
from halfwise.tools.verify.repeating import _workers
from tests.engines import SQUARES

METRIC = "open('ran', 'w').close()\n\ndef same(reference, candidate, labels):\n    return 1.0\n"
X = {"x": np.random.default_rng(1).uniform(1, 2, (12, 4)).astype(np.float32)}


def test_names_of_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HALFWISE_TRT_COMMAND", raising=False)
    (tmp_path / "halfwise.toml").write_text(
        '[tensorrt.workers.a]\ncommand = "pa"\n[tensorrt.workers.b]\ncommand = "pb"\n'
    )
    trust_nearest()
    assert [spec.name for spec in _workers()] == ["a", "b"]
    assert [spec.name for spec in _workers((), ("b",))] == ["b"]
    assert [spec.name for spec in _workers(("p",), ("b",))] == ["tensorrt", "b"]
    alike = _workers(("p", "ssh orin 'python 3'"))
    assert [spec.name for spec in alike] == ["p", "ssh orin 'python 3'"]


def test_a_strongly_typed_run_on_a_weakly_typed_worker(tmp_path, fake_worker):
    new, old = (shlex.join(fake_worker(version)) for version in ("10.0.1", "8.6.1"))
    fix(SQUARES, X, out=tmp_path / "run", target="tensorrt", trt_command=new)
    other = {"x": X["x"][:5] * 1.01}
    found = verify_run(tmp_path / "run", other, trt_command=[old])
    (row,) = found.rows
    assert (found.passed, found.samples) == (True, 5)
    assert row.build is not None
    assert row.build.config.typing == "weak"
    assert (row.build.config.low, row.build.config.keep) == ("fp16", ("square", "root"))
    (tmp_path / "run" / "model.fp32.onnx").unlink()
    with pytest.raises(RecordMismatch, match="lacks the FP32 model"):
        verify_run(tmp_path / "run", other, trt_command=[old])


def test_a_run_folder_loads_no_plugins_and_joined_samples_are_not_judged(
    tmp_path, fake_worker, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    command, record = shlex.join(fake_worker()), tmp_path / "run" / "run.json"
    fix(SQUARES, X, out=tmp_path / "run", target="tensorrt", trt_command=command, builds=1)
    told = json.loads(record.read_text())
    heldout = told["verdict"]["samples"]
    told["search"]["joined"] = heldout[:1]
    record.write_text(json.dumps(told))
    assert verify_run(tmp_path / "run", X, trt_command=[command]).samples == len(heldout) - 1
    request = understand(X, {})
    case = load_case(SQUARES, request.data, request.criterion)
    assert case.heldout.marks is not None
    told["search"]["seen"] = [*told["search"]["seen"], case.heldout.marks[1]]
    record.write_text(json.dumps(told))
    assert verify_run(tmp_path / "run", X, trt_command=[command]).samples == len(heldout) - 2
    for built in told["engines"]["builds"]:
        built["config"]["plugins"] = ["evil.so"]
    record.write_text(json.dumps(told))
    (row,) = verify_run(tmp_path / "run", X, trt_command=[command]).rows
    assert "worker tensorrt names none" in row.failure
    with pytest.raises(UsageError, match="--metric is top1, but the run was judged without"):
        verify_run(tmp_path / "run", X, metric="top1")
    demand_that_no_metric_of_the_folder_runs(tmp_path, told, command)


def demand_that_no_metric_of_the_folder_runs(folder, told, command):
    again = partial(verify_run, folder / "run", X, trt_command=[command])
    told["criterion"] |= {"rel_max": None, "metric": "my metric.py:same", "metric_drop": 0.1}
    for built in told["engines"]["builds"]:
        built["config"]["plugins"] = []
    (folder / "run" / "run.json").write_text(json.dumps(told))
    (folder / "my metric.py").write_text(METRIC)
    with pytest.raises(UsageError, match="never run") as refused:
        again()
    assert "--metric 'my metric.py:same'" in refused.value.hint
    with pytest.raises(UsageError, match=r"--metric is other.py:same"):
        again(metric="other.py:same")
    assert not (folder / "ran").exists()
    (folder / "my metric.py").rename(folder / "run" / "my metric.py")
    row = again(metric="run/my metric.py:same").rows[0]
    assert row.verdict is not None
    assert row.verdict.metric is not None
    assert row.verdict.metric.passed
    # It gives the same for all outputs.
    assert [u.kind for u in row.verdict.unjudged] == ["metric"]
    assert not row.verdict.passed


def test_runs_without_an_engine(tmp_path):
    fix(SQUARES, X, out=tmp_path / "run")
    with pytest.raises(CaseError, match="delivered no engine"):
        verify_run(tmp_path / "run", X)
    with pytest.raises(RecordMismatch, match="not a run folder"):
        verify_run(tmp_path, X)
