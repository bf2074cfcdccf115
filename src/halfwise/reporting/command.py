"""`report`: a run that is there already, to render it again."""

from pathlib import Path

from halfwise.records import Run
from halfwise.store import read_run


def report(folder: str | Path) -> Run:
    """Return the run that a folder holds, to render it again."""
    return read_run(Path(folder))
