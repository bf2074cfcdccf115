"""No Python warning reaches a user: neither NumPy's nor ONNX's, nor of what will be removed."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

pytestmark = pytest.mark.slow

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 8] x) => (float[n, 8] y, float[n, 8] z)
{ h = MatMul(x, w)  e = Exp(h)  l = Log(e)  y = Tanh(l)
  a = Abs(h)  q = Sqrt(a)  z = Reciprocal(q) }"""
COMMANDS = (
    "lint model.onnx",
    "fix model.onnx --inputs x.npz -o run",
    "report run --full",
    "verify model.onnx run/model.onnx --inputs x.npz -o judged",
    "verify model.onnx wrong.npz --inputs x.npz",
    "compare model.onnx --inputs x.npz --b emulation:run/model.onnx",
    "observe model.onnx --inputs x.npz",
    "diagnose model.onnx --inputs x.npz -o diagnosis",
    "ladder model.onnx --inputs x.npz -o ladder",
    "doctor",
)


def test_commands_on_values_that_overflow(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    proto = parser.parse_model(MODEL)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    x = np.random.default_rng(1).standard_normal((12, 1, 8)).astype(np.float32)
    x[3], x[4] = 1e3, 3e37
    np.savez(tmp_path / "x.npz", x=x)
    ends = np.where(x > 0, np.float32(3e38), np.nan)
    np.savez(tmp_path / "wrong.npz", y=ends, z=-ends)
    warned = dict[str, list[str]]()
    for command in COMMANDS:
        words = [sys.executable, "-W", "always", "-m", "halfwise", *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 10), (command, done.stderr)
        if lines := re.findall(r".*\w+Warning: .*", done.stderr + done.stdout):
            warned[command] = lines
    assert not warned
