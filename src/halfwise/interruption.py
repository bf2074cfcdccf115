"""Ctrl-C that ends what a run can do without, and keeps what it has found.

Only the command line offers it: who calls the library gets the KeyboardInterrupt of Python.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Interruption:
    """Whether the user wants what there is so far.

    Attributes:
        ready: Whether there is something to keep: a plan that passes, or one that serves.
        asked: Whether the user asked for it.
        left: The last engine that was proven and put down, by the folder that it is in: what a run
            that ends at once leaves behind.
        then: Called when the user asks, by the handler of a signal: they end what takes long.
    """

    ready: bool = False
    asked: bool = False
    left: dict[Path, Path] = field(default_factory=dict)
    then: list[Callable[[], None]] = field(default_factory=list)

    def take(self) -> bool:
        """Ask for what there is; return False if there is nothing, or nobody asks twice."""
        if not self.ready or self.asked:
            return False
        self.asked = True
        for end in tuple(self.then):
            end()
        return True

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` where the user asks while the block runs."""
        self.then.append(end)
        try:
            yield
        finally:
            self.then.remove(end)


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
