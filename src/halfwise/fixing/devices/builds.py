"""Builds of one device, which can be started in a thread and awaited later."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.builds import Builds
from halfwise.records import BuildConfig, BuildOutcome
from halfwise.tensorrt.journal import config_key

_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""


class _Begun(Exception):
    """A build has started, and nobody waits for it yet."""


@dataclass
class DeviceBuilds(Builds):
    """Builds engines on one worker, in its own thread if started by `begin`.

    Attributes:
        last: The last build that was started; None before the first.
    """

    last: "Future[BuildOutcome] | None" = None
    _waiting: dict[tuple[str, bool], "Future[BuildOutcome]"] = field(default_factory=dict)
    _starting: bool = False

    def __post_init__(self) -> None:
        """Create the thread."""
        self._pool = ThreadPoolExecutor(1, "halfwise-build")

    def begin(self, build: Callable[[], object]) -> None:
        """Start what `build` builds, without waiting for it; do nothing while another is built.

        Args:
            build: Requests one build from this object.
        """
        if self.last is None or self.last.done():
            self._starting = True
            try:
                with suppress(_Begun, OSError):  # reported when it is waited for
                    build()
            finally:
                self._starting = False

    def settle(self) -> None:
        """End builds that were started but never requested."""
        for begun in self._waiting.values():
            self._stop()
            with suppress(HalfwiseError):
                self._kept(begun.result())
        self._waiting.clear()

    def end(self) -> None:
        """End the build that runs, and the thread."""
        self._stop()
        self._pool.shutdown()

    def _stop(self) -> None:
        while self.last is not None and not self.last.done():
            # To the thread it looks like a lost connection: it shares only the number.
            if (number := self.worker.process_id) is not None:
                with suppress(ProcessLookupError):
                    os.killpg(number, signal.SIGTERM)
            wait([self.last], _LOOK_AGAIN)

    def _next(self) -> int:
        return len(self.outcomes) + len(self._waiting) + 1

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        key = config_key(config), fresh
        if self._starting:
            if key not in self._waiting:
                build = self._begun(self.worker, model, config, purpose, fresh=fresh)
                # Ctrl-C ends builds in every thread.
                self.last = self._pool.submit(copy_context().run, build)
                self._waiting[key] = self.last
            raise _Begun
        if key not in self._waiting:
            return super()._once(model, config, purpose, fresh=fresh)
        outcome = self._waiting.pop(key).result()
        return self._kept(outcome.model_copy(update={"purpose": purpose}))

    def _kept(self, outcome: BuildOutcome) -> BuildOutcome:
        kept = super()._kept(outcome)
        self.outcomes.sort(key=lambda each: each.number)
        return kept
