"""Engines that were brought here while the worker still has them.

A container without a volume takes its files along when the connection ends. What lies here is sent
to the next one, and is what the run folder gets in the end.
"""

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import disk_usage

from halfwise.records import EngineFile
from halfwise.tensorrt.worker.client import Worker


@dataclass
class Fetched:
    """Keeps one engine per name; they may be gigabytes each.

    Attributes:
        worker: Where they were built.
        folder: Takes them; has to last as long as the run.
    """

    worker: Worker
    folder: Path
    _named: dict[Hashable, EngineFile] = field(default_factory=dict)

    def keep(self, name: Hashable, engine: EngineFile) -> None:
        """Bring an engine in case the connection is lost; without room for it here, do nothing.

        It may take half of what is free: models are still to be written there.

        Raises:
            RunFailed: as for `bring`.
        """
        with suppress(OSError):
            if 2 * engine.bytes <= disk_usage(self.folder).free:
                self.bring(name, engine)

    def bring(self, name: Hashable, engine: EngineFile) -> EngineFile:
        """Return an engine as it lies here, fetched where it did not; it replaces its namesake.

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
        """Return an engine as it lies here; where it does not, it is fetched to `path`.

        Errors are those of `bring`.
        """
        named = {e.sha256: e for e in self._named.values()}.get(engine.sha256)
        # Whatever tidies temporary folders may have taken it.
        if named is not None and Path(named.path).is_file():
            return named
        return self.worker.fetch(engine, path)
