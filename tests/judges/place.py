"""Where the judges are, and whether they are there."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".judges"
"""Git ignores it."""


def missing(folder: Path, script: str) -> str | None:
    """Return why there is no judge in a folder; None where there is one."""
    # Written last.
    made = (folder / "made-from").is_file()
    return None if made else f"There is no {folder}: tools/{script} makes it."
