"""What every runner does around a conversion: it takes folders, times, and tells how it ended.

    python RUNNER.py TASK OUT SETTINGS

TASK holds model.onnx, calibration/*.npz (one sample each) and judging.json. OUT gets mixed.onnx and
result.json. SETTINGS is JSON. Runs in the environment of a peer, so it needs the standard library
alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Convert = Callable[[Path, Path, dict[str, Any]], dict[str, Any]]
"""From TASK, the file to write and the settings to what else is to be told."""


def main(convert: Convert) -> None:
    """Run `convert` as the command line asks, and write what became of it."""
    task, out, settings = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    result: dict[str, Any] = {"failure": None}
    started = time.monotonic()
    try:
        result |= convert(task, out / "mixed.onnx", settings)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
        told = next((line for line in str(error).splitlines() if line.strip()), "")
        result["failure"] = f"{type(error).__name__}: {told.strip()}".removesuffix(": ")
    result["convert_seconds"] = time.monotonic() - started
    result["processor_seconds"] = time.process_time()
    result["peak_bytes"] = peak_bytes()
    (out / "result.json").write_text(json.dumps(result), encoding="utf-8")


def peak_bytes() -> int:
    """Return the peak memory of this process; getrusage's would include the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
