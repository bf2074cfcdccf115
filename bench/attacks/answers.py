"""A worker's answers with one fault each: whole commands run on recorded answers of the stand-in.

python -m bench.attacks.answers      records `answers.json` again, with the tests' stand-in
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.attacks.attack import DOCUMENTED, INTERRUPTED, Attack, Command
from bench.attacks.grammar import Fault, Recorded, drawn
from bench.attacks.models import drawn as numbers
from bench.attacks.models import small
from halfwise.tensorrt.worker.transport import GRACE

RECORDED = Path(__file__).with_suffix(".json")
FAULTS = RECORDED.with_name("faults.json")
"""Drawn once, because Hypothesis' draws depend on the loaded modules."""
_REPLAY = Path(__file__).with_name("replay.py")
_FOLDER = "/worker"
"""Replaces, in the record, the folder on the machine that made it."""
_SECONDS = 1.0
"""`--build-timeout` and `--run-timeout`."""
_DOCTOR_SECONDS = 15.0
"""The limit that `doctor` gives a worker."""
_LIMITED = ("--run-timeout", "1", "--wait-timeout", "1")
_LIMITS = {
    "doctor": (),
    "build": (*_LIMITED, "--build-timeout", "1"),
    "inspect": _LIMITED,
    "verify": _LIMITED,
    "fix": (*_LIMITED, "--build-timeout", "1"),
}
_COMMANDS: Mapping[str, Sequence[str]] = {
    "doctor": ("doctor",),
    "build": (
        *("build", "model.onnx", "--inputs", "inputs.npz", "-o", "made.engine"),
        *("--timing-cache", "timing.cache"),
    ),
    "inspect": ("inspect", "given.engine"),
    "verify": ("verify", "model.onnx", "given.engine", "--inputs", "inputs.npz"),
    "fix": (
        *("fix", "model.onnx", "--inputs", "inputs.npz", "-o", "run", "--target", "tensorrt"),
        *("--builds", "1", "--max-builds", "1"),
    ),
}
_COUNTS = {"doctor": 60, "build": 180, "inspect": 120, "verify": 100, "fix": 40}
"""How many faults are drawn for each: 500."""
_SLOW = {
    "doctor": ("hello",),
    "build": ("build", "describe", "inspect", "time"),
    "inspect": ("describe", "inspect", "time"),
    "verify": ("describe", "run", "time"),
    "fix": (),
}
"""Operations that have a time-out of their own, which the command line sets."""
_QUICK = 40
"""Tests run one in this many."""
_MEMORY = 512 << 20


def _seconds(command: str, fault: Fault) -> float:
    """Return the limit: the time-out of the request, and ten seconds.

    After a lost connection a build or a run is tried a second time.
    """
    late = fault["kind"] in ("endless", "cut", "lengths") and fault["op"] in _SLOW[command]
    if not late:
        return 30.0
    return 10.0 + (_DOCTOR_SECONDS if command == "doctor" else 2 * (_SECONDS + GRACE))


def _given(folder: Path, engine: bytes) -> None:
    """Write the files that the commands read."""
    small(folder)
    np.savez(folder / "inputs.npz", x=numbers(6, 4))
    (folder / "given.engine").write_bytes(engine)


def _make(command: str, fault: Fault, folder: Path) -> Command:
    _given(folder, _engine(_RECORDS["build"]))
    told = folder / "answers.json"
    told.write_text(json.dumps(_RECORDS[command]))
    wrong = folder / "fault.json"
    wrong.write_text(json.dumps(fault))
    worker = [sys.executable, "-S", str(_REPLAY), "play", str(told), str(wrong)]
    return Command([*_COMMANDS[command], *_LIMITS[command], "--trt-command", shlex.join(worker)])


def _engine(recorded: Recorded) -> bytes:
    """Return the engine from a recorded build."""
    sha256 = recorded["build"][0][-1]["header"]["engine"]["sha256"]
    files = (base64.b64decode(answer[-1]["payload"]) for answer in recorded["get"])
    return next(data for data in files if hashlib.sha256(data).hexdigest() == sha256)


def _attacks() -> list[Attack]:
    found = []
    for command, faults in json.loads(FAULTS.read_text()).items():
        for number, fault in enumerate(faults):
            place = f"{fault['op']} {fault['nth']}.{fault['frame']}"
            what = {k: v for k, v in fault.items() if k not in ("op", "nth", "frame", "kind")}
            shown = ", ".join(f"{k} {str(v)[:40]!a}" for k, v in what.items())
            late = _seconds(command, fault) > 20 and fault["kind"] == "endless"
            found.append(
                Attack(
                    name=f"{command} {number}, {place}: {fault['kind']} {shown}",
                    make=partial(_make, command, fault),
                    codes=tuple(sorted(DOCUMENTED - {INTERRUPTED})),
                    quick=number % _QUICK == 0 and command != "fix" and not late,
                    seconds=_seconds(command, fault),
                    memory=_MEMORY,
                )
            )
    return found


def record() -> None:
    """Run every command on the stand-in, and record its answers."""
    from tests.fake_tensorrt.start import build_cuda_library, worker_command  # noqa: PLC0415

    records: dict[str, Recorded] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _given(folder, b"")
        worker = worker_command(folder, build_cuda_library(folder))
        for command, words in _COMMANDS.items():
            told = folder / f"{command}.json"
            recorder = [sys.executable, str(_REPLAY), "record", str(told), *worker]
            call = [sys.executable, "-m", "halfwise", *words]
            subprocess.run([*call, "--trt-command", shlex.join(recorder)], cwd=folder, check=True)
            records[command] = json.loads(_anonymous(told.read_text(), name))
            if command == "build":
                (folder / "made.engine").replace(folder / "given.engine")
    RECORDED.write_text(json.dumps(records, indent=1) + "\n")
    draw(records)


def _anonymous(text: str, folder: str) -> str:
    """Return a record without traces of the machine that made it."""
    for word, other in ((folder, _FOLDER), (sys.executable, "/usr/bin/python3")):
        text = text.replace(word, other)
    return text.replace(json.dumps(platform.node()), '"host"')


def draw(records: Mapping[str, Recorded]) -> None:
    """Draw the faults of every command, and write them to a file, one per line."""
    texts = []
    for command, count in _COUNTS.items():
        lines = map(json.dumps, drawn(records[command], count, _SLOW[command]))
        texts.append(f"{json.dumps(command)}: [\n" + ",\n".join(lines) + "\n]")
    FAULTS.write_text("{" + ",\n".join(texts) + "}\n")


_RECORDS: dict[str, Recorded] = json.loads(RECORDED.read_text())
ATTACKS = _attacks()

if __name__ == "__main__":
    record()
