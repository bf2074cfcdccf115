"""The stages of a run: reported as they begin, and timed."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.emulation.ort import give_back
from halfwise.progress import Watcher


class Stages:
    """Begins stages by name; a stage may begin several times.

    Attributes:
        seconds: Total time of each stage.
    """

    def __init__(self, watcher: Watcher) -> None:
        """Take what stages are reported to."""
        self._watcher, self._last = watcher, ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Report a stage, unless the last one goes on, and time its block."""
        if name != self._last:
            self._watcher.stage(name)
        self._last = name
        started = time.monotonic()
        try:
            yield
        finally:
            # Graphs and their weights are cycles: else they would stay, for there are few
            # collections (cli). Only of objects made since the last stage: 10 ms.
            gc.collect(1)
            give_back()  # else what follows would need its memory on top of the last run's
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
