"""A program that answers requests with frames, as TensorRT workers do; it may crash."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from halfwise.emulation.budget import demand_time
from halfwise.tensorrt.transport import Connection, Lost

_WORDS = 2000
"""Characters of a crashed process' last words that a message has."""


class Crashed(Exception):
    """The process ended, or took too long, before it answered; the message has its last words."""


class Worker:
    """A command that is started when first asked, and anew when asked after a crash.

    It gets requests on its standard input and ends when that ends; frames on its standard output
    answer them. The empty request is for its `version`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Name the command; nothing is started."""
        self._command = tuple(command)
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        """Return this; its process ends with the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    @cached_property
    def version(self) -> str:
        """The version of what it runs, such as "1.7.1.116".

        Raises:
            Crashed: it does not start, or says why it has none.
        """
        answer = self.ask({}, 60)
        if "error" in answer:
            raise Crashed(answer["error"].splitlines()[0])
        return str(answer["version"])

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            Crashed: The process did not start, ended, or took longer than `seconds` and was killed.
            OutOfTime: The time budget ended first; the process was killed.
        """
        try:
            if self._connection is None:
                self._connection = Connection(self._command)
            asked = self._connection.ask(request, limit=seconds, admit=_admit, ends=_ends)
            return dict(asked[0])
        except OSError as error:
            raise Crashed(str(error)) from error
        except Lost as lost:
            self.close()
            words = "\n".join(lost.printed)[-_WORDS:]
            raise Crashed(f"{lost.reason}: {words}" if words else lost.reason) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, if it runs; a later request starts another."""
        if self._connection is not None:
            self._connection.close(patience=0.0)
            self._connection = None


def _admit(*_: object) -> None:
    """Take all frames: these programs are here, and our own."""


def _ends() -> bool:
    demand_time()
    return False
