"""The samples that no search has seen, and how plans do on them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from halfwise.case import Case, Samples
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.bench import Tolerance, has_new_nonfinite
from halfwise.fixing.space import Space
from halfwise.judging.judge import Judged
from halfwise.metrics import (
    AUTO,
    Computed,
    Outputs,
    by_use,
    evidence_of,
    scores,
    task_scores,
    untested_task,
)
from halfwise.metrics.untested import may_fail
from halfwise.progress import Watcher
from halfwise.records import UNSHOWN, Recognised, TaskScore, TensorName

JOINING = 4
"""At most 1 in 4 of the held-out samples joins the calibration at a time. Our choice."""


class HeldOut:
    """Samples no search has seen; if there are none, the calibration samples, which cannot pass.

    Attributes:
        case: The case.
        left: Samples still unseen.
        rest_references: Their reference outputs.
        joined: Identifiers of samples that joined the calibration.
        filed: Those of them that failed only as the file runs.
        nonfinite: Tensors that are not finite in FP32 either.
        infinite: Whether some joined because something is infinite inside.
    """

    def __init__(
        self,
        case: Case,
        rest: Samples,
        references: Sequence[Outputs],
        searched: Sequence[Outputs],
        watcher: Watcher,
        nonfinite: frozenset[TensorName] = frozenset(),
    ) -> None:
        """Take the samples, their references and those of the calibration."""
        self.nonfinite = nonfinite
        self.case, self.rest, self.rest_references = case, rest, references
        self._searched, self._watcher = searched, watcher
        self.joined: tuple[str, ...] = ()
        self.filed: tuple[str, ...] = ()
        self.infinite = False

    def anew(self, watcher: Watcher) -> "HeldOut":
        """Return the samples left, for another search, which none of them has joined."""
        left = self.rest, self.rest_references
        return HeldOut(self.case, *left, self._searched, watcher, self.nonfinite)

    @property
    def unseen(self) -> bool:
        """Whether any unseen samples are left."""
        return len(self.rest) > 0

    @property
    def samples(self) -> Samples:
        """The samples that judge."""
        return self.rest if self.unseen else self.case.calibration

    @property
    def references(self) -> Sequence[Outputs]:
        """Their reference outputs."""
        return self.rest_references if self.unseen else self._searched

    def fails(self, judged: Judged) -> bool:
        """Return whether unseen samples fail that another plan may mend.

        None mends a verdict that fails only because the samples show too little.
        """
        shown = {failure.kind for failure in judged.verdict.failures} - UNSHOWN
        return self.unseen and len(shown) > 0 and len(judged.failing) > 0

    def may_join(self, judged: Judged) -> bool:
        """Return whether samples fail and others would be left to judge."""
        return self.fails(judged) and len(self.rest) >= 2

    def join(self, judged: Judged, space: Space, where: str = "") -> tuple[Samples, list[Outputs]]:
        """Move failing samples to the search, at most a quarter; return them, maybe none.

        Where a share of inputs may fail, no more than may: what joins counts as failing.

        Args:
            judged: Verdict of a candidate on these samples.
            space: The plans that are searched.
            where: What failed, for the note, such as " in the engine".
        """
        if not self.may_join(judged):
            return self.rest.select(()), []
        share = self.case.criterion.failing
        most = len(self.rest) // JOINING if share is None else may_fail(len(self.rest), share)
        chosen = judged.failing[: max(1, most)]
        rest = [i for i in range(len(self.rest)) if i not in chosen]
        where = " as the file runs" if judged.as_file else where
        self._watcher.note(
            f"held-out samples that fail{where}: {len(judged.failing)}; joining the calibration: "
            f"{len(chosen)}"
        )
        moved, references = self.rest.select(chosen), [self.rest_references[i] for i in chosen]
        self.joined += moved.ids
        self.filed += moved.ids if judged.as_file else ()
        self.infinite |= any(failure.kind == "infinite" for failure in judged.verdict.failures)
        self.rest = self.rest.select(rest)
        self.rest_references = [self.rest_references[i] for i in rest]
        space.join(moved, references)
        return moved, references

    # --- scores --------------------------------------------------------------------------------

    @cached_property
    def recognised(self) -> tuple[Recognised, ...]:
        """The task recognised from the outputs; empty if a metric was given."""
        case = self.case
        if case.metric is not None:
            return case.criterion.recognised if case.criterion.metric == AUTO else ()
        return by_use(self._searched, case.input_shapes)

    @property
    def reference(self) -> tuple[TaskScore, ...]:
        """The score of FP32's own outputs."""
        return self.scores(self.rest_references, self.rest_references, self.rest.labels)

    def assess(self, results: Sequence[Computed], tolerance: Tolerance) -> "Assessment":
        """Return the result of given outputs of the samples left, at least one."""
        rest, references = self.rest, self.rest_references
        error = None
        with suppress(CaseError):  # a few samples may be too few for a metric
            error = tolerance.excess(results, rest, references) * tolerance.factor
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        return Assessment(
            heldout=error,
            nonfinite=failed or any(map(has_new_nonfinite, references, computed)),
            scores=() if failed else self.scores(references, computed, rest.labels),
        )

    def scores(
        self,
        references: Sequence[Outputs],
        computed: Sequence[Outputs],
        labels: Sequence[Any] | None,
    ) -> tuple[TaskScore, ...]:
        """Return scores by the given metric, else by those of the recognised task."""
        case = self.case
        name, drop = case.criterion.metric, case.criterion.metric_drop
        with suppress(CaseError):  # a few samples may be too few for a metric
            if case.metric is None or name in (None, AUTO):
                return task_scores(self.recognised, references, computed, labels)
            before, after = scores(name, case.metric, references, computed, labels)
            untested = bool(untested_task(case.criterion, case.metric, references, labels))
            passed = isfinite(after) and after >= before - drop
            rests, unit = evidence_of(name, before)
            one = TaskScore(
                metric=name,
                outputs=tuple(references[0]),
                value=after,
                required=before - drop,
                passed=passed and not untested,
                evidence=rests,
                unit=unit,
            )
            return (one,)
        return ()


@dataclass(frozen=True)
class Assessment:
    """Result of a plan on held-out samples; attributes as in `Point`."""

    heldout: float | None
    nonfinite: bool
    scores: tuple[TaskScore, ...]
