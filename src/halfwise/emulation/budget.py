"""The budget for a run's optional work: counted work, and a time limit.

Ctrl-C spends all of it if the command line offers that (`halfwise.progress`).

Work is counted in inferences of one sample, with a fixed weight per kind (`WEIGHTS`), so that a run
does the same whatever else the machine does. If the time limit ends something, another run may find
something else; `ended_by` says so.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any, Literal, TypeVar

from msgspec import Struct, field

from halfwise.declarations import default
from halfwise.errors import RunFailed, TookTooLong
from halfwise.progress import interruption
from halfwise.records import BudgetEnd, CutStage, replace
from halfwise.wording import number

RUN_SECONDS: float = default("run_timeout")
"""Default limit of one evaluation: the same as for one inference of an engine."""
REPEATING_SECONDS = 40.0
"""Default limit for a model that repeats a body, and may never end: the command then ends within a
minute."""
_LOOK = 0.5
"""Seconds between two checks whether a call must end."""
_GRACE = 2.0
"""Seconds that a call has to stop once asked to."""
_AGAIN = 2.0
"""Smallest limit in seconds after another call reached its limit."""
_LONGER = 10.0
"""Smallest limit after another call reached its limit, as a multiple of the longest finished call:
emulations run longer than their models."""


class OutOfTime(Exception):
    """The time budget is spent."""


class _Calls(Struct):
    """What is known about a command's calls so far.

    Attributes:
        repeating: Whether one of its models repeats a body.
        longest: Seconds of the longest call that finished.
        late: The error of the first call that reached its limit.
    """

    repeating: bool = False
    longest: float = 0.0
    late: RunFailed | None = None

    @property
    def seconds(self) -> float:
        """Default limit of the next call."""
        usual = REPEATING_SECONDS if self.repeating else RUN_SECONDS
        return usual if self.late is None else min(usual, max(_AGAIN, _LONGER * self.longest))


class Limits(Struct, frozen=True):
    """Limits of calls.

    Attributes:
        seconds: Limit of one call; None for the default.
        until: Value of `time.monotonic()` at which all work must end; None for never.
        over: Returns whether all work must end now, whatever the time.
        forgiving: Whether any number of calls may reach the limit.
        calls: The calls so far.
    """

    seconds: float | None = None
    until: float | None = None
    over: Callable[[], bool] = lambda: False
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


def limited(seconds: float | None = None) -> AbstractContextManager[None]:
    """Bound each call within the block; None keeps the outer setting."""
    return _changed(seconds=_now().seconds if seconds is None else seconds)


@contextmanager
def forgiving(*, any_number: bool = True) -> Iterator[None]:
    """Allow any number of calls within the block to reach their limit: attempts may fail."""
    with _changed(forgiving=any_number):
        yield


def ending(
    until: float | None, over: Callable[[], bool] = lambda: False
) -> AbstractContextManager[None]:
    """End calls within the block at `until` of `time.monotonic()`; None removes the end.

    Calls that start or run after it raise `OutOfTime`, as do calls once `over()` is true.
    """
    return _changed(until=until, over=over)


def demand_time() -> None:
    """Raise `OutOfTime` if all work must end now, see `ending`."""
    limits = _now()
    if limits.over() or (limits.until is not None and time.monotonic() >= limits.until):
        raise OutOfTime


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
    """
    limits = _now()
    seconds = limits.calls.seconds if limits.seconds is None else limits.seconds
    limits = replace(limits, seconds=seconds)
    demand_time()
    started = time.monotonic()
    end = started + seconds
    if limits.until is not None:
        end = min(end, limits.until)
    runner = _idle.pop() if _idle else _Runner()
    runner.tasks.put(work)
    try:
        done = runner.wait_until(end, limits)
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
    error = RunFailed(
        f"{what} took longer than {number(limits.seconds)} s and was stopped.",
        "Allow more time with --budget run-timeout=SECONDS, or check whether a Loop in it never "
        "ends.",
        late=True,
    )
    limits.calls.late = first or error
    return error


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
            if limits.over() or time.monotonic() >= end:
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
if hasattr(os, "register_at_fork"):  # not on Windows
    # A forked child has none of these threads.
    os.register_at_fork(after_in_child=_idle.clear)


Work = Literal["trial", "pass", "judge", "growth", "proof"]
"""Kinds of work on one sample: a run of the switched emulation; a run that inspects inner tensors;
everything for a verdict, both emulated and as ONNX Runtime runs the file; one part of the graph
followed in two models; and a plain run in FP32."""

WEIGHTS: Mapping[Work, float] = {
    "trial": 3.0,
    "pass": 3.0,
    "judge": 8.0,
    "growth": 4.0,
    "proof": 1.0,
}
"""Cost of each kind in inferences of one sample: rounded measurements on the models of
bench/overhead.py. They need to be fixed, not exact: they limit the amount of work, and no time is
computed from them."""

_LONGEST = 1e9
"""Seconds (30 years) that stand for infinity, which arithmetic on times cannot use."""

_Found = TypeVar("_Found")
_Other = TypeVar("_Other")


class Budget:
    """Work and time for all optional work of one run; necessary work is never ended.

    All work counts. Time counts only inside blocks, so the time of necessary work does not.

    Attributes:
        seconds: Time limit; 0 or less leaves no time.
        work: Work limit, in inferences of one sample; 0 or less leaves no work.
        spent: Work so far.
        cut: Stages that it ended or left out, in order, each once.
        ended_by: What ended them, in order, each once.
    """

    def __init__(
        self,
        seconds: float = _LONGEST,
        clock: Callable[[], float] = time.monotonic,
        *,
        work: float = inf,
    ) -> None:
        self.seconds, self.work, self.spent = seconds, work, 0.0
        self.cut, self.ended_by = list[CutStage](), list[BudgetEnd]()
        self._clock, self._left, self._reserved = clock, min(seconds, _LONGEST), 0.0
        self._since: float | None = None
        self._stage: CutStage | None = None
        self._until = work
        self._interruption = interruption()

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left, apart from what the current block must not use."""
        return self._end() is not None

    def _end(self) -> BudgetEnd | None:
        if self._interruption.asked:
            return "interrupt"
        running = 0.0 if self._since is None else self._clock() - self._since
        # If both are spent, report the work: it ends every run at the same place.
        if self.spent >= self._until:
            return "work"
        return "seconds" if self._left - running <= self._reserved else None

    def check(self) -> None:
        """Raise `OutOfTime` in a block whose budget is spent."""
        if self._since is not None and self.is_spent:
            raise OutOfTime

    def spend(self, work: Work, times: int = 1) -> None:
        """Count work that starts now; in a block whose budget is spent, raise `OutOfTime`."""
        self.check()
        self.spent += WEIGHTS[work] * times

    @contextmanager
    def bounding(self, part: float = 1.0) -> Iterator[None]:
        """Count the block, and end its ONNX Runtime calls when the time is spent.

        Args:
            part: Share of the remainder that the block may take, in (0, 1]; inside another block,
                the outer share applies.

        Raises:
            OutOfTime: work or time was spent before the block, or ran out in it.
        """
        if self._since is not None:
            yield
            return
        before, ended = self._left, False
        self._reserved = before * (1 - part)
        self._until = self.spent + max(0.0, self.work - self.spent) * part
        self._since = self._clock()
        try:
            self.check()
            until = time.monotonic() + self._left - self._reserved
            with ending(until, lambda: self._interruption.asked):
                yield
        except OutOfTime:
            by = self._end() or "seconds"
            ended = by == "seconds"
            self.tell(by)
            raise
        finally:
            self._left = before - (self._clock() - self._since)
            if ended:  # the time that ended it stays spent, whatever the clock says by now
                self._left = min(self._left, self._reserved)
            self._since, self._reserved, self._until = None, 0.0, self.work

    def within(
        self, stage: CutStage, work: Callable[[], _Found], otherwise: _Other, part: float = 1.0
    ) -> _Found | _Other:
        """Return the result of `work`, or `otherwise` if the budget ends it; see `cut`.

        Inside a block, `OutOfTime` propagates to the caller that began it. `part` is as for
        `bounding`.
        """
        if self._since is not None:
            return work()
        self._stage = stage
        try:
            with self.bounding(part):
                return work()
        except OutOfTime:
            self.leave_out(stage)
            return otherwise
        finally:
            self._stage = None

    def leave_out(self, stage: CutStage) -> None:
        """Record that a stage was cut, and by what; within another one, it is that one."""
        stage = self._stage or stage
        if stage not in self.cut:
            self.cut.append(stage)
        if (by := self._end()) is not None:
            self.tell(by)

    def took_in(self, other: "Budget") -> None:
        """Record what another budget of the same run ended."""
        self.cut += [stage for stage in other.cut if stage not in self.cut]
        for by in other.ended_by:
            self.tell(by)

    def tell(self, by: BudgetEnd) -> None:
        """Record what ended something."""
        if by not in self.ended_by:
            self.ended_by.append(by)
