"""Available memory, and limits on what this process allocates and opens.

Without a limit, the system kills this process or another when a file declares more than there is.
With it, an allocation fails, and the error says what was requested. Only Linux tells and limits
memory; elsewhere nothing is limited.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from halfwise.errors import CaseError
from halfwise.wording import size_of

_ASIDE = 1 << 28
"""Memory left for the system and other processes."""
SMALL = 1 << 20
"""What always fits: to ask what is left takes longer than to read a file of that size."""

FILES = 1024
"""Open files that are allowed at least: Linux's default."""

OBJECTS_PER_COLLECTION = 1_000_000
"""Objects allocated between two garbage collections, instead of 700.

Graphs of thousands of nodes are millions of long-lived objects. At 1,500 nodes collection took half
of the time outside ONNX Runtime; now small models have none, for 40 MiB.
"""
COLLECTIONS = (2, 50)
"""Young collections before a middle one, and middle ones before a full one, instead of 10 and 10:
at 5,000 nodes a fifth of that time, and 5 % more memory.
"""

_CGROUPS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files of versions 2 and 1 (kernel.org, cgroup-v2.rst and cgroup-v1/memory.rst)."""


def available() -> int | None:
    """Return how many bytes can still be allocated without swapping; None if unknown.

    The smaller of what the system has (`MemAvailable`) and what the cgroup leaves, with its page
    cache counted as free.
    """
    amounts = [
        _field(Path("/proc/meminfo"), "MemAvailable:"),
        *map(_cgroup_left, _cgroup_folders()),
    ]
    limits = [amount for amount in amounts if amount is not None]
    return min(limits) if limits else None


def refuse_beyond(nbytes: int, what: str, hint: str) -> None:
    """Raise a CaseError if `nbytes` do not fit into the available memory.

    Args:
        nbytes: Size of `what` once it is read; `SMALL` or less is not refused.
        what: Subject of the message.
        hint: What to do.
    """
    free = available() if nbytes > SMALL else None
    if free is not None and nbytes > free:
        raise CaseError(
            f"{what} needs {size_of(nbytes)} of memory, but only {size_of(free)} are available.",
            hint,
        )


def collect_seldom() -> None:
    """Search for garbage less often from now on, as objects are many and stay."""
    gc.set_threshold(OBJECTS_PER_COLLECTION, *COLLECTIONS)


@contextmanager
def few_collections() -> Iterator[None]:
    """Search for garbage less often within the block.

    So it is for a command, and for the imports that it needs.
    """
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def count_as_old() -> None:
    """Count all objects as old ones, as modules stay: young collections pass them over.

    The first one would search them all, 20 ms after halfwise's own imports.
    """
    if not gc.get_freeze_count():  # what a program froze stays so
        gc.freeze()
        gc.unfreeze()


def peak() -> int | None:
    """Return this process's peak memory in bytes; None if unknown.

    On Linux getrusage would include the parent's.
    """
    if high := _field(Path("/proc/self/status"), "VmHWM:"):
        return high
    with suppress(ModuleNotFoundError):
        import resource  # noqa: PLC0415 - Windows has none

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None


def allow_files() -> None:
    """Raise a limit of fewer open files than `FILES`, where that is allowed."""
    with suppress(ModuleNotFoundError, OSError, ValueError):
        import resource  # noqa: PLC0415 - Windows has none

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cap() -> None:
    """Make allocations fail from now on that exceed the memory available now.

    The limit covers private writable memory (`RLIMIT_DATA`, Linux 4.7 and later), not files mapped
    for reading. A lower existing limit stays.
    """
    free, taken = available(), _field(Path("/proc/self/status"), "VmData:")
    if free is None or taken is None:
        return
    import resource  # noqa: PLC0415 - Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = taken + max(free - _ASIDE, _ASIDE)
    limits = [limit for limit in (soft, hard, ceiling) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def uncap(pid: int = 0) -> None:
    """Remove the limit, in another process too: GPU drivers reserve large ranges."""
    if _field(Path("/proc/self/status"), "VmData:") is None:  # `cap` has set none
        return
    import resource  # noqa: PLC0415 - Windows has none

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # it has ended, or belongs to another user
        resource.prlimit(pid, resource.RLIMIT_DATA, (hard, hard))


def _field(path: Path, name: str) -> int | None:
    """Return the bytes from a line such as `MemAvailable:  123 kB`."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _cgroup_folders() -> list[Path]:
    """Return the folders of this process's cgroup and of its parents."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    folders = []
    for line in lines:
        _, controllers, place = (*line.split(":", 2), "", "")[:3]
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        folder = root / controllers / place.lstrip("/")
        folders += [f for f in (folder, *folder.parents) if f.is_relative_to(root)]
    return list(dict.fromkeys(folders))


def _cgroup_left(folder: Path) -> int | None:
    for limit, used in _CGROUPS:
        try:
            most = int((folder / limit).read_text(encoding="ascii"))
            taken = int((folder / used).read_text(encoding="ascii"))
            stat = (folder / "memory.stat").read_text(encoding="ascii").split()
        except (OSError, ValueError):  # no such file, or "max"
            continue
        cache = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
        return max(0, most - taken + cache)
    return None
