"""Runs the emulation's search during the FP32 build: one needs the CPU, the other the GPU.

Serialising a model temporarily removes its weights, so each side has its own graph.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import ParamSpec, TypeVar

from halfwise.case import Case, Samples
from halfwise.emulation.bounded import Stop, Stopped, limited, stopped_by
from halfwise.progress import Watcher

_Found = TypeVar("_Found")
_Given = ParamSpec("_Given")


@contextmanager
def concurrently(
    search: Callable[[Watcher], _Found], watcher: Watcher
) -> Iterator[Callable[[], _Found]]:
    """Run `search` in a thread during the block; provide what waits for its result.

    Its progress is shown only while it is waited for, so that one thread at a time uses `watcher`.
    However the block ends, the search stops at its next report or evaluation, or during that
    evaluation, and is joined.

    Args:
        search: Receives the watcher to report to; its errors are raised when the result is
            requested.
        watcher: Receives progress.
    """
    told, stop, context = _Held(watcher), Stop(), copy_context()

    def stoppable() -> _Found:
        with stopped_by(stop), limited(expect=told.expect):
            return search(told)

    with ThreadPoolExecutor(1, "search") as pool:
        future: Future[_Found] = pool.submit(context.run, stoppable)

        def result() -> _Found:
            told.release()
            return future.result()

        try:
            yield result
        finally:
            told.stop()
            stop.ask()


def one_at_a_time(case: Case) -> Case:
    """Return the case with its samples and metric, which are user code, called one at a time."""
    lock = threading.RLock()
    metric = case.metric
    return replace(
        case,
        calibration=_locked_samples(case.calibration, lock),
        heldout=_locked_samples(case.heldout, lock),
        metric=None if metric is None else _locked(metric, lock),
    )


def with_own_network(case: Case) -> Case:
    """Return the case with a copy of its graph; weights are shared."""
    network = case.network
    return replace(case, network=replace(network, model=network.copy()))


def _locked_samples(samples: Samples, lock: AbstractContextManager[bool]) -> Samples:
    return replace(samples, load=_locked(samples.load, lock))


def _locked(
    function: Callable[_Given, _Found], lock: AbstractContextManager[bool]
) -> Callable[_Given, _Found]:
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with lock:
            return function(*args, **kwargs)

    return call


class _Held:
    """A watcher that holds messages back until it is released."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._lock = threading.Lock()
        self._held: list[Callable[[], None]] | None = []
        self._stopped = False

    def stage(self, name: str, total: int | None = None) -> None:
        self._tell(lambda: self._watcher.stage(name, total))

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        # Nobody misses steps of a stage that is over when it is shown.
        self._tell(lambda: self._watcher.step(done, total, of, most=most), hold=False)

    def left(self, seconds: float) -> None:
        self._tell(lambda: self._watcher.left(seconds), hold=False)

    def expect(self, seconds: float, of: str) -> None:
        self._tell(lambda: self._watcher.expect(seconds, of), hold=False)

    def note(self, line: str) -> None:
        self._tell(lambda: self._watcher.note(line))

    def release(self) -> None:
        """Pass on what was held back, and everything later at once."""
        with self._lock:
            held, self._held = self._held or [], None
            for tell in held:
                tell()

    def stop(self) -> None:
        """End the reporting thread."""
        self._stopped = True

    def _tell(self, tell: Callable[[], None], *, hold: bool = True) -> None:
        if self._stopped:
            raise Stopped
        with self._lock:
            if self._held is None:
                tell()
            elif hold:
                self._held.append(tell)
