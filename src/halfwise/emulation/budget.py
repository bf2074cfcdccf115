"""The time that a run may spend on what it can do without: it counts while that works."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from halfwise.emulation.bounded import OutOfTime, ending
from halfwise.records import CutStage

_LONGEST = 1e9
"""Seconds (30 years) in the place of infinitely many, with which nothing could be computed."""

_Found = TypeVar("_Found")
_Other = TypeVar("_Other")


class TimeBudget:
    """Seconds for all optional work of one run; what must be done is not ended.

    Attributes:
        seconds: How many; 0 or less leaves none.
        cut: The stages that it ended or left out, in that order, each once.
    """

    def __init__(
        self, seconds: float = _LONGEST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the seconds and what tells the time."""
        self.seconds, self.cut = seconds, list[CutStage]()
        self._clock, self._left, self._reserved = clock, min(seconds, _LONGEST), 0.0
        self._since: float | None = None

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left, but for what the block around may not take."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._left - running <= self._reserved

    def check(self) -> None:
        """Raise `OutOfTime` within a block whose time is spent."""
        if self._since is not None and self.is_spent:
            raise OutOfTime

    @contextmanager
    def bounding(self, part: float = 1.0) -> Iterator[None]:
        """Count the block, and end what ONNX Runtime does in it when the time is spent.

        Args:
            part: How much of what is left it may take, > 0 to 1; within another block that of the
                other counts.

        Raises:
            OutOfTime: the time is spent, before the block or in it.
        """
        if self._since is not None:
            yield
            return
        before, ended = self._left, False
        self._reserved = before * (1 - part)
        self._since = self._clock()
        try:
            self.check()
            with ending(time.monotonic() + self._left - self._reserved):
                yield
        except OutOfTime:
            ended = True
            raise
        finally:
            self._left = before - (self._clock() - self._since)
            if ended:  # what ended it once is over, whatever the clock says by now
                self._left = min(self._left, self._reserved)
            self._since, self._reserved = None, 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the block, which must be done and is not ended."""
        before, started = self._left, self._clock()
        try:
            yield
        finally:
            self._left = min(self._left, before - (self._clock() - started))

    def within(
        self, stage: CutStage, work: Callable[[], _Found], otherwise: _Other, part: float = 1.0
    ) -> _Found | _Other:
        """Return what `work` does, or `otherwise` where the time ends it; `cut` tells then.

        Within a block, `OutOfTime` goes on to who began it. The other arguments are those of
        `bounding`.
        """
        if self._since is not None:
            return work()
        try:
            with self.bounding(part):
                return work()
        except OutOfTime:
            self.leave_out(stage)
            return otherwise

    def leave_out(self, stage: CutStage) -> None:
        """Remember that a stage was cut."""
        if stage not in self.cut:
            self.cut.append(stage)
