"""What a run may spend on what it can do without: work, counted, and seconds as a limit beside.

Ctrl-C spends all of it, where the command line offers that (`halfwise.interruption`).

Work is told in inferences of one sample, with a fixed weight for each kind (`WEIGHTS`), so that a
run does the same whatever else the machine does. Where seconds end something, another run may find
something else; `ended_by` tells.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Literal, TypeVar

from halfwise.emulation.bounded import OutOfTime, ending
from halfwise.interruption import interruption
from halfwise.records import BudgetEnd, CutStage

Work = Literal["trial", "pass", "judge", "growth", "proof", "double"]
"""Kinds of work on one sample: a run of the switched emulation; one that looks at what is inside;
all that a verdict takes, as emulated and as ONNX Runtime runs the file; one part of the graph
followed in two models; a plain run in FP32, and one in FP64."""

WEIGHTS: Mapping[Work, float] = {
    "trial": 3.0,
    "pass": 3.0,
    "judge": 8.0,
    "growth": 4.0,
    "proof": 1.0,
    "double": 20.0,
}
"""Of each, in inferences of one sample: what they take on the models of bench/overhead.py, rounded.
They need not be right, only fixed: they set how much is done, and no time is computed of them."""

_LONGEST = 1e9
"""Seconds (30 years) in the place of infinitely many, with which nothing could be computed."""

_Found = TypeVar("_Found")
_Other = TypeVar("_Other")


class Budget:
    """Work and seconds for all that one run can do without; what must be done is not ended.

    All work counts. Seconds count in blocks alone, so those that must pass do not.

    Attributes:
        seconds: How many; 0 or less leaves none.
        work: How much, in inferences of one sample; 0 or less leaves none.
        spent: Work so far.
        cut: The stages that it ended or left out, in that order, each once.
        ended_by: What ended them, in that order, each once.
        outer: The one that this is beside.
        payer: The one beside this that pays for what is done now.
        told: Is told as work begins in a block how many seconds that block may go on, at most, by
            how long its work took so far; inf if that is not known.
    """

    def __init__(
        self,
        seconds: float = _LONGEST,
        clock: Callable[[], float] = time.monotonic,
        *,
        work: float = inf,
    ) -> None:
        """Take the limits, and what tells the time."""
        self.seconds, self.work, self.spent = seconds, work, 0.0
        self.cut, self.ended_by = list[CutStage](), list[BudgetEnd]()
        self._clock, self._left, self._reserved = clock, min(seconds, _LONGEST), 0.0
        self._since: float | None = None
        self._until = work
        self._interruption = interruption()
        self.outer: Budget | None = None
        self.payer: Budget | None = None
        self.told: Callable[[float], None] = lambda _: None
        self._before = 0.0

    def beside(self, *, seconds: float, work: float) -> "Budget":
        """Return a budget for more: what is done in its blocks counts there, and not here."""
        other = Budget(seconds, self._clock, work=work)
        other.outer, other.told = self, self.told
        return other

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left, but for what the block around may not take."""
        return self._end() is not None

    def _end(self) -> BudgetEnd | None:
        if self._interruption.asked:
            return "interrupt"
        running = 0.0 if self._since is None else self._clock() - self._since
        # Where both are spent, the work is what every run ends by.
        if self.spent >= self._until:
            return "work"
        return "seconds" if self._left - running <= self._reserved else None

    def check(self) -> None:
        """Raise `OutOfTime` within a block whose budget is spent."""
        if self._since is not None and self.is_spent:
            raise OutOfTime

    def spend(self, work: Work, times: int = 1) -> None:
        """Count work that begins now; within a block whose budget is spent, raise `OutOfTime`."""
        if self.payer is not None:
            self.payer.spend(work, times)
            return
        self.check()
        if self._since is not None:
            self.told(self._most(self._clock() - self._since))
        self.spent += WEIGHTS[work] * times

    def _most(self, took: float) -> float:
        """Return how many seconds a block may go on that took so many."""
        left = self._left - took - self._reserved
        if done := self.spent - self._before:
            left = min(left, took / done * (self._until - self.spent))
        return left if left < _LONGEST / 2 else inf

    @contextmanager
    def bounding(self, part: float = 1.0) -> Iterator[None]:
        """Count the block, and end what ONNX Runtime does in it when the time is spent.

        Args:
            part: How much of what is left it may take, > 0 to 1; within another block that of the
                other counts.

        Raises:
            OutOfTime: work or time are spent, before the block or in it.
        """
        if self._since is not None:
            yield
            return
        before, ended = self._left, False
        self._reserved = before * (1 - part)
        self._until = self.spent + max(0.0, self.work - self.spent) * part
        self._since, self._before = self._clock(), self.spent
        if self.outer is not None:
            self.outer.payer = self
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
            if ended:  # what ended it once is over, whatever the clock says by now
                self._left = min(self._left, self._reserved)
            self._since, self._reserved, self._until = None, 0.0, self.work
            if self.outer is not None:
                self.outer.payer = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the seconds of a block, which must be done and is not ended."""
        before, started = self._left, self._clock()
        try:
            yield
        finally:
            self._left = min(self._left, before - (self._clock() - started))

    def within(
        self, stage: CutStage, work: Callable[[], _Found], otherwise: _Other, part: float = 1.0
    ) -> _Found | _Other:
        """Return what `work` does, or `otherwise` where the budget ends it; `cut` tells then.

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
        """Remember that a stage was cut, and by what."""
        if stage not in self.cut:
            self.cut.append(stage)
        if (by := self._end()) is not None:
            self.tell(by)

    def took_in(self, other: "Budget") -> None:
        """Remember what another budget, beside this one, ended."""
        self.cut += [stage for stage in other.cut if stage not in self.cut]
        for by in other.ended_by:
            self.tell(by)

    def tell(self, by: BudgetEnd) -> None:
        """Remember what ended something."""
        if by not in self.ended_by:
            self.ended_by.append(by)
