"""Commands that start a worker with the fake: what `--trt-command` takes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.fake_tensorrt.faults import Fault

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_PATHS = (_HERE, _ROOT, _ROOT / "src")


def build_cuda_library(folder: Path) -> Path:
    """Compile `libcuda.c` into `folder`; return the library.

    Raises:
        RuntimeError: there is no C compiler, or it fails; the message tells what to do.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(
            "The stand-in for libcuda is written in C, and there is no C compiler here. "
            "`make test` installs one where it may; else install gcc and libc6-dev."
        )
    library = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_HERE / "libcuda.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{compiler} cannot compile the stand-in for libcuda: {done.stderr}")
    return library


def worker_command(
    folder: Path,
    cuda_library: Path | None,
    version: str = "8.6.1",
    *,
    faults: Sequence[Fault] = (),
    vary: tuple[float, int] | None = None,
    fused: Sequence[Sequence[str]] = (),
    ignored: Sequence[str] = (),
    lossy: Mapping[str, float] | None = None,
    broken: Mapping[str, float] | None = None,
    pace: Mapping[str, float] | None = None,
    gpus: int = 1,
    memory: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the words of a command that ends in an interpreter with the fake.

    Args:
        folder: Takes the worker's cache, lock and temporary files, and the counts of faults.
        cuda_library: What `build_cuda_library` gave; None for a machine without a driver.
        version: Of TensorRT; there must be a snapshot of its bindings.
        faults: What goes wrong.
        vary: Probability that a free node is FP32, and the seed.
        fused: Blocks of nodes that become one layer each.
        ignored: Nodes whose constraints are not honoured.
        lossy: Factors on what nodes give where they are low.
        broken: Factors on what nodes give in any precision.
        pace: See `tests/fake_tensorrt/__init__.py`.
        gpus: Number of GPUs.
        memory: Bytes of each; None for 8 GiB.
        environment: Further variables.
    """
    folders = {name: folder / f"worker-{name}" for name in ("cache", "counts", "tmp")}
    for made in folders.values():
        made.mkdir(parents=True, exist_ok=True)
    knobs = {
        "FAULTS": [asdict(fault) for fault in faults],
        "FUSED": fused,
        "IGNORED": ignored,
        "LOSSY": lossy,
        "BROKEN": broken,
        "PACE": pace,
    }
    variables = {
        "PYTHONPATH": ":".join(map(str, _PATHS)),
        "HALFWISE_CACHE": str(folders["cache"]),
        "TMPDIR": str(folders["tmp"]),
        "HALFWISE_CUDA_LIBRARY": str(cuda_library or "libcuda-that-is-not-there.so"),
        "HALFWISE_FAKE_TENSORRT": version,
        "HALFWISE_FAKE_TENSORRT_COUNTS": str(folders["counts"]),
        "HALFWISE_FAKE_CUDA_DEVICES": str(gpus),
        **{f"HALFWISE_FAKE_TENSORRT_{k}": json.dumps(v) for k, v in knobs.items() if v},
    }
    if vary is not None:
        variables["HALFWISE_FAKE_TENSORRT_VARY"] = f"{vary[0]}:{vary[1]}"
    if memory is not None:
        variables["HALFWISE_FAKE_CUDA_MEMORY"] = str(memory)
    variables.update(environment or {})
    return ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable]
