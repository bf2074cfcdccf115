"""What every use of engines needs: types, builds, runs, and a model that the builder takes.

A container without a volume loses its files when the connection ends. Files kept here are sent to
the next one, and end up in the run folder.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import disk_usage, rmtree

import onnx_ir as ir

from halfwise.case import Case, EngineSettings, Settings
from halfwise.fixing.engines.builds import Builds
from halfwise.fixing.engines.measure import Measure
from halfwise.fixing.rewrite import EXTERNAL_DATA_BYTES
from halfwise.graph.model import Network
from halfwise.graph.weights import is_large, weight_bytes
from halfwise.progress import Watcher
from halfwise.records import (
    EngineFile,
)
from halfwise.store import FP32_FILE
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.constrain import readable
from halfwise.tensorrt.failures import Journal
from halfwise.tensorrt.ports import check_covered, profiles_from_data
from halfwise.tensorrt.versions import regime


class ModelFiles:
    """Writes the models that engines are built from into folders of their own, each once."""

    def __init__(self, folder: Path, tensorrt: str | None = None) -> None:
        """Take an existing folder, and the version that will read the files."""
        self._folder, self._tensorrt = folder, tensorrt
        self._written: dict[Hashable, Path] = {}

    def file(self, key: Hashable, name: str, made: Callable[[], Network]) -> Path:
        """Return the file of the model with this key, written if it is not there yet.

        Args:
            key: What distinguishes it from others.
            name: Name of the file.
            made: Returns the model.

        Raises:
            OSError: it cannot be written; nothing of it remains.
        """
        if key not in self._written:
            path = self._folder / f"{len(self._written) + 1}" / name
            path.parent.mkdir()
            try:
                save(readable(made(), self._tensorrt).model, path)
            except OSError:
                rmtree(path.parent, ignore_errors=True)
                raise
            self._written[key] = path
        return self._written[key]


def save(model: ir.Model, path: Path) -> None:
    """Write a model; large weights go into a file next to it."""
    beside = weight_bytes(model) > EXTERNAL_DATA_BYTES or is_large(model)
    ir.save(model, path, external_data=f"{path.name}.data" if beside else None)


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
        named = {e.sha256: e for e in self._named.values()}.get(engine.sha256)
        # A cleaner of temporary folders may have removed it.
        if named is not None and Path(named.path).is_file():
            return named
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
        journal: Written before and after each build; None for none.
        notes: Collects notes.
        builds: Every build.
        measure: Runs and judges engines.
        files: ONNX files.
        fetched: Engines fetched here.
    """

    case: Case
    settings: Settings
    engine_settings: EngineSettings
    worker: Worker
    folder: Path
    watcher: Watcher
    journal: Journal | None = None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the worker's abilities, and that the profiles hold the data.

        Raises:
            BackendMissing: the worker cannot build.
            UsageError: it lacks the typing regime or the low format.
            CaseError: samples are outside every profile, or the model's quantisation is refused.
        """
        self.worker.demand_usable()
        version = self.worker.info.tensorrt
        readable(self.case.network, version)
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
        self.builds = Builds(self.worker, how, typing, self.journal, self.watcher)
        self.measure = Measure(self.worker, self.case, self.settings, how)
        self.files, self.fetched = (
            ModelFiles(self.folder, version),
            Fetched(self.worker, self.folder),
        )

    @property
    def fp32(self) -> Path:
        """The file of the FP32 model."""
        return self.files.file(FP32_FILE, FP32_FILE, lambda: self.case.network)
