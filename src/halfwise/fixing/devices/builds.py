"""Builds for one kind of device: started ahead of requests, in threads, one per worker.

Workers with the same GPU and TensorRT build for one another. One of them measures what all of them
built; the others only build, so that no GPU is timed while it builds.
"""

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
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.worker.failures import ENGINE_FAULTS
from halfwise.tensorrt.worker.journal import config_key

_LOOK_AGAIN = 0.2
"""Seconds after which a worker that restarted while being ended is ended again."""


class _Begun(Exception):
    """A build has started, and nobody waits for it yet."""


@dataclass
class Bay:
    """A worker, and the thread that waits for its builds.

    Attributes:
        worker: The worker.
        builds: Its last or current build; None before the first.
        lost: Why it builds no more; empty while it does.
    """

    worker: Worker
    builds: "Future[BuildOutcome] | None" = None
    lost: str = ""

    def __post_init__(self) -> None:
        """Create the thread."""
        self._pool = ThreadPoolExecutor(1, "halfwise-build")

    @property
    def idle(self) -> bool:
        """Whether it can start a build at once."""
        return not self.lost and (self.builds is None or self.builds.done())

    def begin(self, build: Callable[[], BuildOutcome]) -> "Future[BuildOutcome]":
        """Build in the thread."""
        # Ctrl-C ends builds in every thread.
        self.builds = self._pool.submit(copy_context().run, build)
        return self.builds

    def stop(self) -> None:
        """End its build, which is no longer wanted. The worker can be used again."""
        while self.builds is not None and not self.builds.done():
            # To the thread it looks like a lost connection: it shares only the number.
            if (number := self.worker.process_id) is not None:
                with suppress(ProcessLookupError):
                    os.killpg(number, signal.SIGTERM)
            wait([self.builds], _LOOK_AGAIN)

    def end(self) -> None:
        """End the thread too."""
        self.stop()
        self._pool.shutdown()


@dataclass
class KindBuilds(Builds):
    """Builds engines on the workers of one kind.

    Attributes:
        folder: Stores engines from workers that only build.
        bays: The workers; the first one measures.
    """

    folder: Path = field(default_factory=Path)
    bays: tuple[Bay, ...] = ()
    _waiting: dict[tuple[str, bool], list[tuple[Bay, "Future[BuildOutcome]"]]] = field(
        default_factory=dict
    )
    _idle: Bay | None = None
    _before: int = 0

    @property
    def helpers(self) -> int:
        """Number of idle workers that do not measure."""
        return sum(bay.idle for bay in self.bays[1:])

    def begin(self, build: Callable[[], object], *, helpers: bool = False, before: int = 0) -> None:
        """Start what `build` builds, without waiting for it.

        Does nothing if no worker is idle, or if more than `before` of the same have started.

        Args:
            build: Requests one build from this object.
            helpers: Whether to leave the measuring worker alone.
            before: How many of the same are requested earlier.
        """
        self._before = before
        self._idle = next((bay for bay in self.bays[helpers:] if bay.idle), None)
        if self._idle is not None:
            try:
                with suppress(_Begun, OSError):  # reported when it is waited for
                    build()
            finally:
                self._idle = None

    def settle(self) -> None:
        """End builds that were started but never requested."""
        for begun in self._waiting.values():
            for bay, future in begun:
                bay.stop()
                with suppress(HalfwiseError):
                    self._kept(future.result())
        self._waiting.clear()

    def _next(self) -> int:
        return len(self.outcomes) + sum(map(len, self._waiting.values())) + 1

    def _once(self, model: Path, config: BuildConfig, purpose: str, *, fresh: bool) -> BuildOutcome:
        key = config_key(config), fresh
        if self._idle is not None:
            if len(self._waiting.get(key, ())) > self._before:
                raise _Begun
            worker = self._idle.worker
            build = self._begun(worker, model, config, purpose, fresh=fresh)
            begun = self._idle.begin(lambda: self._here(worker, build()))
            self._waiting.setdefault(key, []).append((self._idle, begun))
            raise _Begun
        if not self._waiting.get(key):
            return super()._once(model, config, purpose, fresh=fresh)
        bay, begun = self._waiting[key].pop(0)
        outcome = begun.result()
        if outcome.status == "lost" and bay is not self.bays[0]:
            bay.lost = outcome.message
        return self._kept(outcome.model_copy(update={"purpose": purpose}))

    def _kept(self, outcome: BuildOutcome) -> BuildOutcome:
        kept = super()._kept(outcome)
        self.outcomes.sort(key=lambda each: each.number)
        return kept

    def _here(self, worker: Worker, outcome: BuildOutcome) -> BuildOutcome:
        """Fetch an engine from a worker that only builds, to pass it on."""
        if worker is self.worker or outcome.engine is None:
            return outcome
        try:
            engine = worker.fetch(outcome.engine, self.folder / f"{outcome.engine.sha256}.engine")
            worker.forget(outcome.engine)
        except (*ENGINE_FAULTS, OSError) as error:
            why = error.message if isinstance(error, HalfwiseError) else f"{error}."
            return outcome.model_copy(update={"status": "lost", "engine": None, "message": why})
        return outcome.model_copy(update={"engine": engine})
