"""The report as one HTML file, which opens anywhere, offline, and can be shared."""

from pathlib import Path

from halfwise.errors import UsageError
from halfwise.page.data import Stored, stored
from halfwise.scratch import scratch
from halfwise.store import folder_of, refuse_existing_file, refuse_irregular

PAGE_FILE = "report.html"


def write_page(folder: Path, out: Path | None = None, *, trt_worker: str | None = None) -> Path:
    """Make the page of a run folder from its contents, and return its path.

    Args:
        folder: The run folder, or its `run.json`.
        out: The file to write, which must not exist; None for `report.html` in the folder.
        trt_worker: One of the run's devices, shown as if it were the only one; None for all.

    Raises:
        RecordMismatch: no run, or one that cannot be read.
        UsageError: `out` exists or cannot be written, or the run has no device of that name.
    """
    if out is not None:
        refuse_existing_file(out)
    page = folder_of(folder) / PAGE_FILE if out is None else out
    write_stored(stored(folder, trt_worker), page)
    return page


def write_stored(run: Stored, page: Path) -> None:
    """Make the page of a run that has already been read.

    Raises:
        UsageError: the file cannot be written.
    """
    from halfwise.page.document import document  # noqa: PLC0415 (jinja2, only where a page is made)

    refuse_irregular(page, "The page")
    text = document(run)
    try:
        with scratch(page.parent, ".halfwise.") as partial:
            # A path that is not UTF-8 has surrogates, which HTML cannot hold.
            (partial / "page").write_text(text, encoding="utf-8", errors="replace")
            (partial / "page").replace(page)
    except OSError as error:
        raise UsageError(
            f"The page {page} cannot be written: {error.strerror}.", "Name another file with -o."
        ) from error
