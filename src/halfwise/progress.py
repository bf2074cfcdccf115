"""Progress reports of a run, and Ctrl-C that ends its optional part and keeps what it has found.

Only the command line offers that: users of the library get Python's KeyboardInterrupt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from time import monotonic
from typing import Protocol

from msgspec import Struct


class Watcher(Protocol):
    """Receives the progress of a run. Everything that a user sees while waiting goes through it."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""

    def step(self, done: int, total: int | None = None, of: str = "") -> None:
        """Report that `done` steps of the stage, or of its part `of`, are over.

        It may end before all `total` are.
        """

    def note(self, line: str) -> None:
        """Report a message worth reading."""


class Silent:
    """A watcher that reports nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Do nothing."""

    def step(self, done: int, total: int | None = None, of: str = "") -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Do nothing."""


class Interruption(Struct):
    """Whether the user wants to stop and keep the results so far.

    Attributes:
        ready: Whether there is something to keep: a plan that passes or serves.
        at: When the user asked for it, as `time.monotonic()`; inf if not.
    """

    ready: bool = False
    at: float = inf

    @property
    def asked(self) -> bool:
        """Whether the user asked for it."""
        return self.at < inf

    @property
    def overdue(self) -> bool:
        """Whether that was so long ago that nothing more may begin but what a result needs."""
        return monotonic() - self.at > _PATIENCE

    def offer(self) -> None:
        """Let Ctrl-C end the work: from now on there is something to keep."""
        self.ready = True

    def take(self) -> bool:
        """Request the results so far; return False if there are none, or no second request."""
        if not self.ready or self.asked:
            return False
        self.at = monotonic()
        return True


_PATIENCE = 2.0
"""Seconds after Ctrl-C. Our choice: the file, its verdict and the page take some seconds too."""
_offered: ContextVar[Interruption | None] = ContextVar("interruption", default=None)


def interruption() -> Interruption:
    """Return the command's interruption, or one that is never requested."""
    return _offered.get() or Interruption()


@contextmanager
def offered() -> Iterator[Interruption]:
    """Allow the block to be ended early; yields the function that requests it."""
    made = Interruption()
    token = _offered.set(made)
    try:
        yield made
    finally:
        _offered.reset(token)
