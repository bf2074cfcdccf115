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
from shutil import disk_usage, rmtree
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

    def _next(self) -> int:
        """Return the number of the next build; unique across builds that share a count."""
        return len(self.outcomes) + 1 if self.numbers is None else next(self.numbers)

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        number, settings = self._next(), self.settings
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
        except (*WORKER_GONE, OSError) as error:
            outcome = self._not_begun(error, number, config, purpose)
        return self._kept(outcome)

    def without_model(self, error: OSError, purpose: str) -> BuildOutcome:
        """Return the outcome for a model that cannot be written here.

        Raises:
            OSError: no engine was built before, so the run would lose nothing.
        """
        config = BuildConfig(model_sha256="", typing=self.typing, profiles=self.settings.profiles)
        return self._kept(self._not_begun(error, self._next(), config, purpose))

    def _not_begun(
        self, error: HalfwiseError | OSError, number: int, config: BuildConfig, purpose: str
    ) -> BuildOutcome:
        """Return the outcome of a build that an error kept from starting.

        If no engine was built before, the error is raised: the run would lose nothing.
        """
        if all(outcome.engine is None for outcome in self.outcomes):
            raise error
        is_gone = isinstance(error, HalfwiseError)
        return BuildOutcome(
            number=number,
            purpose=purpose,
            status="lost" if is_gone else "failed",
            message=error.message
            if isinstance(error, HalfwiseError)
            else f"Its files cannot be written here: {error.strerror or error}.",
            config=config,
            seconds=0.0,
        )

    def _kept(self, outcome: BuildOutcome) -> BuildOutcome:
        self.outcomes.append(outcome)
        if outcome.status != "built":
            line = how_refused(outcome).line if outcome.status == "failed" else ""
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
    """Keeps one engine per name; they may be gigabytes each.

    Attributes:
        worker: Where they were built.
        folder: Destination; must exist for the whole run.
    """

    worker: Worker
    folder: Path
    _named: dict[Hashable, EngineFile] = field(default_factory=dict)

    def keep(self, name: Hashable, engine: EngineFile) -> None:
        """Fetch an engine in case the connection is lost; does nothing without space for it.

        It may take half of the free space: models are still to be written there.

        Raises:
            RunFailed: as for `bring`.
        """
        with suppress(OSError):
            if 2 * engine.bytes <= disk_usage(self.folder).free:
                self.bring(name, engine)

    def bring(self, name: Hashable, engine: EngineFile) -> EngineFile:
        """Return an engine's local copy, fetched if necessary; it replaces one of the same name.

        Raises:
            RunFailed: the worker no longer has it, or the connection is lost, twice.
            OSError: it cannot be written.
        """
        here = self.deliver(engine, self.folder / f"{engine.sha256}.engine")
        old, self._named[name] = self._named.get(name), here
        if old is not None and old not in self._named.values():
            self.worker.drop(old)
        return here

    def deliver(self, engine: EngineFile, path: Path) -> EngineFile:
        """Return an engine's local copy; if there is none, fetch it to `path`.

        Errors are those of `bring`.
        """
        here = [e for e in self._named.values() if e.sha256 == engine.sha256]
        # A cleaner of temporary folders may have removed it.
        if here and Path(here[0].path).is_file():
            return here[0]
        return self.worker.fetch(engine, path)


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

        Raises:
            OSError: it cannot be written; nothing of it remains.
        """
        if key not in self._written:
            path = self.folder / f"{len(self._written) + 1}" / name
            path.parent.mkdir()
            try:
                save(readable(network(), self.worker.info.tensorrt).model, path)
            except OSError:
                rmtree(path.parent, ignore_errors=True)
                raise
            self._written[key] = path
        return self._written[key]
