"""A process that answers one line of JSON with another; its crash is an answer, too."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.judges.place import missing

_TOLD = 2000
"""Characters of a crashed process' last words that are told."""


class Crashed(Exception):
    """The process ended, or took too long, before it answered; the message has its last words."""


class Worker:
    """A command that is started when first asked, and anew when asked after a crash.

    It gets requests on its standard input and ends when that ends. It answers on the file
    descriptor that its last argument names: libraries may print to the others.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = tuple(command)
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._printed: IO[bytes] | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            Crashed: The process ended, or took longer than `seconds` and was killed.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(seconds))
        except (BrokenPipeError, EOFError):
            raise Crashed(self._told(f"the process ended with {process.wait()}")) from None
        except TimeoutError:
            raise Crashed(self._told(f"no answer within {seconds:g} s")) from None
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
        self._process = subprocess.Popen(
            [*self._command, str(theirs)],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            pass_fds=(theirs,),
        )
        os.close(theirs)
        return self._process

    def _line(self, seconds: float) -> bytes:
        """Return a line; TimeoutError or EOFError where none came."""
        until = time.monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._answers], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError
            read = os.read(self._answers, 1 << 16)
            if not read:
                raise EOFError
            line += read
        return line

    def _told(self, what: str) -> str:
        """Return what happened with the last words of the process, which ends."""
        assert self._printed is not None
        self._printed.seek(0)
        words = self._printed.read().decode(errors="replace").strip()[-_TOLD:]
        self.close()
        return f"{what}: {words}" if words else what


class Judge:
    """A judge in a folder of its own; it asks one process, which ends with its context."""

    def __init__(
        self,
        folder: Path,
        script: str,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """Name what runs; nothing is started.

        Args:
            folder: Where the judge is installed.
            script: The tool that installs it there.
            command: The process.
            environment: What the process needs besides this one's environment.
        """
        self._folder, self._script = folder, script
        self._worker = Worker(command, environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._worker.close()

    def missing(self) -> str | None:
        """Return why the judge cannot be asked; None where it can."""
        return missing(self._folder, self._script)
