"""Functions of the user's that fail in every way: inputs, preprocessing, pipelines, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.models import drawn, small

FILE = "user.py"
HEAD = "import numpy as np\n"
"""What each file begins with; what it goes wrong at comes in line 3."""

RAISED: Mapping[str, str] = {
    "an error": "raise ValueError('no')",
    "an error without words": "raise ValueError",
    "an exit": "raise SystemExit(0)",
    "an exit with a text": "raise SystemExit('bye')",
    "no memory": "raise MemoryError",
    "a system error with other words": "raise OSError(5, 'x', 'y')",
    "recursion without end": "f = lambda: f(); f()",
    "an assertion": "assert not 1",
    "a group": "raise ExceptionGroup('g', [ValueError('a'), TypeError('b')])",
    "colours": "raise ValueError('\\x1b[31m' + 'red' + '\\x1b[2J')",
    "many lines": "raise ValueError('a\\n' * 10000)",
    "half a character": "raise ValueError('\\ud800')",
}
"""What functions of every kind do."""


def _inputs(folder: Path, body: str) -> Command:
    (folder / FILE).write_text(f"{HEAD}def f():\n {body}\n", encoding="utf-8")
    return Command(["verify", "model.onnx", "model.onnx", "--inputs", f"{FILE}:f", "--json"])


def _metric(folder: Path, body: str) -> Command:
    (folder / FILE).write_text(f"{HEAD}def f(a, b, c):\n {body}\n", encoding="utf-8")
    np.savez(folder / "x.npz", x=drawn(8, 1, 4))
    arguments = ["--inputs", "x.npz", "--metric", f"{FILE}:f", "--metric-drop", "0", "--json"]
    return Command(["verify", "model.onnx", "model.onnx", *arguments])


def _preprocess(folder: Path, body: str) -> Command:
    (folder / FILE).write_text(f"{HEAD}def f(path):\n {body}\n", encoding="utf-8")
    pictures = folder / "pictures"
    pictures.mkdir()
    for name in "abcd":
        (pictures / f"{name}.png").write_bytes(b"")
    arguments = ["--inputs", "pictures", "--preprocess", f"{FILE}:f", "--json"]
    return Command(["verify", "model.onnx", "model.onnx", *arguments])


def _pipeline(folder: Path, body: str) -> Command:
    (folder / FILE).write_text(f"{HEAD}def f(raw):\n {body}\n", encoding="utf-8")
    np.savez(folder / "raw.npz", x=drawn(4, 8, 8, 3))
    arguments = ["--samples", "raw.npz", "--json"]
    return Command(["inputs", "compare", f"{FILE}:f", f"{FILE}:f", *arguments])


KINDS = {
    "inputs": _inputs,
    "metric": _metric,
    "preprocessing": _preprocess,
    "pipeline": _pipeline,
}


def _raising(kind: str, what: str, body: str) -> Attack:
    def make(folder: Path) -> Command:
        small(folder)
        return KINDS[kind](folder, body)

    return Attack(f"{kind} function: {what}", make, (3,), says=(f"{FILE}, line 3",))


ATTACKS = [_raising(kind, what, body) for kind in KINDS for what, body in RAISED.items()]
