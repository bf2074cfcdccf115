"""The contents of a run folder, read once for all sections of its page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from halfwise.formats import LOW_FORMATS, Format
from halfwise.records import Observations, Run, RunEvidence
from halfwise.reporting.parts import Report
from halfwise.reporting.screen import screen
from halfwise.reporting.view import report
from halfwise.store import read_evidence, read_observations
from halfwise.store import report as stored_run


@dataclass(frozen=True)
class Stored:
    """A stored run.

    Attributes:
        run: The record.
        report: Its words and tables, the same as on the terminal.
        screen: The report's first screen.
        observations: Observations of its tensors; None if the command made none.
        evidence: Its graph, sources and samples; None if the folder has none.
    """

    run: Run
    report: Report
    screen: Report
    observations: Observations | None
    evidence: RunEvidence | None

    @property
    def low(self) -> Format:
        """The low format of its plan or candidate; FP16 if it has none."""
        told = self.run.plan or self.run.worth
        return LOW_FORMATS[(told and told.low) or "fp16"]

    @classmethod
    def of(
        cls, run: Run, observations: Observations | None = None, evidence: RunEvidence | None = None
    ) -> Self:
        """Return a run with its words."""
        return cls(run, report(run), screen(run), observations, evidence)


def stored(folder: Path, trt_worker: str | None = None) -> Stored:
    """Return the contents of a run folder.

    Args:
        folder: The folder, or its `run.json`.
        trt_worker: One of its devices, shown as if it were the only one; None for all.

    Raises:
        RecordMismatch: no run, or one that cannot be read.
        UsageError: the run has no device of that name.
    """
    run = stored_run(folder, trt_worker=trt_worker)
    return Stored.of(run, read_observations(folder), read_evidence(folder))
