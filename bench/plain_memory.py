"""Runs MODEL on every sample of INPUTS in ONNX Runtime alone; prints two numbers of bytes.

The first is what the interpreter and the libraries took before, the second the peak. Options are
ONNX Runtime's own, but for graph optimisation, which is off, as in the sessions of halfwise; with
"bare" they also make no pattern of where tensors lie, which takes half of the peak or less.

python bench/plain_memory.py MODEL INPUTS [bare]
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(model: str, inputs: str, pattern: str = "") -> None:
    """Run each sample once and tell what it took."""
    before = status("VmRSS")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_pattern = pattern != "bare"
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(inputs) as file:
        arrays = {name: file[name] for name in file}
    for values in zip(*arrays.values(), strict=True):
        session.run(None, dict(zip(arrays, values, strict=True)))
    print(before, status("VmHWM"))


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
