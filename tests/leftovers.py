"""What tests leave behind: temporary files and processes."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.processes import children_of, is_running, kill

_T = TypeVar("_T")
PATIENCE = 30.0
"""Seconds in which what is about to end may do so; where all is well, none of them passes."""


def files(folder: Path) -> list[str]:
    """Return the names of what stays in a temporary folder, and remove it."""
    left = _staying(lambda: sorted(folder.iterdir()))
    for path in left:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return [path.name for path in left]


def processes() -> list[str]:
    """Return the command lines of descendants of this process that go on, and kill them."""
    left = _staying(lambda: list(_running()))
    kill(number for number, _ in left)
    return [line for _, line in left]


def _running() -> Iterator[tuple[int, str]]:
    for number in filter(is_running, children_of(os.getpid())):
        line = _command_line(number)
        if "multiprocessing.resource_tracker" not in line:  # Python's own; it ends with this one
            yield number, line


def _staying(look: Callable[[], list[_T]]) -> list[_T]:
    end = time.monotonic() + PATIENCE
    while (left := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _command_line(process_id: int) -> str:
    try:
        words = Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return "gone by now"
    return b" ".join(words).decode(errors="replace").strip()[:300]
