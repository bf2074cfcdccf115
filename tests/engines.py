"""A model that FP16 breaks, its inputs, and engines of it, for tests of commands about engines."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

SQUARES = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)
    <float[1] w = {300}> { [mul] a = Mul(x, w) [square] b = Mul(a, a) [root] y = Sqrt(b) }"""
)
"""FP16 overflows in the square."""
ODD = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2, 4] x) => (float[2, 4] y)
    { [first] a = Abs(x) [odd] b = my.Odd(a) [even] c = my.Even(b) [last] y = Neg(c) }"""
)
"""Two operators that no TensorRT has."""


def save_squares(folder: Path) -> tuple[Path, Path]:
    """Write the model and 12 samples; return their paths."""
    onnx.save(SQUARES, folder / "m.onnx")
    x = np.random.default_rng(0).uniform(1, 2, (12, 4)).astype(np.float32)
    np.savez(folder / "x.npz", x=x)
    return folder / "m.onnx", folder / "x.npz"


def worker(command: Sequence[str]) -> tuple[str, str]:
    """Return the option that names a worker."""
    return "--trt-command", shlex.join(command)
