"""Engines proven during the run: reported at once, and stored where they can be used.

What held-out data proved is useful whatever the rest of the run finds: once there is one, Ctrl-C
ends the run with the best.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path

from halfwise.case import Samples
from halfwise.errors import HalfwiseError, UsageError
from halfwise.fixing.engines.attempts import Assignment, Attempts, Candidate, Step
from halfwise.fixing.engines.measure import with_shapes
from halfwise.fixing.engines.regime import low_format
from halfwise.fixing.engines.terms import USUAL, Terms
from halfwise.fixing.engines.workbench import Workbench
from halfwise.fixing.heldout import HeldOut
from halfwise.interruption import Interruption, interruption
from halfwise.judging.judge import Judged
from halfwise.metrics import Outputs
from halfwise.records import BuildOutcome, EngineRung, Latency, Prefer, ProvenEngine
from halfwise.reporting.rungs import proven_line
from halfwise.store import new_folder
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.recipe import recipe_of
from halfwise.tensorrt.rendering import python

ENGINE_FILE = "model.engine"
CLEARLY = 0.97
"""Maximum time of a further one, as a share of the last reported one's: a smaller gain is within
the noise of engines timed alone."""


@dataclass
class Early:
    """Judges engines on held-out samples during the run, and reports those that pass.

    Attributes:
        bench: Has the engines.
        place: Folder to create next to the run folder, with one folder for each reported engine;
            None for none.
        started: `time.monotonic()` at the start of the command.
        told: Reported engines, in order.
        over: Whether Ctrl-C came when there was one: then nothing more is built.
    """

    bench: Workbench
    place: Path | None = None
    started: float = field(default_factory=time.monotonic)
    told: list[ProvenEngine] = field(default_factory=list)
    interruption: Interruption = field(default_factory=interruption)
    over: bool = False

    def __post_init__(self) -> None:
        """Listen for Ctrl-C."""
        self.interruption.then.append(self._end)

    def _end(self) -> None:
        self.over = bool(self.told)

    def worth(self, latency: Latency | None) -> bool:
        """Return whether a proven engine would be reported: the first, or a faster one."""
        known = [t.median_ms for t in self.told if t.median_ms is not None]
        time_ = inf if latency is None else latency.median_ms
        return not self.told or time_ < CLEARLY * min(known, default=0.0)

    def yardstick(self, prefer: Prefer) -> ProvenEngine | None:
        """Return the engine that a plan has to beat, if speed decides at all."""
        return next(iter(self.told), None) if prefer == "speed" else None

    def judge(
        self, build: BuildOutcome, samples: Samples, references: Sequence[Outputs]
    ) -> Judged | None:
        """Return the verdict on an engine, at the shapes of all profiles too; None if it fails."""
        assert build.engine is not None
        measure = self.bench.measure
        try:
            judged = measure.judge(build.engine, samples, references)
            if judged.verdict.passed:
                at = measure.at_shapes(build.engine, samples)
                return Judged(with_shapes(judged.verdict, at), judged.failing)
        except ENGINE_FAULTS:
            return None
        return judged

    def full(
        self,
        build: BuildOutcome,
        rung: EngineRung,
        model: Path,
        samples: Samples,
        references: Sequence[Outputs],
    ) -> bool:
        """Report an engine with nothing low if it passes on held-out samples; return whether.

        No search chose it, so it must pass on the calibration samples too.

        Args:
            build: Its build.
            rung: "tf32" or "fp32".
            model: The ONNX file that it was built from.
            samples: Held-out samples; without any, nothing is proven.
            references: Their reference outputs.
        """
        if build.engine is None or not len(samples):
            return False
        judged = self.judge(build, samples, references)
        if judged is None or not judged.verdict.passed or not self._within(build):
            return False
        latency = None
        with suppress(*ENGINE_FAULTS):
            latency = self.bench.measure.latency(build.engine)
        self.tell(build, model, latency, rung)
        return True

    def _within(self, build: BuildOutcome) -> bool:
        """Return whether an engine is within the tolerance on the calibration samples."""
        assert build.engine is not None
        measure = self.bench.measure
        try:
            judged = measure.judge(build.engine, *self._calibration, unseen=False)
        except ENGINE_FAULTS:
            return False
        return judged.verdict.within

    @cached_property
    def _calibration(self) -> tuple[Samples, Sequence[Outputs]]:
        samples = self.bench.case.calibration
        return samples, self.bench.measure.references(samples)

    def tell(
        self,
        build: BuildOutcome,
        model: Path,
        latency: Latency | None,
        rung: EngineRung,
        kept: int = 0,
    ) -> None:
        """Report an engine that passed; store it, with its recipe, in a separate folder.

        Args:
            build: Its build.
            model: The ONNX file that it was built from, which is stored with it.
            latency: Its speed, timed alone.
            rung: The lowest type that it may compute in.
            kept: Number of nodes that it keeps in FP32.
        """
        path = None
        # If there is no room for it, it is still reported, and ends up in the run folder.
        with suppress(OSError, HalfwiseError):
            path = self._put(build, model, rung)
        found = ProvenEngine(
            build=build.number,
            seconds=time.monotonic() - self.started,
            median_ms=None if latency is None else latency.median_ms,
            path=None if path is None else str(path),
        )
        self.told.append(found)
        if path is not None and self.place is not None:
            self.interruption.left[self.place] = path
        self.interruption.ready = True
        self.bench.watcher.note(proven_line(found, rung, kept))

    def _put(self, build: BuildOutcome, model: Path, rung: EngineRung) -> Path | None:
        if self.place is None or build.engine is None:
            return None
        bench, info = self.bench, self.bench.worker.info
        folder = self.place / f"build-{build.number}"
        files = model_files(model)
        recipe = recipe_of(
            build,
            bench.network_of(build),
            model.name,
            files.hashes,
            rung=rung,
            tensorrt=info.tensorrt or "",
            run=str(self.place),
        )
        if not self.told:  # those of the run that `--resume` continues
            shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            here = bench.fetched.bring((ENGINE_FILE, build.number), build.engine)
            _link(Path(here.path), partial / ENGINE_FILE)
            for name, file in files.paths.items():
                _link(file, partial / name)
            for name, text in python(recipe).items():
                (partial / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        return folder / ENGINE_FILE


@dataclass
class Judging:
    """Tries plans, and judges their engines on held-out samples as soon as they pass.

    Attributes:
        attempts: Builds and measures them.
        early: Reports those that pass.
        heldout: The samples that judge. If the first passing engine fails there, samples join the
            calibration at once: nothing wrong is confirmed.
        passed: Whether one passed on the present calibration samples: its error on further ones
            would be unknown.
    """

    attempts: Attempts
    early: Early
    heldout: HeldOut
    passed: bool = False

    def attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        """Do what `Attempts.attempt` does."""
        found = self.attempts.attempt(keep, step, terms)
        if not found.passed:
            return found
        first, self.passed = not self.passed, True
        if not self.heldout.unseen or not self.early.worth(found.latency):
            return found
        samples, references = self.heldout.samples, self.heldout.references
        judged = self.early.judge(found.build, samples, references)
        if judged is None:
            return found
        if judged.verdict.passed:
            self.early.tell(
                found.build,
                self.attempts.model_of(found.plan),
                found.latency,
                "int8" if terms.int8 else low_format(self.attempts.planner.settings.fmt),
                len(found.kept(self.attempts.planner)),
            )
        elif first and self.heldout.join(judged, " in the engine"):
            found = self.attempts.again(found)
            self.passed = found.passed
        return found


def _link(file: Path, to: Path) -> None:
    """Make `file` also appear as `to`: as a hard link, or else as a copy."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)


def proven_folder(out: Path | None, *, resume: bool) -> Path | None:
    """Return the folder next to the run folder for engines proven before the run ends.

    If the run ends without an engine in the run folder, for whatever reason, they stay.

    Raises:
        UsageError: engines of a run that ended early are there, and it is not to be resumed.
    """
    if out is None:
        return None
    place = out.with_name(f"{out.name}.proven")
    if os.path.lexists(place) and not resume:
        raise UsageError(
            f"{place} has engines of a run that ended early.",
            "Move or remove it, or continue that run: --resume.",
        )
    return place
