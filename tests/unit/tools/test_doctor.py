import sys

import onnxruntime
import pytest

from halfwise import api
from halfwise.tensorrt import link
from halfwise.tensorrt.workers import WorkerSpec
from halfwise.tools.doctor import worker_facts
from tests.workers import told_source


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path / "cache"))


def test_a_worker_that_can_build(monkeypatch, tmp_path):
    monkeypatch.setattr(link, "worker_source", told_source)
    facts = worker_facts([WorkerSpec("orin", (sys.executable,), "halfwise.toml")])
    assert facts["worker orin"] == f"{sys.executable} (halfwise.toml)"
    assert facts["worker orin TensorRT"].startswith("8.6.0, Python 3.")
    assert facts["worker orin GPU"] == (
        "Paper GPU, compute capability 9.0, driver 535.1, 6 GiB of 8 GiB free"
    )
    assert facts["worker orin typing"] == "weak"
    assert facts["worker orin can"] == "build, run, time and inspect engines"
    assert "halfwise was run with TensorRT 8.6.0" in facts["worker orin notes"]
    assert str(tmp_path / "cache") in facts["worker orin notes"]
    assert "worker orin unusable" not in facts


def test_workers_that_cannot_be_used_are_told_all_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr("halfwise.tools.doctor.ANSWER_SECONDS", 600.0)
    # Each ends when all six are there; one after another, the first would wait for ever.
    script = ": > here-$0; until [ -e here-5 ] && [ $(ls here-* | wc -l) = 6 ]; do sleep 0.1; done"
    monkeypatch.chdir(tmp_path)
    bad = [WorkerSpec(f"bad{i}", ("sh", "-c", f"{script}; exit 7", str(i)), "x") for i in range(6)]
    facts = worker_facts([*bad, WorkerSpec("absent", ("/nowhere/python3",), "x")])
    for spec in bad:
        assert "sh ended with status 7" in facts[f"worker {spec.name} unusable"]
    assert "No such file or directory" in facts["worker absent unusable"]
    assert "worker absent can" not in facts


def test_without_tensorrt():
    facts = worker_facts([WorkerSpec("here", (sys.executable,), "default")])
    assert facts["worker here TensorRT"].startswith("not found, Python 3.")
    assert "cannot import tensorrt" in facts["worker here unusable"]


def test_doctor():
    facts = api.doctor()
    assert facts["onnxruntime"] == onnxruntime.__version__
    assert facts["device cpu"] == "available"
    assert facts["tensorrt"].startswith(
        "ran with 8.6.0; only checked against the bindings of TensorRT for RTX 1.7.1"
    )
    assert sys.executable in facts["worker tensorrt"]
    assert "cannot import tensorrt" in facts["worker tensorrt unusable"]
