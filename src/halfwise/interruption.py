"""Ctrl-C that ends the optional part of a run and keeps what it has found.

Only the command line offers it: users of the library get Python's KeyboardInterrupt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Interruption:
    """Whether the user wants to stop and keep the results so far.

    Attributes:
        ready: Whether there is something to keep: a plan that passes or serves.
        asked: Whether the user asked for it.
    """

    ready: bool = False
    asked: bool = False

    def offer(self) -> None:
        """Let Ctrl-C end the work: from now on there is something to keep."""
        self.ready = True

    def take(self) -> bool:
        """Request the results so far; return False if there are none, or no second request."""
        if not self.ready or self.asked:
            return False
        self.asked = True
        return True


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
