"""Fixes models for TensorRT on a GPU and writes `gpu_<name>.json` each, and a table.

    python -m bench.gpu.figures --trt-python PYTHON --work DIR NAME …

Run it from the repository's root with halfwise installed; `run.sh` needs no installation. Names are
in `bench/gpu/jobs.py`. Exits with 1 if a figure is not reached. bench/gpu/README.md says how to
prepare a host.
"""

from __future__ import annotations

from bench.gpu.autocast import FILE as AUTOCAST
from bench.runs import ROOT

RESULTS = ROOT / "bench" / "results"
FILES = ("model.onnx", "inputs.npz", "heldout.npz", AUTOCAST)
BISECT_SECONDS = 420.0
