"""Temporary folders marked as in use by a lock, so the next run removes those of killed runs."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_LOCK = "lock"
_LOCKING = find_spec("fcntl") is not None
"""Whether the system locks files so; Windows does not."""
_DAYS = 14
"""Longer than any run takes. Our choice."""
_looked_at: set[Path] = set()


@contextmanager
def scratch(place: Path | None = None, prefix: str = "halfwise.") -> Iterator[Path]:
    """Yield an empty temporary folder that is removed when the block ends.

    If the process is killed, say by SIGKILL, the folder remains but its lock is released, in any
    container, and the first block of another run in `place` removes it. Folders that are locked,
    have no lock (on Windows, none has), are links or belong to another user stay. Those of another
    machine stay for `_DAYS`, as not all shared file systems share locks between machines (mount(8):
    nfs `nolock`, lustre `localflock`); after a restart, a machine counts as another.

    Args:
        place: Where it is created; by default the system's folder for temporary files.
        prefix: Beginning of its name.

    Raises:
        OSError: it cannot be created.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    if _LOCKING and place not in _looked_at:
        _looked_at.add(place)
        _remove_abandoned(place, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    lock = -1
    try:
        lock = _locked(folder)
        content = folder / "content"
        content.mkdir()
        yield content
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock != -1:
            os.close(lock)


def _locked(folder: Path) -> int:
    """Return a locked file in `folder`, open; -1 if the system has no locks, or its files."""
    if not _LOCKING:
        return -1
    import fcntl  # noqa: PLC0415

    unnamed = folder / f".{_LOCK}"
    file = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, _machine())
        # Only now do others try it: before, they could have taken the lock first.
        unnamed.rename(folder / _LOCK)
    except OSError:
        os.close(file)
        return -1
    return file


def _remove_abandoned(place: Path, prefix: str) -> None:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        _remove_unlocked(Path(entry.path))


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder whose lock is free, if it is from this machine or old.

    Raises:
        OSError: its lock is held or missing.
    """
    import fcntl  # noqa: PLC0415

    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        days = (time.time() - os.fstat(lock).st_mtime) / 86_400
        if os.read(lock, 64) == _machine() or days > _DAYS:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


@cache
def _machine() -> bytes:
    """Return an identifier shared by all containers on a machine until it restarts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
