"""One worker of a run: its FP32 engines, and the engines proven on the way.

What held-out data proved is useful whatever the rest of the run finds, so it can be used at once.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from math import inf
from pathlib import Path
from signal import SIGTERM
from typing import TypeVar

from halfwise.case import Samples
from halfwise.errors import HalfwiseError, UsageError
from halfwise.fixing.engines.builds import build_failed, judging
from halfwise.fixing.engines.measure import again_if_lost, with_shapes
from halfwise.fixing.engines.plan import FP32, TF32
from halfwise.fixing.engines.refusals import build_fp32
from halfwise.fixing.engines.workbench import Workbench, has_tf32
from halfwise.interruption import interruption
from halfwise.judging.judge import Judged
from halfwise.metrics import Outputs
from halfwise.records import (
    FP32_SNR_DB,
    BuildOutcome,
    Criterion,
    EngineResult,
    EngineRung,
    Latency,
    ProvenEngine,
    Verdict,
)
from halfwise.reporting.rungs import own_criterion, proven_line
from halfwise.store import new_folder
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.recipe import recipe_of
from halfwise.tensorrt.rendering import python

_Found = TypeVar("_Found")
_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""
ENGINE_FILE = "model.engine"
CLEARLY = 0.97
"""Maximum time of a further one, as a share of the last reported one's: a smaller gain is within
the noise of engines timed alone."""


class Device:
    """A worker with its FP32 engines.

    Attributes:
        bench: Builds engines and runs them.
        proven: Engines that passed on held-out samples, in the order in which they were reported.
        fp32: The FP32 engine without TF32, judged; None before `reference`, and if Ctrl-C came.
        checked: Verdict on it by the run's criterion.
        tf32: The build of the FP32 engine with TF32; None without one.
    """

    def __init__(self, bench: Workbench, place: Path | None, started: float) -> None:
        """Take a workbench, and where proven engines go.

        Args:
            bench: Builds engines and runs them.
            place: Folder to create next to the run folder, with one folder for each proven engine;
                None for none.
            started: `time.monotonic()` at the start of the command.
        """
        self.bench, self._place, self._started = bench, place, started
        self._interruption = interruption()
        self.proven: list[ProvenEngine] = []
        self.fp32: EngineResult | None = None
        self.checked: Verdict | None = None
        self.tf32: BuildOutcome | None = None
        self._references: Sequence[Outputs] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether its FP32 engine is out of tolerance."""
        verdict = None if self.fp32 is None else self.fp32.verdict
        return verdict is not None and not verdict.passed

    def reference(self) -> None:
        """Build and judge the FP32 engine without TF32.

        Its criterion is a signal-to-noise ratio of 60 dB, or the user's metric.

        Raises:
            BuildFailed: TensorRT cannot build it, and therefore no engine of this model.
            RunFailed: it does not run.
            CaseError: samples, including the calibration, do not fit any engine.
        """
        bench, measure, case = self.bench, self.bench.measure, self.bench.case
        with judging():
            build = build_fp32(bench, FP32)
            if build.status == "interrupted":
                return
            if build.engine is None:
                raise build_failed(build, "no FP32 engine of this model")
            engine = build.engine
            again_if_lost(lambda: measure.check_inputs(engine, case.calibration))
            with suppress(*ENGINE_FAULTS):  # what is delivered is fetched once more
                bench.fetched.keep(FP32, engine)
            samples = case.heldout or case.calibration
            own = Criterion(snr_db=FP32_SNR_DB, agreement=case.criterion.agreement)
            self._references = measure.references(samples)
            judged = samples, self._references
            outputs = again_if_lost(lambda: measure.outputs(engine, samples))
            criterion = own if case.metric is None else None
            verdict = measure.judged(outputs, *judged, criterion).verdict
            unseen = len(case.heldout) > 0
            self.checked = measure.judged(outputs, *judged, unseen=unseen).verdict
            self.fp32 = EngineResult(name=FP32, build=build, verdict=verdict)
            bench.notes.append(own_criterion(verdict))
            self._interruption.ready |= verdict.passed

    def with_tf32(self) -> None:
        """Build the FP32 engine with TF32, and report it if it passes; else the one without.

        It takes a fraction of the build time of a low engine, for which kernels of both types are
        timed, and needs no plan: so it is the first engine available, while the emulation searches.
        On a GPU without TF32 it would be the FP32 engine again, so it is not built there.
        """
        if self._interruption.asked or self.fp32 is None:
            return
        if has_tf32(self.bench.worker.info):
            self.tf32 = self.bench.builds.build(self.bench.fp32, TF32, tf32=True)
        proven = self.tf32 is not None and self._prove_full(self.tf32, "tf32")
        if not proven and not self._interruption.asked:
            self._prove_full(self.fp32.build, "fp32")

    def _prove_full(self, build: BuildOutcome, rung: EngineRung) -> bool:
        """Report an engine with nothing low if it passes on held-out samples; return whether.

        No search chose it, so it must pass on the calibration samples too. Without held-out
        samples, nothing is proven.
        """
        bench, case = self.bench, self.bench.case
        if build.engine is None or not len(case.heldout):
            return False
        judged = self.judge(build, case.heldout, self._references)
        if judged is None or not judged.verdict.passed:
            return False
        samples, latency = case.calibration, None
        references = bench.measure.references(samples)
        within = self.judge(build, samples, references, unseen=False)
        if within is None or not within.verdict.within:
            return False
        with suppress(*ENGINE_FAULTS):
            latency = bench.measure.latency(build.engine)
        self.tell(build, bench.fp32, latency, rung)
        return True

    def judge(
        self,
        build: BuildOutcome,
        samples: Samples,
        references: Sequence[Outputs],
        *,
        unseen: bool = True,
    ) -> Judged | None:
        """Return the verdict on an engine; None if it fails.

        If it passes on unseen samples, it is judged at the shapes of all profiles too.
        """
        assert build.engine is not None
        measure = self.bench.measure
        try:
            judged = measure.judge(build.engine, samples, references, unseen=unseen)
            if unseen and judged.verdict.passed:
                at = measure.at_shapes(build.engine, samples)
                return Judged(with_shapes(judged.verdict, at), judged.failing)
        except ENGINE_FAULTS:
            return None
        return judged

    def is_news(self, latency: Latency | None) -> bool:
        """Return whether a proven engine would be reported: the first, or a faster one."""
        known = [t.median_ms for t in self.proven if t.median_ms is not None]
        time_ = inf if latency is None else latency.median_ms
        return not self.proven or time_ < CLEARLY * min(known, default=0.0)

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
            seconds=time.monotonic() - self._started,
            median_ms=None if latency is None else latency.median_ms,
            path=None if path is None else str(path),
        )
        self.proven.append(found)
        if path is not None and self._place is not None:
            self._interruption.left[self._place] = path
        self._interruption.ready = True
        self.bench.watcher.note(proven_line(found, rung, kept))

    def _put(self, build: BuildOutcome, model: Path, rung: EngineRung) -> Path | None:
        if self._place is None or build.engine is None:
            return None
        bench, files = self.bench, model_files(model)
        folder = self._place / f"build-{build.number}"
        recipe = recipe_of(
            build,
            bench.network_of(build),
            model.name,
            files.hashes,
            rung=rung,
            tensorrt=bench.worker.info.tensorrt or "",
            run=str(self._place),
        )
        if not self.proven:  # those of the run that `--resume` continues
            shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            here = bench.fetched.bring((ENGINE_FILE, build.number), build.engine)
            _link(Path(here.path), partial / ENGINE_FILE)
            for name, file in files.paths.items():
                _link(file, partial / name)
            for name, text in python(recipe).items():
                (partial / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        return folder / ENGINE_FILE


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


def side_by_side(
    devices: Mapping[str, Device], calls: Mapping[str, Callable[[], _Found]]
) -> dict[str, _Found]:
    """Return what each device's call returns; of several, each runs in its own thread.

    If one raises, what the others' workers do is ended, and the error, which names its device, is
    raised.
    """
    if len(calls) == 1:
        return {name: call() for name, call in calls.items()}
    with ThreadPoolExecutor(len(calls) or 1, "device") as pool:
        # Ctrl-C ends builds in every thread.
        running = {name: pool.submit(copy_context().run, call) for name, call in calls.items()}
        try:
            wait(running.values(), return_when=FIRST_EXCEPTION)
            failed = {n: e for n, e in running.items() if e.done() and e.exception() is not None}
            for name, each in (failed or running).items():
                try:
                    each.result()
                except HalfwiseError as error:
                    error.message = f"{name}: {error.message}"
                    raise
            return {name: each.result() for name, each in running.items()}
        finally:
            while left := {name: each for name, each in running.items() if not each.done()}:
                for name in left:
                    _end(devices[name])
                wait(left.values(), _LOOK_AGAIN)


def _end(device: Device) -> None:
    """End its worker's process; to a build it looks like a lost connection."""
    if (number := device.bench.worker.process_id) is not None:
        with suppress(ProcessLookupError):
            os.killpg(number, SIGTERM)
