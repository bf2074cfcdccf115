"""Held-out samples: they judge, and failing ones join the search."""

from collections.abc import Sequence
from functools import partial

from halfwise.case import Samples
from halfwise.fixing.filed import demand
from halfwise.fixing.planner import Planner
from halfwise.judging.judge import Judged
from halfwise.metrics import Outputs
from halfwise.progress import Watcher

JOINING = 4
"""At most 1 in 4 of the held-out samples joins the calibration at a time."""


class HeldOut:
    """Samples no search has seen; if there are none, the calibration samples, which cannot pass.

    Attributes:
        left: Samples still unseen.
        left_references: Their reference outputs.
        joined: Identifiers of samples that joined the calibration.
        filed: Those of them that failed only as ONNX Runtime runs the file.
    """

    def __init__(
        self, planner: Planner, left: Samples, references: Sequence[Outputs], watcher: Watcher
    ) -> None:
        """Take the planner whose calibration they may join, and what gets a note when they do."""
        self._planner, self.left, self.left_references = planner, left, references
        self._watcher = watcher
        self.joined: list[str] = []
        self.filed: list[str] = []

    def for_watcher(self, watcher: Watcher) -> "HeldOut":
        """Return the same samples for another search, which none of them has joined."""
        return HeldOut(self._planner, self.left, self.left_references, watcher)

    def over(self, planner: Planner) -> "HeldOut":
        """Return the samples left, for another planner that has the joined ones."""
        other = HeldOut(planner, self.left, self.left_references, self._watcher)
        other.joined, other.filed = [*self.joined], [*self.filed]
        return other

    @property
    def unseen(self) -> bool:
        """Whether any unseen samples are left."""
        return len(self.left) > 0

    @property
    def samples(self) -> Samples:
        """The samples that judge."""
        return self.left if self.unseen else self._planner.case.calibration

    @property
    def references(self) -> Sequence[Outputs]:
        """Their reference outputs."""
        return self.left_references if self.unseen else self._planner.evidence.references

    def may_join(self, judged: Judged) -> bool:
        """Return whether samples fail and others would be left to judge."""
        return not judged.verdict.passed and len(judged.failing) > 0 and len(self.left) >= 2

    def join(self, judged: Judged, where: str = "") -> bool:
        """Move failing samples to the calibration, at most a quarter; return whether any moved.

        Without time for new evidence, there is none for a search that would use it.

        Args:
            judged: Verdict of a candidate on these samples.
            where: What failed, for the note, such as " in the engine".
        """
        if not self.may_join(judged):
            return False
        planner = self._planner
        chosen = judged.failing[: max(1, len(self.left) // JOINING)]
        rest = [i for i in range(len(self.left)) if i not in chosen]
        where = " as ONNX Runtime runs the file" if judged.as_file else where
        self._watcher.note(
            f"held-out samples that fail{where}: {len(judged.failing)}; joining the calibration: "
            f"{len(chosen)}"
        )
        moved = self.left.select(chosen)
        self.joined += moved.ids
        every = planner.trials.samples + moved
        new = partial(planner.gather, every)
        found = planner.budget.within("observe", new, planner.evidence)
        references = [self.left_references[i] for i in chosen]
        planner.join(moved, references, found)
        if judged.as_file:
            self.filed += moved.ids
            demand(planner, moved, tuple(references))
        self.left = self.left.select(rest)
        self.left_references = [self.left_references[i] for i in rest]
        return True
