"""A process that answers one line of JSON with another; its crash is an answer, too."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from types import TracebackType
from typing import IO, Any, Self

from halfwise.emulation.budget import OutOfTime, apart, call
from halfwise.errors import RunFailed

_WORDS = 2000
"""Characters of a crashed process' last words that a message has."""


class Crashed(Exception):
    """The process ended, or took too long, before it answered; the message has its last words."""


class Worker:
    """A command that is started when first asked, and anew when asked after a crash.

    It gets requests on its standard input and ends when that ends. It answers on the file
    descriptor that its last argument names: libraries may print to the others. The empty request
    is for its `version`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Name the command; nothing is started."""
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: IO[bytes] | None = None
        self._printed: IO[bytes] | None = None

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
        process = self._process or self._start()
        try:
            with apart(seconds):
                exchange = partial(self._exchange, process, request)
                line = call(exchange, partial(_kill, process), "An answer")
        except RunFailed:
            raise Crashed(self._ended(f"no answer within {seconds:g} s")) from None
        except OutOfTime:
            self.close()
            raise
        if not line.endswith(b"\n"):
            raise Crashed(self._ended(f"the process ended with {process.wait()}"))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _exchange(self, process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> bytes:
        """Return the line that answers a request; less of it from a process that ends."""
        assert process.stdin is not None
        assert self._answers is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        return self._answers.readline()

    def close(self) -> None:
        """End the process, if it runs; a later request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert self._answers is not None
        assert self._printed is not None
        _kill(process)
        process.wait()
        with suppress(BrokenPipeError):
            # It flushes.
            process.stdin.close()
        self._answers.close()
        self._printed.close()

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = os.pipe()
        self._answers = os.fdopen(ours, "rb")
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(
                [*self._command, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=(theirs,),
                # Its own session: Ctrl-C is for who asks, and does not end what is asked.
                start_new_session=True,
            )
        except OSError as error:
            self._answers.close()
            self._printed.close()
            raise Crashed(str(error)) from error
        finally:
            os.close(theirs)
        return self._process

    def _ended(self, what: str) -> str:
        """Return what happened with the last words of the process, which ends."""
        assert self._printed is not None
        self._printed.seek(0)
        words = self._printed.read().decode(errors="replace").strip()[-_WORDS:]
        self.close()
        return f"{what}: {words}" if words else what


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and all in its session: they hold its pipes, too."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
