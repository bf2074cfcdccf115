"""A model that has kept the batch size of its export: every command names it, none crashes."""

import numpy as np
import onnx
import pytest

from tests import frozen

RNG = np.random.default_rng(1)
NAMED = "fails on batches of 1, and runs on batches of 2: split, join, rows hold"


@pytest.fixture
def files(tmp_path):
    """Save a model and inputs one by one, and in the batches that it takes."""
    sketch = frozen.frozen_batch(2, pooled=True)
    onnx.save(sketch.proto("pool_out"), tmp_path / "model.onnx")
    x = RNG.gamma(2, size=(12, 1, frozen.LENGTH, frozen.WIDTH)).astype(np.float32)
    np.savez(tmp_path / "ones.npz", x=x)
    np.savez(tmp_path / "twos.npz", x=x.reshape(6, 2, frozen.LENGTH, frozen.WIDTH))
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "command",
    [
        ("fix", "model.onnx", "--inputs", "ones.npz", "-o", "run"),
        ("verify", "model.onnx", "model.onnx", "--inputs", "ones.npz"),
        ("observe", "model.onnx", "--inputs", "ones.npz"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_run_the_model_name_it(command, refused):
    message = refused(3, *command)
    assert NAMED in message
    assert "arrays of [samples, 2, …]" in message


@pytest.mark.usefixtures("files")
def test_diagnose_names_it_as_a_finding(call):
    ended = call("diagnose", "model.onnx", "--inputs", "ones.npz", "-o", "run")
    assert ended.code == 10
    (rung,) = ended.record["diagnosis"]
    assert (rung["name"], rung["passed"]) == ("harness", False)
    assert NAMED in rung["cause"]
    assert rung["nodes"] == rung["frozen"]["nodes"] == ["split", "join", "rows"]
    assert (rung["frozen"]["given"], rung["frozen"]["runs"], rung["frozen"]["shown"]) == (
        1,
        2,
        True,
    )


@pytest.mark.usefixtures("files")
def test_the_advice_works(call):
    assert call("diagnose", "model.onnx", "--inputs", "twos.npz", "-o", "run").code == 0
    assert call("fix", "model.onnx", "--inputs", "twos.npz", "-o", "fixed").code == 0


@pytest.mark.usefixtures("files")
def test_lint_names_where_it_begins(call):
    assert "frozen-batch" in (told := call("lint", "model.onnx").out)
    assert "split" in told


@pytest.mark.usefixtures("files")
def test_another_failure_stays_what_it_is(refused, tmp_path):
    np.savez(tmp_path / "short.npz", x=np.ones((4, 0, frozen.LENGTH, frozen.WIDTH), np.float32))
    assert refused(3, "fix", "model.onnx", "--inputs", "short.npz", "-o", "run")
