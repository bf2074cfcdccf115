"""Ctrl-C that ends what a run can do without, and keeps what it has found.

Only the command line offers it: who calls the library gets the KeyboardInterrupt of Python.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Interruption:
    """Whether the user wants what there is so far.

    Attributes:
        ready: Whether there is something to keep: a plan that passes, or one that serves.
        asked: Whether the user asked for it.
    """

    ready: bool = False
    asked: bool = False

    def take(self) -> bool:
        """Ask for what there is; return False where there is nothing, or nobody asks twice."""
        if not self.ready or self.asked:
            return False
        self.asked = True
        return True


_offered: ContextVar[Interruption | None] = ContextVar("interruption", default=None)


def interruption() -> Interruption:
    """Return that of the command; one that nobody asks where none is offered."""
    return _offered.get() or Interruption()


@contextmanager
def offered() -> Iterator[Interruption]:
    """Let what runs in the block be ended early; gives what asks for it."""
    made = Interruption()
    token = _offered.set(made)
    try:
        yield made
    finally:
        _offered.reset(token)
