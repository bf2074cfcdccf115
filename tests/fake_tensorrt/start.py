"""Commands that start a worker with the fake: what `--trt-command` takes."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Wrong

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_PYTHONPATH = ":".join(map(str, (_HERE, _ROOT, _ROOT / "src")))
_RTX_PATH = ":".join(map(str, (_HERE / "rtx", _ROOT, _ROOT / "src")))
_LONGEST_ADDRESS = 108
"""Bytes that the address of a socket has room for, with the one that ends it (unix(7))."""


def build_cuda_library(folder: Path) -> Path:
    """Compile `libcuda.c` into `folder`; return the library.

    Raises:
        RuntimeError: there is no C compiler, or it fails; the message tells what to do.
    """
    return _compile("libcuda.c", folder / "libcuda.so.1", "-shared", "-fPIC", "-O1")


def _compile(source: str, out: Path, *options: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(
            "The stand-in for libcuda is written in C, and there is no C compiler here. "
            "`make test` installs one where it may; else install gcc and libc6-dev."
        )
    command = [compiler, *options, "-o", str(out), str(_HERE / source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{compiler} cannot compile {source}: {done.stderr}")
    return out


@contextmanager
def forked_interpreters(folder: Path) -> Iterator[str]:
    """Give an interpreter that has loaded what the fake needs; `folder` takes its files.

    It ends with the block. Raises RuntimeError as `build_cuda_library` does.
    """
    client, place = _compile("interpreter.c", folder / "python"), folder / "socket"
    if len(os.fsencode(place)) >= _LONGEST_ADDRESS:
        yield sys.executable
        return
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(place))
        listening.listen()
        number = listening.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fake_tensorrt.forks", str(number)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _PYTHONPATH},
            pass_fds=[number],
        )
    try:
        yield str(client)
    finally:
        server.communicate()


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
    wrong: Sequence[Wrong] = (),
    pace: Mapping[str, float] | None = None,
    gpus: int = 1,
    memory: int | None = None,
    environment: Mapping[str, str] | None = None,
    interpreter: str = sys.executable,
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
        wrong: Regions that are compiled wrongly.
        pace: See `tests/fake_tensorrt/__init__.py`.
        gpus: Number of GPUs.
        memory: Bytes of each; None for 8 GiB.
        environment: Further variables.
        interpreter: The last word.
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
        "WRONG": [asdict(each) for each in wrong],
        "PACE": pace,
    }
    variables = {
        "PYTHONPATH": _RTX_PATH if version.startswith("1.") else _PYTHONPATH,
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
    return ["env", *(f"{name}={value}" for name, value in variables.items()), interpreter]


def once_only(command: Sequence[str], started: Path, *, then: str = "exit 1") -> list[str]:
    """Return a command that starts once and never again: a machine that is gone for good.

    `started` is a file that is made then; `then` is what the shell does from the second time on,
    with the command as its parameters.
    """
    words = f'if [ -e "$0" ]; then {then}; fi; : > "$0"; exec "$@"'
    return ["sh", "-c", words, str(started), *command]
