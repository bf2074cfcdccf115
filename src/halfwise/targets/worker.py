"""A process that answers one line of JSON with another; its crash is an answer, too."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import IO, Any, Self

from halfwise.emulation.budget import OutOfTime, demand_time

_LOOK = 0.5
"""Seconds between two checks whether an answer is still waited for."""
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
        self._answers = -1
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
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(seconds))
        except (BrokenPipeError, EOFError):
            raise Crashed(self._ended(f"the process ended with {process.wait()}")) from None
        except TimeoutError:
            raise Crashed(self._ended(f"no answer within {seconds:g} s")) from None
        except OutOfTime:
            self.close()
            raise
        return answer

    def close(self) -> None:
        """End the process, if it runs; a later request starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert self._printed is not None
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):
            # It flushes.
            process.stdin.close()
        os.close(self._answers)
        self._printed.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._answers, theirs = os.pipe()
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
            os.close(self._answers)
            self._printed.close()
            raise Crashed(str(error)) from error
        finally:
            os.close(theirs)
        return self._process

    def _line(self, seconds: float) -> bytes:
        """Return a line; TimeoutError or EOFError where none came."""
        until = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            demand_time()
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if not select.select([self._answers], [], [], min(left, _LOOK))[0]:
                continue
            read = os.read(self._answers, 1 << 16)
            if not read:
                raise EOFError
            line += read
        return line

    def _ended(self, what: str) -> str:
        """Return what happened with the last words of the process, which ends."""
        assert self._printed is not None
        self._printed.seek(0)
        words = self._printed.read().decode(errors="replace").strip()[-_WORDS:]
        self.close()
        return f"{what}: {words}" if words else what
