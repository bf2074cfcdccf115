"""Runs of the command line that the benches share: each model is fixed once per `bench/run.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfwise import report
from halfwise.records import Run

ROOT = Path(__file__).resolve().parents[1]
MODELS_VARIABLE = "HALFWISE_BENCH_MODELS"
REAL_MODELS = ("magika", "ppocr_v3_det", "yolox_nano")
FINISHED = (0, 10)
"""Exit codes of a run with a verdict."""


class CommandFailed(RuntimeError):
    """`halfwise` ended without a verdict."""


@dataclass(frozen=True)
class Subject:
    """A model to fix.

    Attributes:
        name: Its name in the results.
        model: The FP32 model.
        inputs: Its samples.
        options: Further options of `halfwise fix`.
        judging: Options of `halfwise verify` that judge the same way.
    """

    name: str
    model: Path
    inputs: Path
    options: tuple[str, ...] = ()
    judging: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """One finished command.

    Attributes:
        run: The content of its run.json.
        folder: Its run folder.
        seconds: Wall time of the whole process.
        code: Its exit code.
    """

    run: Run
    folder: Path
    seconds: float
    code: int


@dataclass
class Workbench:
    """Where benches work, and what they have run so far.

    Attributes:
        folder: Takes run folders; temporary.
        models: Folder of the models that are not in the repository, or None.
        resume: Take from the cache what the same tool already made of the same model.
        details: Further results by bench name, for JSON.
    """

    folder: Path
    models: Path | None = None
    resume: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    _fixed: dict[str, Ran] = field(default_factory=dict)

    def real(self, name: str) -> Subject | None:
        """Return a model of the models folder, None where it is not there."""
        if self.models is None:
            return None
        model, inputs = (self.models / name / f for f in ("model.onnx", "inputs.npz"))
        if not (model.is_file() and inputs.is_file()):
            return None
        judging = JUDGING[name]
        return Subject(name, model, inputs, judging, judging)

    def subjects(self) -> list[Subject]:
        """Return every available model."""
        return [digits(), *(s for s in map(self.real, REAL_MODELS) if s is not None)]

    def missing(self, names: Sequence[str] = REAL_MODELS) -> str | None:
        """Return why some of the models are not here, None where all are."""
        absent = [name for name in names if self.real(name) is None]
        if not absent:
            return None
        why = (
            f"{MODELS_VARIABLE} is not set" if self.models is None else f"not in {MODELS_VARIABLE}"
        )
        return f"{', '.join(absent)}: {why}"

    def fix(self, subject: Subject) -> Ran:
        """Return what `halfwise fix` makes of `subject`; run at most once."""
        if subject.name not in self._fixed:
            self._fixed[subject.name] = self._run(
                subject.name, ["fix", subject.model, "--inputs", subject.inputs, *subject.options]
            )
        return self._fixed[subject.name]

    def verify(self, subject: Subject, inputs: Path, options: Sequence[str | Path]) -> Ran:
        """Return the verdict of `halfwise verify` on the fixed model, on all of `inputs`."""
        candidate = self.fix(subject).folder / "model.onnx"
        return self._run(
            f"{subject.name}-verified",
            ["verify", subject.model, candidate, "--inputs", inputs, *options],
        )

    def _run(self, name: str, arguments: Sequence[str | Path]) -> Ran:
        out = self.folder / name
        command = [sys.executable, "-m", "halfwise", *map(str, arguments), "-o", str(out)]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        seconds = time.monotonic() - started
        if done.returncode not in FINISHED:
            told = (done.stderr or done.stdout).strip().splitlines()
            what = f"halfwise {arguments[0]} of {name} ended with {done.returncode}"
            raise CommandFailed(f"{what}: {' '.join(told[-3:])}")
        return Ran(report(out), out, seconds, done.returncode)


def models_folder() -> Path | None:
    """Return the folder that the environment names."""
    given = os.environ.get(MODELS_VARIABLE)
    return Path(given).resolve() if given else None


def digits() -> Subject:
    """Return the bundled example with the options of `make demo`; paths as there."""
    folder = Path("examples") / "digits"
    options = ("--heldout", f"{folder}/heldout.npz")
    judging = ("--metric", "top1", "--labels", f"{folder}/heldout_labels.json")
    return Subject("digits", folder / "model.onnx", folder / "inputs.npz", options, judging)


JUDGING: dict[str, tuple[str, ...]] = {
    "magika": ("--metric", "top1"),
    "ppocr_v3_det": ("--metric", "mask-iou", "--metric-drop", "0.01"),
    "yolox_nano": ("--metric", "detection-f1", "--metric-drop", "0"),
}
"""How each real model is judged; without labels, the truth is what FP32 says."""
