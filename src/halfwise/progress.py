"""Progress reports of a run."""

from typing import Protocol


class Watcher(Protocol):
    """Receives the progress of a run. Everything that a user sees while waiting goes through it."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        """Report that `done` steps of the stage, or of its part `of`, are over.

        `most`: it may end before all `total` are.
        """

    def left(self, seconds: float) -> None:
        """Report the longest time that a stage with a budget may take; inf if unknown."""

    def expect(self, seconds: float, of: str) -> None:
        """Report how long part `of` of the stage, which begins now, will probably take.

        With `of` "", the whole stage, estimated from other work. 0 seconds: it is over, or nothing
        is known about it.
        """

    def note(self, line: str) -> None:
        """Report a message worth reading."""


class Silent:
    """A watcher that reports nothing."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Do nothing."""

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        """Do nothing."""

    def left(self, seconds: float) -> None:
        """Do nothing."""

    def expect(self, seconds: float, of: str) -> None:
        """Do nothing."""

    def note(self, line: str) -> None:
        """Do nothing."""
