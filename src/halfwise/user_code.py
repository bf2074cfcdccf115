"""Runs the user's code, and contains whatever it raises or prints."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from halfwise.errors import CaseError
from halfwise.wording import excerpt

RAISED = (Exception, SystemExit, GeneratorExit)
"""What reading a user's object may raise; KeyboardInterrupt may be Ctrl-C."""
_CORRECT = "Fix the function; call it in Python to try it."


@contextlib.contextmanager
def guarded(spec: str, what: str = "", when: str = "", hint: str = _CORRECT) -> Iterator[None]:
    """Turn anything that the user's code raises into a CaseError with type, message and line.

    Its output goes to standard error, as standard output is for results. NumPy's treatment of
    infinities is restored.

    Args:
        spec: `file.py:function`; the line in the message is from that file.
        what: What raised, instead of `spec`.
        when: On what input, as words after the message; "" for none.
        hint: What to do.

    Raises:
        CaseError: It raised anything but KeyboardInterrupt, even SystemExit.
    """
    try:
        with diverted(), np.errstate():
            yield
    except KeyboardInterrupt:
        raise
    # The code in here is the user's and may raise anything, including SystemExit.
    except BaseException as error:
        raise CaseError(
            f"{what or spec} raised {described(error)}{when} ({_place(error, spec)}).", hint
        ) from error


def described(error: BaseException) -> str:
    """Return an error's type and the first line of its message; its `__str__` may fail too."""
    try:
        lines = str(error).strip().splitlines()
    except BaseException:  # noqa: BLE001 - the user's, too
        lines = ["its message cannot be read"]
    name = excerpt(type(error).__name__)
    return f"{name}: {excerpt(lines[0])}" if lines else name


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
def diverted(target: int = 2) -> Iterator[None]:
    """Send standard output to a file descriptor, below Python too: libraries write past it.

    What Python prints goes to standard error.
    """
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as restoring:
        with contextlib.suppress(OSError):
            kept = os.dup(1)
            restoring.callback(os.close, kept)
            restoring.callback(os.dup2, kept, 1)
            os.dup2(target, 1)
        yield
