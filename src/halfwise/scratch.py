"""Temporary folders that are told alive by a lock, so that the next run removes a killed one's."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_LOCK = "lock"
_DAYS = 14
"""More than a run takes. Our choice."""
_looked_at: set[Path] = set()


@contextmanager
def scratch(place: Path | None = None, prefix: str = "halfwise.") -> Iterator[Path]:
    """Give an empty folder, in a temporary one that goes with the block, however that ends.

    What ends the process at once, such as SIGKILL, leaves it; the lock in it is gone with the
    process, in whatever container that ran, and the first block of another run in `place` removes
    it. One that is locked, has no lock, is a link or another user's is left alone. So is one of
    another machine for `_DAYS`, since not all shared file systems tell machines of each other's
    locks (mount(8): nfs `nolock`, lustre `localflock`); after a restart, a machine is another.

    Args:
        place: Where it is made; the system's folder for temporary files by default.
        prefix: How its name begins.

    Raises:
        OSError: it cannot be made.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    if place not in _looked_at:
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
    """Return a locked file in `folder`, open; -1 if the file system has no locks."""
    unnamed = folder / f".{_LOCK}"
    file = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, _machine())
        # Only now is it one that others try: before, they could have had the lock first.
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
    """Remove a folder whose lock nobody holds, of this machine or old.

    Raises:
        OSError: somebody does, or it has none.
    """
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
    """Return what is the same for all containers on a machine until it restarts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""
