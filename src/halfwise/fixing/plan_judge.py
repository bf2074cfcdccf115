"""Judges the mixed models of one run in emulation, each once."""

from collections.abc import Sequence
from dataclasses import dataclass

from halfwise.case import Samples
from halfwise.fixing.holding import Holding
from halfwise.fixing.scoring import PlanFile, Scoring
from halfwise.graph.casts import Rewritten
from halfwise.judging.inside import Emulated, emulate
from halfwise.judging.judge import Judged, judge_emulated
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import NodeName, TensorName, Verdict
from halfwise.reporting.remarks import under, with_failures

BASELINE_INSPECTED = 4
"""Samples on which the all-low model is searched for non-finite values inside."""

WIDE = 0.5
"""Everything low passes by a wide margin up to this fraction of the tolerance."""

Assignment = frozenset[NodeName]
Written = tuple[Rewritten, Assignment]
"""A mixed model, and all its FP32 nodes."""


@dataclass(frozen=True)
class _Known:
    """A plan, its model, and its outputs of the samples with these identifiers."""

    plan: PlanFile
    samples: tuple[str, ...]
    written: Written
    emulated: Emulated


class PlanJudge:
    """Judges on held-out samples, or without any on the calibration, which cannot pass."""

    def __init__(
        self,
        scoring: Scoring,
        nonfinite: frozenset[TensorName],
        watcher: Watcher,
    ) -> None:
        """Take what runs plans and scores them, and the tensors not finite in FP32 either."""
        self._planner, self._heldout, self._scoring = scoring.planner, scoring.heldout, scoring
        self._nonfinite, self._watcher = nonfinite, watcher
        self._known: _Known | None = None

    def baseline(self, holding: Holding) -> Verdict:
        """Judge the model with everything low.

        If it passes the search it is probably the plan, so its verdict is computed in full at once,
        and kept.
        """
        planner, scoring, samples = self._planner, self._scoring, self._heldout.samples
        written = planner.rewrite(planner.islands)
        excess = planner.trials.exact(planner.islands)
        passes = excess is not None and excess <= 1
        emulated = self._emulate(written[0], samples, None if passes else BASELINE_INSPECTED)
        if passes:
            self._known = _Known(scoring.plan(planner.islands), samples.ids, written, emulated)
        else:
            scoring.take(planner.islands, written[0], emulated.results)
        judged = self._judge(
            written[0],
            emulated.first(BASELINE_INSPECTED),
            samples,
            self._heldout.references,
            unseen=self._heldout.unseen,
        )
        return holding.marked(judged, written[0], samples)

    def suffices(self, baseline: Verdict) -> bool:
        """Return whether everything low passes on all samples and is finite inside."""
        known = self._known
        return known is not None and baseline.passed and not known.emulated.nonfinite

    def passes_widely(self, baseline: Verdict) -> bool:
        """Return whether everything low passes by a wide margin on all samples, and is finite.

        A metric has no such margin.
        """
        known, trials = self._known, self._planner.trials
        if known is None or trials.metric is not None or not self.suffices(baseline):
            return False
        heldout = trials.of(self._heldout.samples, self._heldout.references)
        unseen = heldout.excess_of(known.emulated.results)
        return max(trials.excess(self._planner.islands), unseen) <= WIDE * trials.tolerance

    def write(self, kept: Assignment) -> Written:
        """Return the model of a plan."""
        if self._known is not None and self._known.plan == self._scoring.plan(kept):
            return self._known.written
        # The search does not come back to it: release its model and outputs.
        self._known = None
        return self._planner.rewrite(kept)

    def judge(self, kept: Assignment, rewritten: Rewritten) -> Judged:
        """Judge the model of a plan, which `write` made last."""
        samples, known = self._heldout.samples, self._known
        if known is not None and known.samples == samples.ids:
            emulated = known.emulated
        else:
            emulated = self._emulate(rewritten, samples)
        self._scoring.take(kept, rewritten, emulated.results)
        unseen = self._heldout.unseen
        return self._judge(rewritten, emulated, samples, self._heldout.references, unseen=unseen)

    def searched_too(self, verdict: Verdict, rewritten: Rewritten) -> Verdict:
        """Fail a verdict if the model fails on samples that the search saw.

        Otherwise nothing would judge the samples that joined.
        """
        trials = self._planner.trials
        emulated = self._emulate(rewritten, trials.samples, inspected=0)
        seen = self._judge(rewritten, emulated, trials.samples, trials.references, unseen=True)
        if seen.verdict.passed:
            return verdict
        return with_failures(verdict, under("seen", "", seen.verdict.failures))

    def _emulate(
        self, rewritten: Rewritten, samples: Samples, inspected: int | None = None
    ) -> Emulated:
        settings = self._planner.settings
        self._planner.budget.spend("judge", len(samples))
        return emulate(
            rewritten.model,
            samples.with_progress(self._watcher.step),
            accumulate=settings.accumulate,
            inspected=inspected,
            runtime=settings.runtime,
        )

    def _judge(
        self,
        rewritten: Rewritten,
        emulated: Emulated,
        samples: Samples,
        references: Sequence[Outputs],
        *,
        unseen: bool,
    ) -> Judged:
        case = self._planner.case
        return judge_emulated(
            rewritten.model,
            emulated,
            samples,
            references,
            case.criterion,
            case.metric,
            reference_nonfinite=self._nonfinite | self._planner.evidence.nonfinite,
            unseen=unseen,
        )
