"""What every use of engines needs: types, builds, runs, and a model that the builder takes.

Every build of a run is numbered, and kept with its outcome. If the
worker is lost, a build is repeated once: the loss concerns the worker, not the build. A worker that
has built before and no longer can, because its GPU is gone, counts as lost too.

A container without a volume loses its files when the connection ends. Files kept here are sent to
the next one, and end up in the run folder.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import disk_usage
from typing import Literal

from halfwise.case import Case, EngineSettings, Settings
from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.measure import Measure
from halfwise.graph.model import Network
from halfwise.graph.weights import save
from halfwise.progress import Watcher
from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    NodeName,
    Typing,
)
from halfwise.store import FP32_FILE
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.constrain import readable
from halfwise.tensorrt.failures import WORKER_GONE, how_refused
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.ports import check_covered, profiles_from_data
from halfwise.tensorrt.versions import regime
from halfwise.wording import shorten


@dataclass
class Builds:
    """Builds engines on one worker.

    Attributes:
        worker: The worker.
        settings: How to build, optimization profiles included.
        typing: Typing regime.
        watcher: Receives progress.
        numbers: Counts builds across the command; None counts only these.
        outcomes: Every build so far, in order.
    """

    worker: Worker
    settings: EngineSettings
    typing: Typing
    watcher: Watcher
    numbers: Iterator[int] | None = None
    outcomes: list[BuildOutcome] = field(default_factory=list)

    def build(
        self,
        model: Path,
        purpose: str,
        *,
        low: Literal["fp16", "bf16"] | None = None,
        tf32: bool = False,
        level: int | None = None,
        keep: Iterable[NodeName] = (),
        fresh: bool = False,
    ) -> BuildOutcome:
        """Build an engine and return the outcome.

        Args:
            model: ONNX file to build from; must not change during the run.
            purpose: What the engine is for.
            low: Low format that the builder may choose; weak typing only.
            tf32: Whether FP32 products may be TF32.
            level: Optimization level; None for the one in the settings.
            keep: Nodes to constrain; weak typing only.
            fresh: Time all tactics again, so that builds vary by chance, instead of reading them
                from the cache shared by builds on this GPU.

        Raises:
            UsageError, CaseError: as for `Worker.build`.
            BackendMissing, WorkerEnded: likewise, if nothing was built before.
        """
        weak = self.typing == "weak"
        config = BuildConfig(
            model_sha256=model_files(model).sha256,
            typing=self.typing,
            low=low if weak else None,
            tf32=tf32,
            keep=tuple(keep) if weak else (),
            profiles=self.settings.profiles,
            workspace_bytes=self.settings.workspace_bytes,
            optimization_level=self.settings.optimization_level if level is None else level,
            tactic_sources=self.settings.tactic_sources,
            plugins=self.settings.plugins,
        )
        outcome = self._once(model, config, purpose, fresh=fresh)
        if outcome.status == "lost":
            outcome = self._once(model, config, purpose, fresh=fresh)
        return outcome

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        settings = self.settings
        number = len(self.outcomes) + 1 if self.numbers is None else next(self.numbers)
        self.watcher.note(f"build {number}: {purpose}")
        try:
            outcome = self.worker.build(
                model,
                config,
                number=number,
                purpose=purpose,
                timeout=settings.build_timeout,
                cached=not fresh,
                progress=lambda phase, i, n: self.watcher.step(i, n or None, phase),
            )
        except WORKER_GONE as error:
            if all(outcome.engine is None for outcome in self.outcomes):
                raise  # the run loses nothing
            outcome = BuildOutcome(
                number=number,
                purpose=purpose,
                status="lost",
                message=error.message,
                config=config,
                seconds=0.0,
            )
        return self._kept(outcome)

    def _kept(self, outcome: BuildOutcome) -> BuildOutcome:
        self.outcomes.append(outcome)
        if outcome.status != "built":
            line = how_refused(outcome).said if outcome.status == "failed" else ""
            note = f"build {outcome.number} {outcome.status}: {outcome.message}"
            self.watcher.note(note if line in outcome.message else f"{note} {shorten(line, 200)}")
        return outcome

    def forget(self, but: EngineFile | None) -> None:
        """Remove all engines on the worker except one; they may take gigabytes.

        A worker that Ctrl-C ended is not started again for it: it drops what is unused for weeks.
        """
        if self.worker.process_id is None:
            return
        engines = {o.engine.sha256: o.engine for o in self.outcomes if o.engine is not None}
        # If the worker is lost, nobody needs the space.
        with suppress(HalfwiseError):
            for sha256, engine in engines.items():
                if but is None or sha256 != but.sha256:
                    self.worker.forget(engine)


@dataclass
class Fetched:
    """Keeps engines that may be delivered, in case the connection is lost.

    Attributes:
        worker: Where they were built.
        folder: Destination; must exist for the whole run.
    """

    worker: Worker
    folder: Path

    def keep(self, engine: EngineFile) -> None:
        """Fetch an engine; does nothing without space for it.

        It may be gigabytes, and take half of the free space: models are still to be written there.

        Raises:
            RunFailed: the worker no longer has it, or the connection is lost, twice.
        """
        with suppress(OSError):
            if 2 * engine.bytes <= disk_usage(self.folder).free:
                self.deliver(engine, self._place(engine))

    def deliver(self, engine: EngineFile, path: Path) -> EngineFile:
        """Return an engine's local copy; if there is none, fetch it to `path`.

        Raises:
            RunFailed: as for `keep`.
            OSError: it cannot be written.
        """
        here = self._place(engine)
        # A cleaner of temporary folders may have removed it.
        if here.is_file():
            return engine.model_copy(update={"side": "here", "path": str(here)})
        return self.worker.fetch(engine, path)

    def _place(self, engine: EngineFile) -> Path:
        return self.folder / f"{engine.sha256}.engine"


@dataclass
class Workbench:
    """Builds, runs and judges engines of one case on one worker.

    Attributes:
        case: The case.
        settings: Low format and runtime.
        engine_settings: How engines are built; gets the profiles of the data if it has none.
        worker: Where engines are built and run.
        folder: Holds ONNX files and engines; must exist as long as the workbench.
        watcher: Receives progress.
        notes: Collects notes.
        builds: Every build.
        measure: Runs and judges engines.
        fetched: Engines fetched here.
    """

    case: Case
    settings: Settings
    engine_settings: EngineSettings
    worker: Worker
    folder: Path
    watcher: Watcher
    notes: list[str] = field(default_factory=list)
    _written: dict[Hashable, Path] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Check the worker's abilities, and that the profiles hold the data.

        Raises:
            BackendMissing: the worker cannot build.
            UsageError: it lacks the typing regime or the low format.
            CaseError: samples are outside every profile, or the model's quantisation is refused.
        """
        self.worker.demand_usable()
        readable(self.case.network, self.worker.info.tensorrt)
        typing = regime(
            self.worker.info,
            self.engine_settings.typing,
            self.settings.fmt,
            beside="bf16" in self.settings.allow,
        )
        samples = self.case.calibration + self.case.heldout
        profiles = self.engine_settings.profiles or profiles_from_data(self.case.network, samples)
        check_covered(profiles, samples)
        how = self.engine_settings = replace(self.engine_settings, profiles=profiles)
        self.builds = Builds(self.worker, how, typing, self.watcher)
        self.measure = Measure(self.worker, self.case, self.settings, how)
        self.fetched = Fetched(self.worker, self.folder)

    @property
    def fp32(self) -> Path:
        """The file of the FP32 model."""
        return self.file(FP32_FILE, FP32_FILE, lambda: self.case.network)

    def file(self, key: Hashable, name: str, network: Callable[[], Network]) -> Path:
        """Return the file of a model to build from, written if it is not there yet.

        Args:
            key: What distinguishes it from others.
            name: Name of the file; its folder has no other model.
            network: Returns the model.
        """
        if key not in self._written:
            path = self.folder / f"{len(self._written) + 1}" / name
            path.parent.mkdir()
            save(readable(network(), self.worker.info.tensorrt).model, path)
            self._written[key] = path
        return self._written[key]
