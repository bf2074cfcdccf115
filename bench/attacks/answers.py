"""A worker's answers with one fault each: whole commands run on recorded answers of the stand-in.

python -m bench.attacks.answers      records `answers.json` again, with the tests' stand-in
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from bench.attacks.attack import DOCUMENTED, INTERRUPTED, Attack, Command
from bench.attacks.models import drawn as numbers
from bench.attacks.models import small
from bench.attacks.replay import Fault, Frame

Recorded = Mapping[str, Sequence[Sequence[Frame]]]
"""The frames of every answer, by operation."""
RECORDED = Path(__file__).with_suffix(".json")
_REPLAY = Path(__file__).with_name("replay.py")
_FOLDER = "/worker"
"""Replaces, in the record, the folder on the machine that made it."""
_LIMITS = ("--budget", "run-timeout=1")
_COMMANDS: Mapping[str, Sequence[str]] = {
    "doctor": ("doctor",),
    "build": (
        *("build", "model.onnx", "--inputs", "inputs.npz", "-o", "made.engine"),
        *(*_LIMITS, "--budget", "build-timeout=1"),
    ),
    "inspect": ("inspect", "given.engine", *_LIMITS),
    "verify": ("verify", "model.onnx", "given.engine", "--inputs", "inputs.npz", *_LIMITS),
}
_QUICK = 40
"""Tests run one in this many, and every command without a fault."""
_MEMORY = 512 << 20


def faults(header: Frame) -> Iterator[Fault]:
    """Yield what can be wrong with the end of an answer: of its fields, each once."""
    yield {"kind": "exit", "status": 1}
    yield {"kind": "cut", "status": 0}
    yield {"kind": "payload"}
    yield {"kind": "text", "text": '{"kind": "result"'}
    yield {"kind": "instead", "header": {"kind": "heartbeat"}}
    yield {"kind": "instead", "header": {"kind": "error", "code": "run", "message": "m" * 9999}}
    yield {"kind": "instead", "header": {"kind": "died", "signal": 9}}
    yield {"kind": "instead", "header": {"kind": "died", "signal": None, "status": 9}}
    values = cycle((None, -1, "\x1b[2J../../etc/passwd", [{}], {"a": 1}, math.nan))
    for path, value in zip(_paths(header), values, strict=False):
        yield {"kind": "set", "path": path, "value": value}
        yield {"kind": "delete", "path": path}


def _paths(value: object, way: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    """Yield the path to every part of a header; of a list, to its first item."""
    parts: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value[:1]))
    for step, part in parts:
        yield [*way, step]
        yield from _paths(part, (*way, step))


def _write_given(folder: Path, engine: bytes) -> None:
    """Write the files that the commands read."""
    small(folder)
    np.savez(folder / "inputs.npz", x=numbers(6, 4))
    (folder / "given.engine").write_bytes(engine)


def _make(command: str, fault: Fault, folder: Path) -> Command:
    _write_given(folder, _engine(_RECORDS["build"]))
    answers, wrong = folder / "answers.json", folder / "fault.json"
    answers.write_text(json.dumps(_RECORDS[command]))
    wrong.write_text(json.dumps(fault))
    worker = [sys.executable, "-S", str(_REPLAY), "play", str(answers), str(wrong)]
    return Command([*_COMMANDS[command], "--trt-command", shlex.join(worker)])


def _engine(recorded: Recorded) -> bytes:
    """Return the engine from a recorded build."""
    sha256 = recorded["build"][0][-1]["header"]["engine"]["sha256"]
    chunks = (base64.b64decode(answer[-1]["payload"]) for answer in recorded["get"])
    return next(data for data in chunks if hashlib.sha256(data).hexdigest() == sha256)


def _attacks() -> Iterator[Attack]:
    for command, answers in _RECORDS.items():
        yield Attack(
            f"{command}, sound", partial(_make, command, {"kind": "none"}), (0,), quick=True
        )
        number = 0
        for op, frames in ((op, first) for op, (first, *_) in answers.items()):
            for fault in faults(frames[-1]["header"]):
                number += 1
                where = ".".join(map(str, fault.get("path", ())))
                yield Attack(
                    name=f"{command} {number}, {op}: {fault['kind']} {where}",
                    make=partial(_make, command, {"op": op, **fault}),
                    codes=tuple(sorted(DOCUMENTED - {INTERRUPTED})),
                    quick=number % _QUICK == 0,
                    seconds=60.0,
                    memory=_MEMORY,
                )


def record() -> None:
    """Run every command on the stand-in, and record its answers."""
    from tests.fake_tensorrt.start import build_cuda_library, worker_command  # noqa: PLC0415

    records: dict[str, Recorded] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_given(folder, b"")
        worker = worker_command(folder, build_cuda_library(folder))
        for command, words in _COMMANDS.items():
            answers = folder / f"{command}.json"
            recorder = [sys.executable, str(_REPLAY), "record", str(answers), *worker]
            call = [sys.executable, "-m", "halfwise", *words]
            subprocess.run([*call, "--trt-command", shlex.join(recorder)], cwd=folder, check=True)
            records[command] = json.loads(_anonymous(answers.read_text(), name))
            if command == "build":
                (folder / "made.engine").replace(folder / "given.engine")
    RECORDED.write_text(json.dumps(records, indent=1) + "\n")


def _anonymous(text: str, folder: str) -> str:
    """Return a record without traces of the machine that made it."""
    for word, other in ((folder, _FOLDER), (sys.executable, "/usr/bin/python3")):
        text = text.replace(word, other)
    return text.replace(json.dumps(platform.node()), '"host"')


_RECORDS: dict[str, Recorded] = json.loads(RECORDED.read_text())
ATTACKS = list(_attacks())

if __name__ == "__main__":
    record()
