"""Runs the user's code, and contains whatever it raises, prints or closes."""

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
"""What reading a user's object may raise; KeyboardInterrupt may be Ctrl-C."""
_CORRECT = "Fix the function; call it in Python to try it."
_LONGEST = 300
"""Largest number of characters shown of a message."""
_gone_to: list[str] = []
"""The working directory that the user's code changed to; empty if it stayed."""


@contextlib.contextmanager
def guarded(spec: str, what: str = "", when: str = "", hint: str = _CORRECT) -> Iterator[None]:
    """Turn anything that the user's code raises into a CaseError with type, message and line.

    Its output goes to standard error, as standard output is for results. It may close the standard
    streams, or change the working directory, the umask or NumPy's treatment of infinities: all are
    restored afterwards, and it finds its working directory again on the next call.

    Args:
        spec: `file.py:function`; the line in the message is from that file.
        what: What raised, instead of `spec`.
        when: On what input, as words after the message; "" for none.
        hint: What to do.

    Raises:
        CaseError: It raised anything, even SystemExit; but not on Ctrl-C.
    """
    with _noted_interrupts() as interrupts:
        try:
            with _lent_streams(), _own_folder(), _own_mask(), np.errstate():
                yield
        # The code in here is the user's and may raise anything, including SystemExit.
        except BaseException as error:
            if interrupts and isinstance(error, KeyboardInterrupt):
                raise
            raise CaseError(
                f"{what or spec} raised {described(error)}{when} ({_place(error, spec)}).",
                hint,
            ) from error


def described(error: BaseException) -> str:
    """Return an error's type and the first line of its message; its `__str__` may fail too."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:  # noqa: BLE001 - the user's, too
        lines = ["its message cannot be read"]
    name = type(error).__name__[:_LONGEST]
    return f"{name}: {lines[0][:_LONGEST]}" if lines else name


def _place(error: BaseException, spec: str) -> str:
    """Return the last line of the user's own file that led to the error."""
    path = Path(spec.rpartition(":")[0])
    if isinstance(error, SyntaxError) and isinstance(error.filename, str) and error.lineno:
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    # By name only: the code may have changed the working directory.
    lines = [line for f, line in frames if Path(f.f_code.co_filename).name == path.name]
    return f"{path.name}, line {lines[-1]}" if lines else path.name


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Collect SIGINTs meanwhile: a function may raise KeyboardInterrupt itself."""
    noted: list[int] = []
    # A handler that is no function ignores them, and other threads get none.
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
    """Give the user's code its own working directory, as halfwise's paths may be relative."""
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
    """Give the user's code its own umask."""
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
    """Replace the standard streams, sending both outputs to standard error.

    File descriptors are replaced too: libraries write past Python, and streams may be closed below
    it. If the streams belong to a notebook or a test, only Python's standard output is replaced.
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
    """Return copies of descriptors 1 and 2; None if one is closed or no more can be opened."""
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
