"""How a run tells what it is doing."""

from typing import Protocol


class Watcher(Protocol):
    """Is told how far a run is. Everything that a user sees while waiting comes through here."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""

    def step(self, done: int, total: int | None = None) -> None:
        """Report progress within the stage."""

    def left(self, seconds: float) -> None:
        """Report how long a stage may go on that a budget ends, at most; inf if unknown."""

    def note(self, line: str) -> None:
        """Tell something worth reading."""


class Silent:
    """A watcher that tells nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Do nothing."""

    def step(self, done: int, total: int | None = None) -> None:
        """Do nothing."""

    def left(self, seconds: float) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Do nothing."""
