"""Calls into ONNX Runtime that come to an end: after a time, when the budget is spent, on Ctrl-C.

A call runs in a thread of its own while the caller waits. Told to stop, ONNX Runtime stops between
two nodes, also inside of a Loop. What does not (one operator of hours) is left behind: its thread
ends with the process.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from halfwise.errors import RunFailed

RUN_SECONDS = 300.0
"""How long one evaluation may take where nobody says it: as long as one inference of an engine."""
_PATIENCE = 10.0
"""Seconds after which a call that is not done is told of."""
_GRACE = 3.0
"""Seconds that a call has to stop when it is told to."""


class OutOfTime(Exception):
    """The time budget is spent."""


class Stopped(BaseException):
    """Ends a thread whose work nobody waits for; no handler of errors takes it for one."""


class Stop:
    """Ends the calls of another thread: the one that runs, and those that would come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Callable[[], None] | None = None
        self.asked = False

    def ask(self) -> None:
        """End them; the thread itself goes on with `Stopped`."""
        with self._lock:
            self.asked = True
            if self._running is not None:
                self._running()

    @contextmanager
    def around(self, stop: Callable[[], None]) -> Iterator[None]:
        """Have `stop` called where an end is asked for within the block; raise `Stopped` then."""
        with self._lock:
            if self.asked:
                raise Stopped
            self._running = stop
        try:
            yield
        finally:
            with self._lock:
                self._running = None
            if self.asked:
                raise Stopped


@dataclass(frozen=True)
class Limits:
    """How long calls may take.

    Attributes:
        seconds: Of one call.
        until: Value of `time.monotonic()` at which all work has to end; None for never.
        tell: Is told of a call that takes long.
        stop: Ends them.
    """

    seconds: float = RUN_SECONDS
    until: float | None = None
    tell: Callable[[str], None] | None = None
    stop: Stop = field(default_factory=Stop)


_limits: ContextVar[Limits] = ContextVar("limits")
_USUAL = Limits()


@contextmanager
def limited(
    seconds: float | None = None, *, tell: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Bound each call within the block; None leaves what holds outside of it."""
    outer = _limits.get(_USUAL)
    inner = replace(
        outer, seconds=outer.seconds if seconds is None else seconds, tell=tell or outer.tell
    )
    token = _limits.set(inner)
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def stopped_by(stop: Stop) -> Iterator[None]:
    """Let `stop`, which another thread has, end the calls within the block."""
    token = _limits.set(replace(_limits.get(_USUAL), stop=stop))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def ending(until: float | None) -> Iterator[None]:
    """End what runs within the block at `until` of `time.monotonic()`; None takes an end away.

    Calls that begin or run after it raise `OutOfTime`.
    """
    token = _limits.set(replace(_limits.get(_USUAL), until=until))
    try:
        yield
    finally:
        _limits.reset(token)


def call(work: Callable[[], Any], stop: Callable[[], None], what: str) -> Any:  # noqa: ANN401 - of anything
    """Return what `work()` returns, or raise what it raises.

    Args:
        work: A call that lets other threads run.
        stop: Tells it to end soon; called from this thread.
        what: Begins a sentence on it.

    Raises:
        RunFailed: it took longer than one call may.
        OutOfTime: the time budget ended before it did.
        Stopped: another thread ended it.
    """
    limits = _limits.get(_USUAL)
    with limits.stop.around(stop):
        return _bounded(work, stop, what, limits)


def _bounded(work: Callable[[], Any], stop: Callable[[], None], what: str, limits: Limits) -> Any:  # noqa: ANN401 - of anything
    started = time.monotonic()
    end = started + limits.seconds
    if limits.until is not None:
        if started >= limits.until:
            raise OutOfTime
        end = min(end, limits.until)
    runner = _idle.pop() if _idle else _Runner()
    runner.tasks.put(work)
    try:
        done = runner.wait_until(min(started + _PATIENCE, end), limits.stop)
        if not done and end - started > _PATIENCE and limits.tell:
            limits.tell(
                f"{what} takes longer than {_PATIENCE:g} s; it is ended at {end - started:g} s"
            )
        done = done or runner.wait_until(end, limits.stop)
    except BaseException:
        _end(runner, stop)
        raise
    if not done:
        _end(runner, stop)
        if end == limits.until:
            raise OutOfTime
        raise RunFailed(
            f"{what} took longer than {limits.seconds:g} s and was ended.",
            "Give it longer with --run-timeout SECONDS; a Loop in it may never end.",
            late=True,
        )
    return _result(runner)


class _Runner:
    """A thread that does one task after another."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.answer: tuple[Any, BaseException | None] | None = None
        threading.Thread(target=self._work, name="halfwise-evaluation", daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self.tasks.get()
            try:
                answer: tuple[Any, BaseException | None] = task(), None
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is read
                answer = None, error
            self._answers.put(answer)
            # Or the last results would live until the next task.
            del task, answer

    def wait_until(self, end: float, stop: Stop) -> bool:
        while not (done := self.wait(min(_GRACE, end - time.monotonic()))):
            if stop.asked or time.monotonic() >= end:
                break
        return done

    def wait(self, seconds: float) -> bool:
        try:
            self.answer = self._answers.get(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))
        except queue.Empty:
            return False
        return True


def _end(runner: _Runner, stop: Callable[[], None]) -> None:
    stop()
    if runner.wait(_GRACE):
        runner.answer = None
        _idle.append(runner)


def _result(runner: _Runner) -> Any:  # noqa: ANN401 - of anything
    assert runner.answer is not None
    (result, error), runner.answer = runner.answer, None
    _idle.append(runner)
    if error is not None:
        try:
            raise error
        finally:
            # An error holds its frames, which hold it.
            del error
    return result


_idle: list[_Runner] = []
# Threads do not come along into a child.
os.register_at_fork(after_in_child=_idle.clear)
