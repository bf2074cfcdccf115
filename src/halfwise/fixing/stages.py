"""The stages of a run: told as they begin, and how long each took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.emulation.arena import give_back
from halfwise.progress import Watcher


class Stages:
    """Begins stages by name, each maybe several times.

    Attributes:
        seconds: How long each took in all.
    """

    def __init__(self, watcher: Watcher) -> None:
        """Take who is told."""
        self._watcher = watcher
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Tell of a stage, and count what its block takes."""
        self._watcher.stage(name)
        started = time.monotonic()
        try:
            yield
        finally:
            give_back()  # or what comes between takes its memory beside that of the last run
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
