"""`build`, `inspect` and `verify` with engines; the workers are real processes with the fake."""

import json
import shlex

import pytest

from halfwise.store import read_run
from halfwise.tensorrt.workers import configuration
from tests.engines import save_squares, worker


@pytest.fixture
def eight(fake_worker):
    return worker(fake_worker("8.6.1"))


@pytest.fixture
def engine(call, tmp_path, eight):
    """An engine of the model in FP32."""
    save_squares(tmp_path)
    ended = call("build", "m.onnx", "-o", "e.engine", "--inputs", "x.npz", *eight)
    assert ended.code == 0, ended.err
    return tmp_path / "e.engine"


def test_build_and_inspect(call, engine, eight, tmp_path):
    shapes = (
        "--engine",
        "minShapes=x:1x4",
        "--engine",
        "optShapes=x:2x4",
        "--engine",
        "maxShapes=x:8x4",
    )
    plain = call("build", "m.onnx", "-o", "new/plain.engine", *shapes, "--json", *eight)
    record = json.loads(plain.out)
    assert (tmp_path / "new/plain.engine").stat().st_size == record["build"]["engine"]["bytes"]
    assert record["build"]["config"]["low"] is None
    assert record["inspection"]["latency"]["shapes"] == {"x": [2, 4]}
    assert "zeros" in record["inspection"]["notes"][0]
    told = call("inspect", engine, "--model", "m.onnx", "--inputs", "x.npz", *eight)
    assert told.code == 0
    assert "onFakeGPU" in "".join(told.out.split())  # long lines fold
    assert "square, root" in told.out
    assert "zeros" not in told.out
    bare = call("inspect", "new/plain.engine", *eight, "--json")
    ports = {port["name"]: port for port in json.loads(bare.out)["tensors"]}
    assert ports["x"]["limits"] == [{"min": [1, 4], "opt": [2, 4], "max": [8, 4]}]
    assert json.loads(bare.out)["proof"]["nodes"] == []


def test_strong_typing_takes_the_types_of_the_model(call, tmp_path, fake_worker):
    save_squares(tmp_path)
    ten = worker(fake_worker("10.0.1"))
    ended = call("build", "m.onnx", "-o", "e.plan", "--inputs", "x.npz", "--json", *ten)
    record = json.loads(ended.out)
    assert record["build"]["config"]["typing"] == "strong"
    assert record["inspection"]["proof"]["node_share"] == {"fp32": 1.0}
    assert {n["asked"] for n in record["inspection"]["proof"]["nodes"]} == {"fp32"}


def test_the_users_own_engine_is_judged(call, engine, eight, tmp_path):
    ended = call("verify", "m.onnx", engine, "--inputs", "x.npz", "-o", "run", *eight)
    assert ended.code == 0
    assert ended.out.startswith("PASSED in the engine: 12 of 12 samples")
    run = read_run(tmp_path / "run")
    assert run.given_engine is not None
    assert [s.at for s in run.given_engine.shapes] == ["opt"]
    plain = ("build", "m.onnx", "-o", "p.engine", "--inputs", "x.npz", "--to", "fp16", *eight)
    assert call(*plain).code == 0
    ended = call("verify", "m.onnx", "p.engine", "--inputs", "x.npz", *eight)
    assert ended.code == 10
    assert "non-finite" in ended.out


def test_an_engine_is_judged_at_the_shapes_of_its_profile(call, tmp_path, eight):
    """Samples one by one are right; a batch of 4 has shapes of its own, and is judged too."""
    save_squares(tmp_path)
    shapes = (
        "--engine",
        "minShapes=x:1x4",
        "--engine",
        "optShapes=x:2x4",
        "--engine",
        "maxShapes=x:40x4",
    )
    call("build", "m.onnx", "-o", "e.engine", *shapes, *eight)
    ended = call("verify", "m.onnx", "e.engine", "--inputs", "x.npz", *eight)
    assert ended.code == 0
    for place in ("min (x 1×4): passed on 12", "opt (x 2×4): passed on 12", "max (x 40×4): passed"):
        assert place in ended.out
    assert "so they are repeated;" in " ".join(ended.out.split())


def test_workers_of_the_file(call, tmp_path, fake_worker, monkeypatch):
    model, inputs = save_squares(tmp_path)
    lines = [
        f"{name} = {json.dumps(shlex.join(fake_worker(version)))}\n"
        for name, version in (("old", "8.6.1"), ("new", "11.4.0"))
    ]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    configuration().parent.mkdir(parents=True)
    configuration().write_text("".join(["[workers]\n", *lines]))
    fix = ("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt", "--json")
    ended = call(*fix)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["engines"]["worker"]["tensorrt"] == "8.6.1"
