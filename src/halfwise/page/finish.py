"""Finish a run folder: write the record, its evidence and its page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from halfwise.case import Case
from halfwise.evidence import evidence_of
from halfwise.page import PAGE_FILE, write_stored
from halfwise.page.data import Stored
from halfwise.progress import Watcher
from halfwise.records import Observations, Run
from halfwise.store import EVIDENCE_FILE, write_evidence, write_observations, write_run
from halfwise.wording import sentence


def finish(
    folder: Path,
    run: Run,
    case: Case,
    watcher: Watcher,
    *,
    mixed: ir.Model | None = None,
    observations: Observations | None = None,
) -> None:
    """Write the record of a run into its folder, with its evidence and page.

    A page never costs a run: if evidence or page cannot be made, the watcher is notified.

    Args:
        folder: The run folder, which exists.
        run: The run.
        case: Its case.
        watcher: Is notified of what could not be made.
        mixed: The model that the run delivers, if any.
        observations: Observations of the reference's tensors, if any.
    """
    write_run(folder, run)
    if observations is not None:
        write_observations(folder, observations)
    evidence = None
    with _optional(folder / EVIDENCE_FILE, watcher):
        evidence = evidence_of(case, mixed)
        write_evidence(folder, evidence)
    with _optional(folder / PAGE_FILE, watcher):
        write_stored(Stored.of(run, observations, evidence), folder / PAGE_FILE)


@contextmanager
def _optional(file: Path, watcher: Watcher) -> Iterator[None]:
    """Remove the file that the block fails to make, and say why; Ctrl-C ends only the block."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the run is worth more
        file.unlink(missing_ok=True)
        why = sentence(f"{type(error).__name__}: {error}")
        watcher.note(f"the run is complete, but its {file.name} could not be made ({why})")
