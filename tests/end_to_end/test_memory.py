"""What `fix` takes of memory follows from what plain inference takes."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.unit.graph.sketch import Sketch

MIB = 1 << 20
TENSOR = 32 * MIB


@pytest.fixture
def swelling():
    """A chain of tensors of 32 MiB each, of which plain inference holds two, and a small output."""
    s = Sketch()
    x = s.op("Expand", s.input("x", [1, 64]), np.array([TENSOR // 256, 64]), name="wide")
    for i in range(5):
        x = s.op(("Sigmoid", "Tanh", "Abs")[i % 3], x, name=f"step{i}")
    return s.proto(s.op("ReduceMax", x, name="end", axes=[0], keepdims=1))


def test_memory_is_that_of_a_few_tensors_at_a_time(tmp_path, swelling):
    onnx.save(swelling, tmp_path / "model.onnx")
    samples = np.random.default_rng(0).standard_normal((3, 1, 64)).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", x=samples)
    command = ["fix", "model.onnx", "--inputs", "inputs.npz", "-o", "run", "--allow", "random"]
    subprocess.run(
        [sys.executable, "-m", "halfwise", *command],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    peak = json.loads((tmp_path / "run" / "run.json").read_bytes())["cost"]["peak_rss_bytes"]
    assert peak < 160 * MIB + 5 * TENSOR
