"""The held-out samples of a run with engines: they judge, and those that fail join the search."""

from collections.abc import Sequence

from halfwise.case import Samples
from halfwise.fixing.evidence import Evidence, gather
from halfwise.fixing.loop import Fixed
from halfwise.judging.judge import Judged
from halfwise.metrics import Outputs
from halfwise.progress import Watcher


class HeldOut:
    """Samples that no search has seen; without any, the calibration samples, which cannot pass.

    Attributes:
        joined: Identifiers of those that joined the calibration.
    """

    def __init__(self, fixed: Fixed, watcher: Watcher) -> None:
        """Take what is left of them, and what is told about progress."""
        self.unseen = len(fixed.heldout) > 0
        self._samples, self._references = fixed.heldout, list(fixed.heldout_references)
        self._planner, self._watcher = fixed.planner, watcher
        self.joined: list[str] = []

    @property
    def samples(self) -> Samples:
        """What engines are judged on."""
        return self._samples if self.unseen else self._planner.trials.samples

    @property
    def references(self) -> Sequence[Outputs]:
        """Their reference outputs."""
        return self._references if self.unseen else self._planner.trials.references

    def join(self, judged: Judged) -> bool:
        """Move failing samples to the calibration, at most a quarter; return whether any moved.

        None moves where the verdict passed, and where none would be left to judge.
        """
        if judged.verdict.passed or not self.unseen or len(self._samples) < 2:
            return False
        chosen = judged.failing[: max(1, len(self._samples) // 4)]
        rest = [i for i in range(len(self._samples)) if i not in chosen]
        self.joined += [self._samples.ids[i] for i in chosen]
        moved = self._samples.select(chosen)
        references = [self._references[i] for i in chosen]
        self._watcher.note(
            f"held-out samples that fail in the engine: {len(judged.failing)}; that join the "
            f"calibration: {len(chosen)}"
        )
        self._planner.join(moved, references, self._evidence(moved))
        self._samples = self._samples.select(rest)
        self._references = [self._references[i] for i in rest]
        return bool(chosen)

    def _evidence(self, moved: Samples) -> Evidence:
        planner, step = self._planner, self._watcher.step
        samples = planner.trials.samples + moved

        def gathered() -> Evidence:
            return gather(planner.case.network, planner.roles, samples, planner.settings, step)

        return planner.budget.within("observe", gathered, planner.evidence)
