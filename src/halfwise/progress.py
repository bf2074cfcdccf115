"""Progress reports of a run."""

from typing import Protocol


class Watcher(Protocol):
    """Receives the progress of a run. Everything that a user sees while waiting goes through it."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""

    def step(self, done: int, total: int | None = None) -> None:
        """Report progress within the stage."""

    def left(self, seconds: float) -> None:
        """Report the longest time that a stage with a budget may take; inf if unknown."""

    def note(self, line: str) -> None:
        """Report a message worth reading."""


class Silent:
    """A watcher that reports nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Do nothing."""

    def step(self, done: int, total: int | None = None) -> None:
        """Do nothing."""

    def left(self, seconds: float) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Do nothing."""
