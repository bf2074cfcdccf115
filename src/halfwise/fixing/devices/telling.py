"""What devices tell at the same time, shown one after another, each line with its device."""

import threading
from collections.abc import Callable

from halfwise.progress import Watcher


class Shared:
    """A watcher that several threads may tell."""

    def __init__(self, watcher: Watcher) -> None:
        """Take the one that is told."""
        self._watcher, self._lock = watcher, threading.Lock()

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage."""
        self._tell(lambda: self._watcher.stage(name, total))

    def step(self, done: int, total: int | None = None) -> None:
        """Report progress within it."""
        self._tell(lambda: self._watcher.step(done, total))

    def left(self, seconds: float) -> None:
        """Report how long a stage may go on."""
        self._tell(lambda: self._watcher.left(seconds))

    def note(self, line: str) -> None:
        """Tell something worth reading."""
        self._tell(lambda: self._watcher.note(line))

    def _tell(self, tell: Callable[[], None]) -> None:
        with self._lock:
            tell()


class Named(Shared):
    """What one device tells; of builds at the same time, no steps are shown."""

    def __init__(self, shared: Shared, name: str) -> None:
        """Take the watcher of all devices, and the name that stands before each line."""
        super().__init__(shared)
        self._name = name

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage, with the name of the device after its own."""
        super().stage(f"{name} on {self._name}", total)

    def step(self, done: int, total: int | None = None) -> None:
        """Do nothing."""

    def left(self, seconds: float) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Tell something with the name before it."""
        super().note(f"{self._name}: {line}")
