"""Processes that tests start: waiting for them, and ending them whatever happened."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; the limit of the test is the only clock."""
    while not condition():
        time.sleep(0.01)


def is_running(process_id: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.split()[0] != "Z"


def children_of(process_id: int) -> list[int]:
    """Return the processes that descend from one, by /proc."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found = [process_id]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def end(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a process and all that descend from it; wait for them. They may be gone already."""
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP)  # it starts no more
    descendants = children_of(process.pid)
    kill(descendants)
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_running, descendants)))


def kill(processes: Iterable[int]) -> None:
    """Kill processes, by their numbers; some may be gone already."""
    for number in processes:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make descendants of this process whose parents end its children (Linux: `prctl(2)`)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
