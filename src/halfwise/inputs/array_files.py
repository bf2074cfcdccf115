"""Arrays and labels from files."""

import json
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.files import (
    HEAD_BYTES,
    is_regular,
    mistaken,
    no_file,
    open_regular,
    read_text,
    unreadable,
)
from halfwise.memory import refuse_beyond

ARRAY_SUFFIXES = (".npz", ".npy")

_STARTS = (b"PK", np.lib.format.MAGIC_PREFIX)
_AGAIN = "Save it again with np.save(path, array) or np.savez(path, name=array, …)."
_LARGE = (
    "Save large arrays with np.save, one .npy file per input: these are read in parts. If the "
    "array is small, the file is damaged."
)

BROKEN = (
    ValueError,
    EOFError,
    OSError,
    MemoryError,
    RuntimeError,
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    KeyError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
)
"""What NumPy and zipfile raise for files that are truncated, damaged, encrypted, or misstate sizes.

The last four come from headers that NumPy parses as Python literals.
"""


def read_npy(path: Path) -> NDArray[Any]:
    """Map a `.npy` file into memory, read-only.

    Returns:
        The array; its pages are read when used.

    Raises:
        CaseError: The file is broken, not a `.npy` file, or holds Python objects.
    """
    try:
        with open_regular(path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except BROKEN as error:
        raise _unreadable(path.name, path, error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise CaseError(
            f"{path.name} holds a .npz archive; expected a single array.",
            "Give the file the suffix .npz.",
        )
    return array


def read_npz(path: Path, wanted: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read all arrays of a `.npz` file into memory, or only those wanted.

    Raises:
        CaseError: The file is broken, not a `.npz` file, holds anything but plain arrays, or does
            not fit into memory.
    """
    with _archive(path) as archive:
        chosen = [n for n in archive.files if wanted is None or n in wanted]
        refuse_too_large(archive, path.name, chosen)
        return {name: _read_member(archive, name, path) for name in chosen}


def peek_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return zeros with the shapes and types of a `.npz` file's arrays.

    They take no memory, whatever their shape, so data that does not fit the model is refused before
    it is read.

    Raises:
        CaseError: As for `read_npz`.
    """
    with _archive(path) as archive:
        return {name: _stand_in(archive, name, path) for name in archive.files}


@contextmanager
def _archive(path: Path) -> Iterator[NpzFile]:
    try:
        # Opened here, because NumPy leaves a broken archive open.
        with open_regular(path) as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                yield archive
                return
    except BROKEN as error:
        raise _unreadable(path.name, path, error) from error
    raise CaseError(
        f"{path.name} holds a single array; expected a .npz archive.",
        "Give the file the suffix .npy.",
    )


def _stand_in(archive: NpzFile, name: str, path: Path) -> NDArray[Any]:
    where = f"{path.name}, array '{name}'"
    assert archive.zip is not None
    entry = name if name in archive.zip.namelist() else f"{name}.npy"
    try:
        with archive.zip.open(entry) as member:
            shape, dtype = _header(member)
            return np.broadcast_to(np.zeros((), dtype), shape)
    except BROKEN as error:
        raise _unreadable(where, path, error) from error


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return an array's shape and type."""
    read = np.lib.format.read_array_header_2_0
    if np.lib.format.read_magic(member) == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, _, dtype = read(member)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    return shape, dtype


def refuse_too_large(archive: NpzFile, where: str, names: Collection[str]) -> None:
    """Raise a CaseError if the named arrays, unpacked, do not fit into memory.

    An archive may be a thousand times smaller than its content. No member unpacks to more than its
    entry states.
    """
    members = archive.zip.infolist() if archive.zip else []
    unpacked = sum(m.file_size for m in members if m.filename.removesuffix(".npy") in names)
    refuse_beyond(unpacked, f"{where}, unpacked,", _LARGE)


def _read_member(archive: NpzFile, name: str, path: Path) -> NDArray[Any]:
    where = f"{path.name}, array '{name}'"
    try:
        array = archive[name]
    except BROKEN as error:
        raise _unreadable(where, path, error) from error
    if not isinstance(array, np.ndarray):
        raise CaseError(
            f"{where} is not a NumPy array; the archive may hold arrays only.",
            "Save it with np.savez(path, name=array, …).",
        )
    return array


def _unreadable(where: str, path: Path, error: Exception) -> CaseError:
    if isinstance(error, MemoryError):
        return CaseError(
            f"{where} does not fit into memory ({error}).",
            _LARGE,
        )
    # NumPy has no error class for these two; tests pin the wording.
    if "Object arrays" in str(error) or "Python objects" in str(error):
        return CaseError(
            f"{where} is an object array (pickle), which could run code from the file; expected "
            "numbers.",
            "Stack the samples into one numeric array, or save one file per sample.",
        )
    if isinstance(error, OSError) and error.strerror:
        return CaseError(unreadable(path, error), _AGAIN)
    head = _head(path)
    begins_right = head.startswith(_STARTS)
    if not begins_right and (other := mistaken(head)):
        return CaseError(f"{path.name} is {other[0]}, not arrays.", other[1])
    damaged = "truncated or damaged: " * isinstance(error, zipfile.BadZipFile)
    reason = f"{damaged}{error}" if begins_right else "wrong file header" if head else "it is empty"
    return CaseError(
        f"{where} is not a readable {path.suffix.lower()} file ({reason}).",
        _AGAIN,
    )


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            return stream.read(HEAD_BYTES)
    except OSError:
        return b""


def load_labels(path: Path, count: int) -> tuple[Any, ...]:
    """Read one label per sample.

    Args:
        path: A `.json` file with a list, or a `.npy` file whose first axis counts the samples.
        count: Number of samples.

    Returns:
        `count` labels: what JSON holds; Python numbers of a one-dimensional array and otherwise
        its rows. NaN is passed on to the metric.

    Raises:
        CaseError: The file is missing, broken or of another kind, or does not hold `count` labels.
    """
    if not is_regular(path):
        raise CaseError(no_file(path), "Give a file of labels.")
    match path.suffix.lower():
        case ".json":
            labels = _read_json(path)
        case ".npy":
            labels = _read_array(path, count)
        case suffix:
            raise CaseError(
                f"Labels {path.name}: found the suffix '{suffix}'; expected .json or .npy.",
                "Write them as a list: [3, 1, 4].",
            )
    if len(labels) != count:
        raise CaseError(
            f"Labels {path.name}: found {len(labels)} for {count} samples; expected one each.",
            "Give them in the order of the samples.",
        )
    return tuple(labels)


def _read_json(path: Path) -> Sequence[Any]:
    try:
        content = json.loads(read_text(path, encoding="utf-8-sig"))
    except OSError as error:
        raise CaseError(unreadable(path, error), "Check its permissions.") from error
    # ValueError: not JSON, not UTF-8, or a number of thousands of digits; RecursionError: nested
    # too deeply.
    except (ValueError, RecursionError) as error:
        raise CaseError(
            f"Labels {path.name}: found broken JSON ({error}); expected a list.",
            "Write it with json.dump(list, file).",
        ) from error
    if not isinstance(content, list):
        raise CaseError(
            f"Labels {path.name}: found a {type(content).__name__}; expected a list.",
            "Write one entry per sample, in their order: [3, 1, 4].",
        )
    return content


def _read_array(path: Path, count: int) -> Sequence[Any]:
    array = read_npy(path)
    if array.ndim == 0:
        raise CaseError(
            f"Labels {path.name}: found a scalar; expected an axis that counts the samples.",
            "Save a one-dimensional array.",
        )
    if len(array) != count:
        # Only their number is known yet; a malicious file may announce any number.
        return range(len(array))
    return [row.item() if array.ndim == 1 else np.array(row) for row in array]
