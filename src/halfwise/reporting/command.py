"""`report`: render an existing run again."""

from pathlib import Path

from halfwise.records import Run
from halfwise.store import on_one_device, read_run


def report(folder: str | Path, *, trt_worker: str | None = None) -> Run:
    """Return the run that a folder holds, to render it again.

    Args:
        folder: The run folder.
        trt_worker: One of its devices, shown as if it were the only one; None for all.

    Raises:
        UsageError: the run has no device of that name.
    """
    run = read_run(Path(folder))
    return run if trt_worker is None else on_one_device(run, trt_worker)
