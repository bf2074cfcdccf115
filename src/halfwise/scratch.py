"""Temporary folders."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(place: Path | None = None, prefix: str = "halfwise.") -> Iterator[Path]:
    """Yield an empty temporary folder that is removed when the block ends.

    It may be moved away meanwhile: it has the permissions of a new folder, which only its parent,
    a folder of this block, lacks.

    Args:
        place: Where it is created; by default the system's folder for temporary files.
        prefix: Beginning of its parent's name.

    Raises:
        OSError: it cannot be created.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as made:
        folder = Path(made) / "content"
        folder.mkdir()
        yield folder
