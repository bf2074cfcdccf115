"""The stages of a run: reported as they begin, and timed."""

import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from halfwise.emulation.budget import WORK, sized
from halfwise.emulation.ort import give_back
from halfwise.progress import Watcher

_JUDGING = ("baseline", "judge")
"""Stages that judge one model on the held-out samples, and take as long each time."""


class Stages:
    """Begins stages by name; a stage may begin several times.

    Attributes:
        seconds: Total time of each stage.
    """

    def __init__(self, watcher: Watcher, nodes: int = 0) -> None:
        """Take what stages are reported to, and the number of nodes; 0 if nothing depends on it."""
        self._watcher, self._nodes, self._last = watcher, nodes, ""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Report a stage, unless the last one goes on, and time its block."""
        if name != self._last:
            self._watcher.stage(name)
        self._last = name
        started = time.monotonic()
        try:
            with self._expected(name):
                yield
        finally:
            # Graphs and their weights are cycles: else they would stay, for there are few
            # collections (cli). Only of objects made since the last stage: 10 ms.
            gc.collect(1)
            give_back()  # else what follows would need its memory on top of the last run's
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def _expected(self, name: str) -> AbstractContextManager[None]:
        kind = "judge" if name in _JUDGING else name
        # The others do not repeat themselves.
        is_new = kind == "judge" or name not in self.seconds
        return sized(kind, max(1, self._nodes)) if is_new and kind in WORK else nullcontext()
