"""`polygraphy debug precision --mode bisect` on the same model, host and tolerance, for comparison.

Polygraphy and onnx must be importable where tensorrt is. Its answer is a number of layers from
the network's inputs on; the engine of its last good build is judged like halfwise's.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.jobs import Host

_START = "from polygraphy.tools import main; main()"
_CHECK = Path(__file__).resolve().with_name("polygraphy_check.py")
_ANSWER = re.compile(r"try running the (first|last) (\d+) layer\(s\) in higher precision")
_TRIED = re.compile(r"Selecting first (\d+) layer\(s\)")
_FAILED = "Failed to create network or engine"


@dataclass(frozen=True)
class Bisected:
    """Polygraphy's run.

    Attributes:
        command: What was run.
        ended: "answer", "no answer", "timeout" or "failed".
        seconds: Wall time.
        builds: Engines that it built or tried to build.
        failed_builds: Those that failed to build.
        layers: Its answer: the number of first layers in FP32; None without one.
        tried: Number of layers in FP32 of each build.
        errors: Largest absolute error of each engine.
        engine: The last good engine; None without one.
        version: Version of Polygraphy.
    """

    command: str
    ended: str
    seconds: float
    builds: int
    failed_builds: int
    layers: int | None
    tried: tuple[int, ...]
    errors: tuple[float, ...]
    engine: Path | None
    version: str

    def told(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        engine = None if self.engine is None else self.engine.name
        return {**asdict(self), "engine": engine, "errors": [str(e) for e in self.errors]}


def command(
    host: Host,
    model: Path,
    shapes: Mapping[str, tuple[int, ...]],
    check: tuple[str, ...],
) -> list[str]:
    """Return the command that bisects `model`; it works in the folder where it is started.

    Args:
        host: Where engines are built.
        model: The FP32 model, dynamic in its first axes.
        shapes: Shapes of the inputs to optimise for, which are the largest too.
        check: The command that judges `polygraphy_debug.engine`.
    """
    sources = host.sources()
    smallest = {n: (1, *shape[1:]) for n, shape in shapes.items()}
    texts = {
        "--trt-min-shapes": smallest,
        "--trt-opt-shapes": shapes,
        "--trt-max-shapes": shapes,
    }
    profile = [
        word
        for option, of in texts.items()
        for word in (option, *(f"{n}:[{','.join(map(str, s))}]" for n, s in of.items()))
    ]
    return [
        *(host.trt_python, "-u", "-c", _START, "debug", "precision"),
        *("--mode", "bisect", "--fp16"),
        *(() if sources is None else ("--tactic-sources", *sources)),
        *profile,
        *("--artifacts", "polygraphy_debug.engine", "--art-dir", "artifacts"),
        str(model),
        *("--check", *check),
    ]


def bisect(
    host: Host,
    model: Path,
    arrays: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
    tolerance: float,
    folder: Path,
    seconds: float,
) -> Bisected:
    """Bisect a model.

    Args:
        host: Where engines are built.
        model: The FP32 model.
        arrays: Inputs in one batch, and their FP32 outputs.
        tolerance: Largest absolute error.
        folder: Working folder; created.
        seconds: When to give up.
    """
    folder.mkdir(parents=True)
    inputs, outputs = arrays
    stored: dict[str, Any] = {f"in:{n}": a for n, a in inputs.items()}
    stored.update({f"out:{n}": a for n, a in outputs.items()})
    np.savez(folder / "arrays.npz", **stored)
    record = folder / "checks.jsonl"
    check = (str(_CHECK), "polygraphy_debug.engine", "arrays.npz", str(tolerance), record.name)
    shapes = {n: a.shape for n, a in inputs.items()}
    words = command(host, model.resolve(), shapes, (host.trt_python, *check))
    log = folder / "polygraphy.log"
    started = time.monotonic()
    with log.open("w") as file:
        try:
            done = subprocess.run(
                words, cwd=folder, stdout=file, stderr=file, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            done = None
    took = time.monotonic() - started
    asked = [host.trt_python, "-c", "import polygraphy; print(polygraphy.__version__)"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return _read(folder, " ".join(words), done, took, told.strip())


def _read(folder: Path, words: str, done: int | None, took: float, version: str) -> Bisected:
    """Return the result from Polygraphy's log and its checks."""
    text = (folder / "polygraphy.log").read_text(encoding="utf-8", errors="replace")
    record = folder / "checks.jsonl"
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    errors = tuple(float(json.loads(line)["error"]) for line in lines)
    answers = _ANSWER.findall(text)
    good = sorted(folder.glob("artifacts/good/*.engine"), key=lambda p: p.stat().st_mtime)
    failed = text.count(_FAILED + ", continuing")
    ended = "timeout" if done is None else "answer" if answers else "no answer"
    return Bisected(
        command=words,
        ended="failed" if not lines and not failed else ended,
        seconds=took,
        builds=len(lines) + failed,
        failed_builds=failed,
        layers=int(answers[-1][1]) if answers else None,
        tried=tuple(int(n) for n in _TRIED.findall(text)),
        errors=errors,
        engine=good[-1] if good else None,
        version=version,
    )
