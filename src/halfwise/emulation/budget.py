"""The budget for a run's optional work: counted work, and a time limit.

Ctrl-C spends all of it if the command line offers that (`halfwise.interruption`).

Work is counted in inferences of one sample, with a fixed weight per kind (`WEIGHTS`), so that a run
does the same whatever else the machine does. If the time limit ends something, another run may find
something else; `ended_by` says so.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Literal, TypeVar

from halfwise.emulation.bounded import OutOfTime, ending
from halfwise.interruption import interruption
from halfwise.records import BudgetEnd, CutStage

Work = Literal["trial", "pass", "judge", "growth", "proof", "double", "sums"]
"""Kinds of work on one sample: a run of the switched emulation; a run that inspects inner tensors;
everything for a verdict, both emulated and as ONNX Runtime runs the file; one part of the graph
followed in two models; a plain run in FP32; a plain run in FP64; and one that rounds every
product and every addition."""

WEIGHTS: Mapping[Work, float] = {
    "trial": 3.0,
    "pass": 3.0,
    "judge": 8.0,
    "growth": 4.0,
    "proof": 1.0,
    "double": 20.0,
    "sums": 50.0,
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
        outer: The budget that this one supplements; see `beside`.
        payer: The supplementary budget that pays for the current work.
        told: Called at the start of a block and of each piece of work in it, with the most seconds
            that the block may still take: what is left of the time (inf without a limit), or of the
            work at the pace so far. At the end of the block with inf.
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
        self._until = work
        self._interruption = interruption()
        self.outer: Budget | None = None
        self.payer: Budget | None = None
        self.told: Callable[[float], None] = lambda _: None
        self._before, self._paced = 0.0, (0.0, 0.0)

    def beside(self, *, seconds: float, work: float) -> "Budget":
        """Return an additional budget: work in its blocks counts there, not here."""
        other = Budget(seconds, self._clock, work=work)
        other.outer, other.told = self, self.told
        return other

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
        if self.payer is not None:
            self.payer.spend(work, times)
            return
        self.check()
        if self._since is not None:
            self.told(self._most(self._clock() - self._since))
        self.spent += WEIGHTS[work] * times

    def _most(self, took: float) -> float:
        """Return how many more seconds a block may take after this many."""
        seconds, done = self._paced[0] + took, self._paced[1] + self.spent - self._before
        left = self._left - took - self._reserved
        if done:
            left = min(left, seconds / done * (self._until - self.spent))
        return left if left < _LONGEST / 2 else inf

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
        self._since, self._before = self._clock(), self.spent
        if self.outer is not None:
            self.outer.payer = self
        try:
            self.check()
            self.told(self._most(0.0))
            until = time.monotonic() + self._left - self._reserved
            with ending(until, lambda: self._interruption.asked):
                yield
        except OutOfTime:
            by = self._end() or "seconds"
            ended = by == "seconds"
            self.tell(by)
            raise
        finally:
            took = self._clock() - self._since
            self._left = before - took
            self._paced = self._paced[0] + took, self._paced[1] + self.spent - self._before
            if ended:  # the time that ended it stays spent, whatever the clock says by now
                self._left = min(self._left, self._reserved)
            self._since, self._reserved, self._until = None, 0.0, self.work
            self.told(inf)
            if self.outer is not None:
                self.outer.payer = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the seconds of a block of necessary work, which is never ended."""
        before, started = self._left, self._clock()
        try:
            yield
        finally:
            self._left = min(self._left, before - (self._clock() - started))

    def within(
        self, stage: CutStage, work: Callable[[], _Found], otherwise: _Other, part: float = 1.0
    ) -> _Found | _Other:
        """Return the result of `work`, or `otherwise` if the budget ends it; see `cut`.

        Inside a block, `OutOfTime` propagates to the caller that began it. `part` is as for
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
        """Record that a stage was cut, and by what."""
        if stage not in self.cut:
            self.cut.append(stage)
        if (by := self._end()) is not None:
            self.tell(by)

    def took_in(self, other: "Budget") -> None:
        """Record what a supplementary budget ended; see `beside`."""
        self.cut += [stage for stage in other.cut if stage not in self.cut]
        for by in other.ended_by:
            self.tell(by)

    def tell(self, by: BudgetEnd) -> None:
        """Record what ended something."""
        if by not in self.ended_by:
            self.ended_by.append(by)
