"""Runs code of the user's, so that whatever it raises, prints or closes stays its own."""

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO

import numpy as np

from halfwise.errors import CaseError

RAISED = (Exception, SystemExit, GeneratorExit)
"""What an object of the user's may raise when it is read; KeyboardInterrupt may be Ctrl-C."""
_CORRECT = "Fix the function; call it in Python to try it."
_LONGEST = 300
"""Characters of a message that are shown."""
_gone_to: list[str] = []
"""The working directory that the user's code has changed to; none if it stayed."""


@contextlib.contextmanager
def guarded(spec: str, what: str = "", when: str = "", hint: str = _CORRECT) -> Iterator[None]:
    """Turn whatever the user's code raises into a CaseError that names type, message and line.

    What it prints goes to standard error, since standard output is for results. It may close the
    standard streams, change the working directory, the umask, or how NumPy takes infinities:
    afterwards all is as before, and where it went it finds itself again the next time.

    Args:
        spec: `file.py:function`; the line that is named is one of that file.
        what: What raised, in place of `spec`.
        when: On what it did, "" or words that follow the message.
        hint: What to do about it.

    Raises:
        CaseError: It raised anything, also what ends a script; not where Ctrl-C was pressed.
    """
    with _noted_interrupts() as interrupts:
        try:
            with _lent_streams(), _own_folder(), _own_mask(), np.errstate():
                yield
        # The code in here is the user's and may raise anything, a script's sys.exit() included.
        except BaseException as error:
            if interrupts and isinstance(error, KeyboardInterrupt):
                raise
            raise CaseError(
                f"{what or spec} raised {described(error)}{when} ({_place(error, spec)}).",
                hint,
            ) from error


def described(error: BaseException) -> str:
    """Return type and first line of the message of an error; its own `__str__` may fail."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:  # noqa: BLE001 - the user's, too
        lines = ["its message cannot be read"]
    name = type(error).__name__[:_LONGEST]
    return f"{name}: {lines[0][:_LONGEST]}" if lines else name


def _place(error: BaseException, spec: str) -> str:
    """Name the last line of the user's own file that led to the error."""
    path = Path(spec.rpartition(":")[0])
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and error.lineno:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    # By name alone: the code may have changed the working directory.
    lines = [line for f, line in frames if Path(f.f_code.co_filename).name == path.name]
    return f"{path.name}, line {lines[-1]}" if lines else path.name


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Collect the SIGINTs that come meanwhile: a function may raise KeyboardInterrupt by itself."""
    noted: list[int] = []
    # What is no function ignores them, and other threads get none.
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield noted
        return

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _own_folder() -> Iterator[None]:
    """Give the user's code a working directory of its own: paths of halfwise's may be relative."""
    ours = _folder()
    if _gone_to and ours is not None:
        with contextlib.suppress(OSError):
            os.chdir(_gone_to[-1])
    try:
        yield
    finally:
        there = _folder()
        _gone_to[:] = [there] if there and there != ours else []
        if ours is not None and there != ours:
            os.chdir(ours)


@contextlib.contextmanager
def _own_mask() -> Iterator[None]:
    """Let the user's code change the modes of its own files alone."""
    # It cannot be read without setting it.
    ours = os.umask(0o077)
    os.umask(ours)
    try:
        yield
    finally:
        os.umask(ours)


def _folder() -> str | None:
    """Return the working directory, None if it is gone."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


@contextlib.contextmanager
def _lent_streams() -> Iterator[None]:
    """Give other streams in place of the standard ones, both on standard error.

    The descriptors are exchanged too: libraries print past Python, and streams may be closed below.
    Where the streams are a notebook's or a test's, only Python's standard output is exchanged.
    """
    kept = _kept() if (_number(sys.stdout), _number(sys.stderr)) == (1, 2) else None
    if kept is None:
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    os.dup2(2, 1)
    ours = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    out, err = (
        open(  # noqa: SIM115 - logging of the user's may hold it longer
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        for _ in range(2)
    )
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = err  # type: ignore[misc]
    try:
        yield
    finally:
        for lent in (out, err):
            with contextlib.suppress(OSError, ValueError):
                lent.flush()
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = ours  # type: ignore[misc]
        for descriptor, copy in enumerate(kept, start=1):
            os.dup2(copy, descriptor)
            os.close(copy)


def _kept() -> tuple[int, int] | None:
    """Return copies of the descriptors 1 and 2, None if one is closed or no more may be open."""
    try:
        out = os.dup(1)
    except OSError:
        return None
    try:
        return out, os.dup(2)
    except OSError:
        os.close(out)
        return None


def _number(stream: TextIO | None) -> int | None:
    """Return the descriptor of a stream, None if it has none."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
