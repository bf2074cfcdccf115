"""Bounded calls into ONNX Runtime: they end after a time, when the budget is spent, or on Ctrl-C.

A call runs in its own thread while the caller waits. When asked to stop, ONNX Runtime stops between
two nodes, even inside a Loop. A call that does not stop (one operator that takes hours) is left
behind: its thread ends with the process.

The first call of a command that reaches its limit is reported as a finding; the next one ends the
command. Where attempts may fail (`forgiving`), any number of calls may reach it.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from halfwise.declarations import default
from halfwise.errors import RunFailed, TookTooLong
from halfwise.wording import number

WORK: Mapping[str, float] = {
    "load": 1.0,
    "check": 0.4,
    "reference": 2.2,
    "observe": 9.0,
    "emulate": 10.0,
    "judge": 9.0,
    "store": 12.0,
    "proof": 17.0,
    "compare": 11.0,
    "model": 0.6,
}
"""Work of each stage per node of the model, relative to loading it: measured on models of 500,
2,000 and 5,000 nodes of bench/scale.py, where single runs were off by up to 1.6 times. Models with
many samples or large tensors take longer in all stages but the first, so an estimate may be off by
a factor of two or three until the stage itself has run or is counted."""


@dataclass
class Paces:
    """Seconds of work so far.

    Attributes:
        known: For each kind of work, its total seconds and total size.
    """

    known: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, kind: str, size: int, seconds: float) -> None:
        """Record finished work; for kinds in `WORK`, `size` ≥ 1 is the number of nodes."""
        took, sizes = self.known.get(kind, (0.0, 0))
        self.known[kind] = took + seconds, sizes + size

    def expected(self, kind: str, size: int) -> float:
        """Return the seconds that work will probably take; 0 if nothing is known.

        The pace is that of earlier work of the same kind; otherwise, for kinds in `WORK`, that of
        the stages that have run.
        """
        if kind in self.known:
            took, sizes = self.known[kind]
            return took / sizes * size if sizes else 0.0
        staged = [(took, WORK[k] * sizes) for k, (took, sizes) in self.known.items() if k in WORK]
        units = sum(done for _, done in staged)
        if not units:
            return 0.0
        return sum(took for took, _ in staged) / units * WORK.get(kind, 0.0) * size


RUN_SECONDS: float = default("run_timeout")
"""Default limit of one evaluation: the same as for one inference of an engine."""
REPEATING_SECONDS = 40.0
"""Default limit for a model that repeats a body, and may never end: the command then ends within a
minute."""
_PATIENCE = 10.0
"""Seconds after which an unfinished call is reported."""
_LOOK = 0.5
"""Seconds between two checks whether a call must end."""
_GRACE = 2.0
"""Seconds that a call has to stop once asked to."""
_AGAIN = 2.0
"""Smallest limit in seconds after another call reached its limit."""
_LONGER = 10.0
"""Smallest limit after another call reached its limit, as a multiple of the longest finished call:
emulations run longer than their models."""


_WORTH_TELLING = 2.0
"""Seconds of work from which its expected time is reported."""


class OutOfTime(Exception):
    """The time budget is spent."""


class Stopped(BaseException):
    """Ends a thread whose work is no longer needed; error handlers do not catch it."""


class Stop:
    """Ends the calls of another thread: the current one and all later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Callable[[], None] | None = None
        self.asked = False

    def ask(self) -> None:
        """End the calls; they raise `Stopped` in their thread."""
        with self._lock:
            self.asked = True
            if self._running is not None:
                self._running()

    @contextmanager
    def around(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` if an end is requested within the block, then raise `Stopped`."""
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


@dataclass
class _Calls:
    """What is known about a command's calls so far.

    Attributes:
        repeating: Whether one of its models repeats a body.
        longest: Seconds of the longest call that finished.
        late: The error of the first call that reached its limit.
        paces: How long work of known size took.
    """

    repeating: bool = False
    longest: float = 0.0
    late: RunFailed | None = None
    paces: Paces = field(default_factory=Paces)

    @property
    def seconds(self) -> float:
        """Default limit of the next call."""
        usual = REPEATING_SECONDS if self.repeating else RUN_SECONDS
        return usual if self.late is None else min(usual, max(_AGAIN, _LONGER * self.longest))


@dataclass(frozen=True)
class Limits:
    """Limits of calls.

    Attributes:
        seconds: Limit of one call; None for the default.
        until: Value of `time.monotonic()` at which all work must end; None for never.
        over: Returns whether all work must end now, whatever the time.
        tell: Called with a message about each long call.
        expect: Called with the seconds that work will probably take, and its kind; afterwards with
            0.
        expected: Value of `time.monotonic()` up to which the present work has been announced.
        stop: Ends the calls.
        forgiving: Whether any number of calls may reach the limit.
        calls: The calls so far.
    """

    seconds: float | None = None
    until: float | None = None
    over: Callable[[], bool] = lambda: False
    tell: Callable[[str], None] | None = None
    expect: Callable[[float, str], None] = lambda _seconds, _kind: None
    expected: float = 0.0
    stop: Stop = field(default_factory=Stop)
    forgiving: bool = False
    calls: _Calls = field(default_factory=_Calls)


_limits: ContextVar[Limits | None] = ContextVar("limits", default=None)


def _now() -> Limits:
    return _limits.get() or Limits()


@contextmanager
def _changed(**changes: Any) -> Iterator[None]:
    token = _limits.set(replace(_now(), **changes))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def limited(
    seconds: float | None = None,
    *,
    tell: Callable[[str], None] | None = None,
    expect: Callable[[float, str], None] | None = None,
) -> Iterator[None]:
    """Bound each call within the block, and report long ones; None keeps the outer setting."""
    outer = _now()
    with _changed(
        seconds=outer.seconds if seconds is None else seconds,
        tell=tell or outer.tell,
        expect=expect or outer.expect,
    ):
        yield


@contextmanager
def sized(kind: str, size: int = 1) -> Iterator[None]:
    """Report how long the block will probably take, by its kind and size; see `Paces.expected`.

    Until that time is over, work inside the block is not reported: the block takes longer.
    """
    limits, started = _now(), time.monotonic()
    paces = limits.calls.paces
    expected = 0.0 if started < limits.expected else paces.expected(kind, size)
    told, of = expected >= _WORTH_TELLING, kind if kind in paces.known else ""
    if told:
        limits.expect(expected, of)
    try:
        with _changed(expected=started + expected if told else limits.expected):
            yield
    finally:
        if told:
            limits.expect(0.0, of)
    took(kind, size, time.monotonic() - started)


def took(kind: str, size: int, seconds: float) -> None:
    """Record work whose size is known only once it is over; see `sized`."""
    _now().calls.paces.add(kind, size, seconds)


@contextmanager
def forgiving(*, any_number: bool = True) -> Iterator[None]:
    """Allow any number of calls within the block to reach their limit: attempts may fail."""
    with _changed(forgiving=any_number):
        yield


def stopped_by(stop: Stop) -> AbstractContextManager[None]:
    """Let `stop`, held by another thread, end the calls within the block."""
    return _changed(stop=stop)


def ending(
    until: float | None, over: Callable[[], bool] = lambda: False
) -> AbstractContextManager[None]:
    """End calls within the block at `until` of `time.monotonic()`; None removes the end.

    Calls that start or run after it raise `OutOfTime`, as do calls once `over()` is true.
    """
    return _changed(until=until, over=over)


def expect_repeating() -> None:
    """Lower the default limit for this command, because a model repeats a body."""
    _now().calls.repeating = True


def call(work: Callable[[], Any], stop: Callable[[], None], what: str) -> Any:  # noqa: ANN401 - of anything
    """Return what `work()` returns, or raise what it raises.

    Args:
        work: A call that lets other threads run.
        stop: Asks it to end soon; called from this thread.
        what: Names the call, as the subject of a sentence.

    Raises:
        RunFailed: it exceeded the limit of one call.
        TookTooLong: it did, and so did an earlier call.
        OutOfTime: the time budget ended first.
        Stopped: another thread ended it.
    """
    limits = _now()
    seconds = limits.calls.seconds if limits.seconds is None else limits.seconds
    with limits.stop.around(stop):
        return _bounded(work, stop, what, replace(limits, seconds=seconds))


def _bounded(work: Callable[[], Any], stop: Callable[[], None], what: str, limits: Limits) -> Any:  # noqa: ANN401 - of anything
    assert limits.seconds is not None
    started = time.monotonic()
    end = started + limits.seconds
    if limits.until is not None:
        if started >= limits.until or limits.over():
            raise OutOfTime
        end = min(end, limits.until)
    runner = _idle.pop() if _idle else _Runner()
    runner.tasks.put(work)
    try:
        done = runner.wait_until(min(started + _PATIENCE, end), limits)
        if not done and end - started > _PATIENCE and limits.tell and not limits.over():
            limits.tell(
                f"{what} takes longer than {number(_PATIENCE)} s; it will be stopped after "
                f"{number(end - started)} s"
            )
        done = done or runner.wait_until(end, limits)
    except BaseException:
        _end(runner, stop)
        raise
    if not done:
        _end(runner, stop)
        if end == limits.until or limits.over():
            raise OutOfTime
        raise _late(what, limits)
    limits.calls.longest = max(limits.calls.longest, time.monotonic() - started)
    return _result(runner)


def _late(what: str, limits: Limits) -> RunFailed | TookTooLong:
    """Return the error for a call that reached its limit."""
    assert limits.seconds is not None
    first = limits.calls.late
    if first is not None and not limits.forgiving:
        return TookTooLong(first.message, first.hint)
    found = RunFailed(
        f"{what} took longer than {number(limits.seconds)} s and was stopped.",
        "Allow more time with --budget run-timeout=SECONDS, or check whether a Loop in it never "
        "ends.",
        late=True,
    )
    limits.calls.late = first or found
    return found


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
            # Otherwise the last results would live until the next task.
            del task, answer

    def wait_until(self, end: float, limits: Limits) -> bool:
        while not (done := self.wait(min(_LOOK, end - time.monotonic()))):
            if limits.stop.asked or limits.over() or time.monotonic() >= end:
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
# A forked child has none of these threads.
os.register_at_fork(after_in_child=_idle.clear)
