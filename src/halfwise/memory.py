"""How much memory there is, and a ceiling for what this process takes.

Without a ceiling the system ends the process, or another one, when a file declares more than there
is. With it an allocation fails, and is told with what it asked for.
"""

import resource
from pathlib import Path

from halfwise.errors import CaseError
from halfwise.wording import size_of

_ASIDE = 1 << 28
"""What is left for the system and for others."""

_CGROUPS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files of versions 2 and 1 (kernel.org, cgroup-v2.rst and cgroup-v1/memory.rst)."""


def available() -> int | None:
    """Return how many bytes can still be taken without swapping; None if unknown.

    The least of what the system has (`MemAvailable`) and what the cgroup leaves, its page cache
    counted as free.
    """
    left = [_field(Path("/proc/meminfo"), "MemAvailable:"), *map(_cgroup_left, _cgroup_folders())]
    known = [amount for amount in left if amount is not None]
    return min(known) if known else None


def refuse_beyond(nbytes: int, what: str, hint: str) -> None:
    """Raise a CaseError where `nbytes` do not fit into the memory that is available.

    Args:
        nbytes: What `what` takes once it is read.
        what: Begins the sentence.
        hint: What to do about it.
    """
    free = available()
    if free is not None and nbytes > free:
        raise CaseError(
            f"{what} needs {size_of(nbytes)} of memory, but only {size_of(free)} are available.",
            hint,
        )


def peak() -> int:
    """Return the most bytes that this process had; what getrusage tells includes the parent's."""
    own = _field(Path("/proc/self/status"), "VmHWM:")
    return own or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cap() -> None:
    """Let allocations fail from here on that the memory available now does not hold.

    It limits what is private and writable (`RLIMIT_DATA`, Linux 4.7 and later): files mapped for
    reading do not count. A limit that is lower already stays.
    """
    free, taken = available(), _field(Path("/proc/self/status"), "VmData:")
    if free is None or taken is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = taken + max(free - _ASIDE, _ASIDE)
    known = [limit for limit in (soft, hard, ceiling) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(known), hard))


def uncap(pid: int = 0) -> None:
    """Take the ceiling away again, from another process too: GPU drivers reserve what they like."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (hard, hard))
    except (OSError, ValueError):  # it has ended already, or is somebody else's
        return


def _field(path: Path, name: str) -> int | None:
    """Return the bytes of a line such as `MemAvailable:  123 kB`."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _cgroup_folders() -> list[Path]:
    """Return the folders of this process's cgroup and of those around it."""
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
        own = root / controllers / place.lstrip("/")
        folders += [f for f in (own, *own.parents) if f.is_relative_to(root)]
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
