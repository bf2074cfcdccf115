"""What a page is made of: what lies in a run folder, read once for all sections."""

from dataclasses import dataclass
from pathlib import Path

from halfwise.records import Observations, Run, RunEvidence
from halfwise.reporting.parts import Report
from halfwise.reporting.view import report
from halfwise.store import read_evidence, read_observations, read_run


@dataclass(frozen=True)
class Stored:
    """A stored run.

    Attributes:
        run: The record.
        report: Its words and tables, the same that the terminal shows.
        observations: What its tensors looked like; None where the command took none.
        evidence: Its graph, sources and samples; None where the folder has none.
    """

    run: Run
    report: Report
    observations: Observations | None
    evidence: RunEvidence | None


def stored(folder: Path) -> Stored:
    """Return what lies in a run folder.

    Raises:
        RecordMismatch: no run, or one that cannot be read.
    """
    run = read_run(folder)
    return Stored(run, report(run), read_observations(folder), read_evidence(folder))
