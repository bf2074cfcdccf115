"""Reads files that users name: regular files only, and of limited size.

A named pipe would block, and a device never ends. Code that opens a file itself uses this module;
code that passes a path to a library calls `is_regular` first.
"""

# ruff: noqa: PTH113 (os.path answers for any path, where Path may raise)

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

BLOCK = 1 << 20
"""Bytes read or written at a time; no result depends on it."""
HEAD_BYTES = 100
"""First bytes of a file by which `mistaken` knows it."""
TEXT_BYTES = 1 << 28
"""The largest text that is read whole: records, labels, settings. They are a few megabytes at most.
"""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}

_MISTAKEN = (
    (b"version https://git-lfs", "a pointer of Git LFS", "Fetch the file itself: git lfs pull."),
    (b"<!doctype html", "a web page", "Download the file itself."),
    (b"<html", "a web page", "Download the file itself."),
    (
        b"pk\3\4",
        "a zip archive, as PyTorch and NumPy write",
        "Export a PyTorch model with torch.onnx.export.",
    ),
)
"""First bytes, after white space and in small letters, of files that are taken for others, what
such a file is, and what to do."""


def kind_of(mode: int) -> str:
    """Return what a file other than a regular one is, by its mode, such as `a named pipe`."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def is_regular(path: Path) -> bool:
    """Return whether there is a regular file at `path`, following symbolic links.

    Any path is accepted, even one that is too long or contains NUL.
    """
    return os.path.isfile(path)


def no_file(path: str | Path, kinds: str = "file") -> str:
    """Return the sentence for a path where there is no regular file, or none of `kinds`."""
    try:
        mode = Path(path).stat().st_mode
    except PermissionError as error:
        return f"{path} cannot be read: {error.strerror}."
    except (OSError, ValueError):
        return f"There is no {kinds} {path}."
    return f"{path} is {kind_of(mode)}, not a file."


def mistaken(head: bytes) -> tuple[str, str] | None:
    """Return what a file with these first bytes is, and what to do; None if nothing known."""
    start = head.lstrip().lower()
    return next(
        ((what, hint) for start_of, what, hint in _MISTAKEN if start.startswith(start_of)), None
    )


def unreadable(path: Path, error: OSError, kinds: str = "file") -> str:
    """Return the sentence for a file, one of `kinds`, that `error` kept from being read."""
    return f"{path} cannot be read: {error.strerror}." if is_regular(path) else no_file(path, kinds)


# Each system has some of them.
_FLAGS = sum(getattr(os, f"O_{name}", 0) for name in ("BINARY", "CLOEXEC", "NONBLOCK", "NOCTTY"))


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says which.
    """
    try:
        # Without O_NONBLOCK, a pipe that nobody writes to would block.
        descriptor = os.open(path, _FLAGS)
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name contains NUL", str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"it is {kind_of(mode)}, not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_text(path: Path, *, encoding: str = "utf-8", at_most: int = TEXT_BYTES) -> str:
    """Return the text of a regular file of at most `at_most` bytes.

    Raises:
        OSError: as for `open_regular`, or it is larger.
        UnicodeDecodeError: it is not text of that encoding.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > at_most:
            why = f"it has {size:,} bytes; at most {at_most:,} are read"
            raise OSError(errno.EFBIG, why, str(path))
        return stream.read(at_most).decode(encoding)
