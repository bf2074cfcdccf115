"""Plans that also have to pass as ONNX Runtime runs their files.

On the samples where the file of an earlier plan failed although its emulation passed, if nothing is
known that has to be kept for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from halfwise.case import Samples
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.file_run import run_as_file
from halfwise.metrics import Outputs
from halfwise.records import NodeName

if TYPE_CHECKING:
    from halfwise.fixing.planner import Planner


@dataclass(frozen=True)
class Filed:
    """Runs the files of one planner's plans; called by its trials for each that passes.

    Attributes:
        planner: Writes them.
        samples: Those on which a file failed; at least one.
        references: Reference outputs of each.
    """

    planner: Planner
    samples: Samples
    references: tuple[Outputs, ...]

    def __call__(self, kept: frozenset[NodeName]) -> float:
        """Return the error of a plan's file, relative to what a trial may use.

        0 if ONNX Runtime refuses the file, as a verdict does not count that either. With a metric
        that needs more samples than these, it is the error on all samples of the search.
        """
        trials, runtime = self.planner.trials, self.planner.settings.runtime
        model = self.planner.rewrite(kept)[0].model
        own = self.samples, self.references
        for samples, references in (own, (trials.samples, trials.references)):
            self.planner.budget.spend("trial", len(samples))
            try:
                results = run_as_file(model, samples, references, runtime=runtime)
            except CaseError:
                return 0.0
            except RunFailed:
                return inf
            try:
                return trials.of(samples, references).excess_of(results)
            except CaseError:
                continue
        return inf


def demand(planner: Planner, samples: Samples, references: tuple[Outputs, ...]) -> None:
    """Let plans pass only if their files do on these samples too, and on those demanded before."""
    if isinstance(before := planner.trials.beyond, Filed):
        samples, references = before.samples + samples, before.references + references
    planner.trials.beyond = Filed(planner, samples, references)


def pass_on(planner: Planner, other: Planner) -> None:
    """Demand of another planner's plans what is demanded of this one's."""
    if isinstance(own := planner.trials.beyond, Filed):
        other.trials.beyond = Filed(other, own.samples, own.references)
