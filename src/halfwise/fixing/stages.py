"""The stages of a run: reported as they begin, and timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.emulation.arena import give_back
from halfwise.progress import Watcher


class Stages:
    """Begins stages by name; a stage may begin several times.

    Attributes:
        seconds: Total time of each stage.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Report a stage, and time its block."""
        self._watcher.stage(name)
        started = time.monotonic()
        try:
            yield
        finally:
            give_back()  # else what follows would need its memory on top of the last run's
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
