"""Messages of concurrent devices, shown one after another, each line with its device."""

import threading
from collections.abc import Callable

from halfwise.progress import Watcher


class Shared:
    """A watcher for several threads."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher, self._lock = watcher, threading.Lock()

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage."""
        self._tell(lambda: self._watcher.stage(name, total))

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        """Report progress within it."""
        self._tell(lambda: self._watcher.step(done, total, of, most=most))

    def left(self, seconds: float) -> None:
        """Report how long a stage may go on."""
        self._tell(lambda: self._watcher.left(seconds))

    def expect(self, seconds: float, of: str) -> None:
        """Report how long a part of it will take."""
        self._tell(lambda: self._watcher.expect(seconds, of))

    def note(self, line: str) -> None:
        """Report something worth reading."""
        self._tell(lambda: self._watcher.note(line))

    def _tell(self, tell: Callable[[], None]) -> None:
        with self._lock:
            tell()


class Named(Shared):
    """Messages of one device; steps are not shown, because builds run concurrently."""

    def __init__(self, shared: Shared, name: str) -> None:
        """Take the watcher of all devices, and the name that prefixes each line."""
        super().__init__(shared)
        self._name = name

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage, with the device's name appended."""
        super().stage(f"{name} on {self._name}", total)

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        """Do nothing."""

    def left(self, seconds: float) -> None:
        """Do nothing."""

    def expect(self, seconds: float, of: str) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Report something with the name prefixed."""
        super().note(f"{self._name}: {line}")
