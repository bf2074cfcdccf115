"""Which files are engines."""

from pathlib import Path

from halfwise.errors import CaseError
from halfwise.files import open_regular

MAGIC = b"ftrt"
"""What a serialised engine begins with, in TensorRT 8 to 10 (torch_tensorrt relies on it too)."""
SUFFIXES = (".engine", ".plan", ".trt")


def is_engine(path: Path) -> bool:
    """Return whether `path` is an engine, by its first bytes, else by its name."""
    try:
        with open_regular(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                return True
    except OSError:
        pass
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def demand_engine(path: Path) -> Path:
    """Return `path`, a file that may be an engine; TensorRT decides when it reads it.

    Raises:
        CaseError: there is no such file, it is empty, or it has Ultralytics' own header.
    """
    try:
        with open_regular(path) as file:
            head = file.read(5)
    except OSError as error:
        raise CaseError(
            f"The engine {path} cannot be read: {error.strerror}.", "Give an engine file."
        ) from error
    if not head:
        raise CaseError(f"The engine {path} is empty.", "Build it again.")
    if head[4:] == b"{" and head[:4] != MAGIC:
        raise CaseError(
            f"{path} begins with {int.from_bytes(head[:4], 'little')} bytes of Ultralytics' "
            "metadata, before the engine itself.",
            f"Cut them off: tail -c +{int.from_bytes(head[:4], 'little') + 5} FILE > plain.engine",
        )
    return path
