"""Ctrl-C while modules are imported: it waits until the import is over.

An exception in the middle of an import may be swallowed there, or leave a library half initialised:
NumPy and ONNX Runtime have crashed.
"""

import builtins
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def after_imports(interrupt: Handler, again: Callable[[], None]) -> Iterator[Handler]:
    """Yield a handler of SIGINT that calls `interrupt`, but not during an import statement.

    A file of the user that halfwise executes is not an import. Only for the main thread.

    Args:
        interrupt: Handles the signal.
        again: Called for another signal during the import.
    """
    depth, waits = 0, False
    before, main = builtins.__import__, threading.get_ident()

    def imported(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - as Python's own
        nonlocal depth, waits
        if threading.get_ident() != main:
            return before(*args, **named)
        depth += 1
        try:
            return before(*args, **named)
        finally:
            depth -= 1
            if waits and not depth:
                waits = False
                # Not `press` itself: around the user's code, Ctrl-C has a handler of its own.
                signal.raise_signal(signal.SIGINT)

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal waits
        if not depth:
            interrupt(number, frame)
        elif waits:
            again()
        else:
            waits = True

    builtins.__import__ = imported
    try:
        yield press
    finally:
        builtins.__import__ = before
