"""Engines of TensorRT for RTX through the command line, on the stand-in: no such GPU was seen."""

import shlex

import onnx
import pytest

from halfwise.records import BuildConfig
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.link import model_files
from tests import models
from tests.end_to_end.conftest import Ended

VERSION = "1.7.1"
ENGINE = ("--target", "tensorrt", "--trt-command")


def told(ended: Ended) -> str:
    return " ".join(ended.out.split())


@pytest.fixture
def command(fake_worker):
    return shlex.join(fake_worker(VERSION))


def test_fix_and_verify(engines, call, command):
    ended = engines(models.layer_norm(), version=VERSION)
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert (found["worker"]["tensorrt"], found["typing"]) == (VERSION, "strong")
    assert found["worker"]["typing"] == ["strong"]
    assert "TensorRT for RTX 1.7.1" in told(ended)
    assert all(row["latency"]["median_ms"] > 0 for row in found["results"])
    assert ended.record["verdict"]["level"] == "engine"
    judged = call(
        *("verify", "model.onnx", "run/model.engine", "--inputs", "model.npz"),
        *("--trt-command", command, "-o", "judged"),
        folder="judged",
    )
    assert judged.code == 0, judged.err
    assert "TensorRT for RTX 1.7.1" in told(judged)
    again = call("verify", "run", *ENGINE, command, "-o", "again", folder="again")
    assert again.code == 0, again.err
    (held,) = again.record["held"]
    assert (held["target"], held["outcome"]) == ("TensorRT for RTX", "same")


def test_an_engine_that_is_wrong_there_fails(engines):
    ended = engines(models.layer_norm(), version=VERSION, broken={"square": 1.5})
    assert ended.code == 10
    assert ended.record["engines"]["delivered"] is None


@pytest.fixture
def on_a_gpu(monkeypatch, command):
    """Let `--target rtx` find the stand-in, beside a driver."""
    monkeypatch.setenv("HALFWISE_RTX_COMMAND", command)
    monkeypatch.setattr("halfwise.options.engines.driver_version", lambda: "580.1")


@pytest.mark.usefixtures("on_a_gpu")
def test_the_target_is_run_where_a_gpu_is(fix, call):
    ended = fix(models.layer_norm(), "--target", "rtx")
    assert ended.code == 0, ended.err
    assert "TensorRT for RTX 1.7.1" in told(ended)
    assert ended.record["verdict"]["level"] == "engine"
    again = call("verify", "run", "--target", "rtx", "-o", "again", folder="again")
    assert again.code == 0, again.err
    (held,) = again.record["held"]
    assert (held["target"], held["outcome"]) == ("TensorRT for RTX", "same")


@pytest.mark.usefixtures("on_a_gpu", "in_rtx")
def test_a_capability_asks_for_a_build_ahead_of_time(fix):
    ended = fix(models.small(), "--target", "rtx", "--sm", "SM89", "--no-repair")
    assert ended.code == 0, ended.err
    (_, run) = ended.record["verdict"]["as_file"]
    assert run["built"]
    assert "SM89" in run["runner"]


def test_the_real_builder_takes_what_the_worker_asks(rtx, cuda_library, tmp_path):
    """Without a driver its runtime reads no engine, so that the test ends at the build."""
    onnx.save(models.layer_norm().proto, tmp_path / "m.onnx")
    settings = (f"HALFWISE_CUDA_LIBRARY={cuda_library}", f"HALFWISE_CACHE={tmp_path / 'cache'}")
    config = BuildConfig(
        model_sha256=model_files(tmp_path / "m.onnx").sha256, typing="strong", low=None
    )
    *begin, python = rtx.command
    with Worker("rtx", [*begin, *settings, python]) as worker:
        assert (worker.info.product, worker.info.typing) == ("TensorRT for RTX", ("strong",))
        build = worker.build(tmp_path / "m.onnx", config, number=1, purpose="test", timeout=300.0)
    assert build.status == "built", build.message
    assert build.layers


def test_doctor(call, command):
    ended = call("doctor", "--trt-command", command)
    assert ended.code == 0, ended.err
    lines = " ".join(ended.out.split())
    assert "TensorRT for RTX 1.7.1" in lines
    assert "halfwise was not run with TensorRT for RTX 1.7.1" in lines


def test_recipes_are_for_tensorrt(engines, call):
    assert engines(models.layer_norm(), version=VERSION).code == 0
    refused = call("export", "run", "--as", "python", "-o", "recipe")
    assert refused.code == 2
    assert "--trt-version" in refused.err
    told = call("export", "run", "--as", "python", "--trt-version", "11.1", "-o", "recipe")
    assert told.code == 0, told.err
