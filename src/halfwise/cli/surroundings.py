"""A process' environment: failing streams, signals, working directory, open files."""

import errno
import io
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from halfwise.errors import UsageError
from halfwise.interruption import Interruption, offered

_FILES = 1024
"""Limit on open files to ask for: Linux's default."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_OURS = (None, errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTSOCK)
"""System errors that wrong calls cause, so perhaps bugs in halfwise."""
_SAME = 1.0
"""Seconds within which the same signal counts once: coreutils' `timeout` sends it to the process,
and at once to its group."""
_KEPT = (
    b"\ninterrupted: the search stops and keeps what it found so far; Ctrl-C again quits at once\n"
)
_ELSEWHERE = "Check it, or name another."


@dataclass
class Ended:
    """Whether a signal ends the run.

    Attributes:
        by: The signal; SIGINT (Ctrl-C) if no other came.
    """

    by: signal.Signals = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells report it."""
        return 128 + self.by


@contextmanager
def surroundings() -> Iterator[Ended]:
    """Prepare the process for a command; undo that afterwards.

    Raises:
        UsageError: the working directory is gone.
    """
    _open_closed_streams()
    _write_any_name()
    _allow_files()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr, whatever=True)
    try:
        with offered() as interruption, _interrupting(interruption) as ended:
            yield ended
    finally:
        sys.stdout, sys.stderr = before


def demand_folder() -> None:
    """Raise UsageError if the working directory is gone: every relative path would fail."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"The working directory cannot be used: {error.strerror}.", "Change to another one."
        ) from error


def usage_error(error: OSError) -> UsageError | None:
    """Return the message for a system error; None if it could be a bug in halfwise.

    Args:
        error: The error that reached the command line.
    """
    name = error.filename
    what = os.fsdecode(name) if isinstance(name, str | bytes) else None
    if error.errno in _FULL:
        where = f" for {what}" if what else ""
        return UsageError(f"There is no space left{where}.", "Free some, or write elsewhere.")
    if error.errno in _TOO_MANY:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return UsageError(
            f"Too many files are open: {limit} are allowed.", f"Allow more: ulimit -n {_FILES}."
        )
    if what is None:
        if error.errno in _OURS:
            return None
        # For example: no folder for temporary files, with the folders tried.
        return UsageError(
            f"The system reported: {error.strerror}.", "Check the environment of the command."
        )
    if error.errno in _FORBIDDEN:
        return UsageError(f"Permission is denied for {what}, or for a folder above it.", _ELSEWHERE)
    return UsageError(f"{what} cannot be used: {error.strerror}.", _ELSEWHERE)


class _Stream:
    """A standard stream; after a failure, it drops what is written.

    A closed reader (`| head`) does not end the command: the exit code is the verdict's.
    """

    def __init__(self, stream: TextIO, *, whatever: bool = False) -> None:
        """Wrap `stream`; errors other than a missing reader are raised unless `whatever`."""
        self._stream, self._whatever = stream, whatever

    def write(self, text: str) -> int:
        # Click writes an empty string to test for byte streams, and swallows errors.
        if not isinstance(text, str):
            raise TypeError("a text stream")
        if text:
            with self._failing():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Its buffer would fail again when Python exits.
            with suppress(OSError), Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            if not self._whatever and error.errno != errno.EPIPE:
                error.filename = "standard output"
                raise

    # All other attributes of a text stream.
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)


def _open_closed_streams() -> None:
    """Open /dev/null for each closed standard stream: the next file would become it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _write_any_name() -> None:
    """Let standard output and error replace characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _allow_files() -> None:
    """Raise a low limit on open files, if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _interrupting(interruption: Interruption) -> Iterator[Ended]:
    """Give the first terminating signal to `interruption` if it takes it; others raise.

    What is raised is KeyboardInterrupt, whatever the signal: it removes everything temporary.
    """
    ended = Ended()
    last = signal.SIGINT, 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not interruption.take():
            signal.default_int_handler(number, frame)
        ended.by = signal.SIGINT
        # Not through Python's streams: the main thread may be writing to them.
        with suppress(OSError):
            os.write(2, _KEPT)

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, (signal.Signals(number), time.monotonic())
        if before[0] == number and last[1] - before[1] < _SAME:
            return
        ended.by = last[0]
        interrupt(number, frame)

    # Other threads get no signals.
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    # Ignored signals, as under nohup, stay ignored.
    own = [s for s in _ENDING if signal.getsignal(s) == signal.SIG_DFL]
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    for number in own:
        signal.signal(number, end)
    # Shells start a script's background jobs with it ignored: Ctrl-C does not end them.
    if on_ctrl_c == signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield ended
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, on_ctrl_c)
