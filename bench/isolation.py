"""Kills workers in every way, while they build and while they run, and checks what is left.

TensorRT and libcuda are those of `tests/fake_tensorrt`; worker and client are real. Each failure
must be recorded for what it is, and no process may be left.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx.parser

from bench.figures import Figure, equal, reported
from bench.runs import Workbench
from halfwise.records import BuildConfig, BuildOutcome, EngineFile
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import EngineFailed
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.start import build_cuda_library, worker_command

FAILURES = 100
SEED = 4
EXPECTED = {
    "segv": ("crashed", "SIGSEGV"),
    "kill": ("crashed", "SIGKILL"),
    "abort": ("crashed", "SIGABRT"),
    "hang": ("timeout", None),
    "disconnect": ("lost", None),
}
"""Status and signal to be recorded for each failure, but for a connection lost in a run."""
RAN_AGAIN = ("ran", None)
"""A run whose connection is lost is asked once more, and that works."""
TIMEOUT = 6.0
"""Seconds for what hangs: a fresh process imports the fake and reads the model in two."""
_SETTLING = 60.0
_MARK = "HALFWISE_BENCH_MARK"
_SAMPLE = {"x": np.ones((1, 4), np.float32)}


@dataclass(frozen=True)
class Trial:
    """One failure.

    Attributes:
        at: "build" or "run".
        do: What happens; a key of `EXPECTED`.
    """

    at: str
    do: str

    @property
    def asked_again(self) -> bool:
        """Whether the same request follows it."""
        return self.at == "run" and self.do == "disconnect"


def trials(count: int, seed: int = SEED) -> list[Trial]:
    """Return failures in random order, each kind about equally often."""
    kinds = [Trial(at, do) for at in ("build", "run") for do in EXPECTED]
    drawn = [kinds[i % len(kinds)] for i in range(count)]
    random.Random(seed).shuffle(drawn)  # noqa: S311 - no secret
    return drawn


@dataclass
class Seen:
    """Findings after each failure: how often all was well, and what was not."""

    recorded: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


class Isolation:
    """A worker with its faults, and its folder."""

    def __init__(self, folder: Path, planned: Sequence[Trial]) -> None:
        """Write the model; take the failures in order."""
        self.planned = planned
        self.model = folder / "model.onnx"
        text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 4] y)'
        onnx.save(onnx.parser.parse_model(text + "{ [twice] y = Add(x, x) }"), self.model)
        self.mark = uuid.uuid4().hex
        self.command = worker_command(
            folder,
            build_cuda_library(folder),
            faults=self._faults(),
            environment={_MARK: self.mark},
        )
        self.seen = Seen()

    def _faults(self) -> list[Fault]:
        # The first build makes the engine for the runs.
        calls = Counter({"build": 1})
        found = []
        for trial in self.planned:
            calls[trial.at] += 1
            found.append(Fault(trial.at, trial.do, on=(calls[trial.at],)))
            calls[trial.at] += trial.asked_again
        return found

    def run(self) -> Seen:
        """Cause all failures, and check after each."""
        with Worker("fake", self.command) as worker:
            engine = self._good_build(worker, 0).engine
            assert engine is not None
            for number, trial in enumerate(self.planned, start=1):
                found = self._fail(worker, trial, number, engine)
                self._look(worker, trial, number, found)
            # All planned failures are over; what follows works.
            engine = self._good_build(worker, len(self.planned) + 1).engine
            assert engine is not None
            assert (worker.run(engine, 0, _SAMPLE)["y"] == 2).all()
        self.seen.left += len(self._processes(0))
        return self.seen

    def _build(self, worker: Worker, number: int, timeout: float | None) -> BuildOutcome:
        config = BuildConfig(
            model_sha256="0" * 64, typing="weak", low="fp16", workspace_bytes=(number + 1) << 20
        )
        return worker.build(self.model, config, number=number, purpose="bench", timeout=timeout)

    def _good_build(self, worker: Worker, number: int) -> BuildOutcome:
        outcome = self._build(worker, number, None)
        assert outcome.status == "built", outcome
        return outcome

    def _fail(
        self, worker: Worker, trial: Trial, number: int, engine: EngineFile
    ) -> tuple[str, str | None]:
        """Cause the failure; return the recorded status and signal."""
        timeout = TIMEOUT if trial.do == "hang" else 60.0
        if trial.at == "build":
            outcome = self._build(worker, number, timeout)
            return outcome.status, outcome.signal
        try:
            worker.run(engine, 0, _SAMPLE, timeout)
        except EngineFailed as failed:
            return failed.status, failed.signal
        return "ran", None

    def _look(
        self, worker: Worker, trial: Trial, number: int, found: tuple[str, str | None]
    ) -> None:
        seen, name = self.seen, f"{number}: {trial.do} in a {trial.at}"
        seen.kinds[f"{trial.do} in a {trial.at}"] += 1
        if left := self._left(worker):
            seen.left += len(left)
            seen.wrong.append(f"{name}: processes {left} are left")
        if found == (RAN_AGAIN if trial.asked_again else EXPECTED[trial.do]):
            seen.recorded += 1
        else:
            seen.wrong.append(f"{name}: recorded as {found}")

    def _left(self, worker: Worker) -> list[int]:
        """Return the processes that do not belong to the open connection.

        Killed processes may take a moment to end.
        """
        deadline = time.monotonic() + _SETTLING
        while (left := self._processes(worker.process_id or 0)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def _processes(self, supervisor: int) -> list[int]:
        """Return the marked processes, except `supervisor` and its child."""
        mark = f"{_MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended, or is another user's
            if supervisor not in (int(entry.name), parent):
                found.append(int(entry.name))
        return found


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Cause all failures; nothing is skipped if there is a C compiler."""
    folder = bench.folder / "isolation"
    folder.mkdir()
    try:
        isolation = Isolation(folder, trials(FAILURES))
    except RuntimeError as error:
        return [], str(error)
    started = time.monotonic()
    seen = isolation.run()
    seconds = time.monotonic() - started
    bench.details["isolation"] = {"failures": dict(sorted(seen.kinds.items())), "wrong": seen.wrong}
    return [
        equal("failures recorded correctly", seen.recorded, FAILURES),
        equal("processes left", seen.left, 0),
        reported("seconds for each failure", seconds / FAILURES),
    ], None
