"""Judges the mixed models of plans on held-out samples, and in full."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from halfwise.case import FEW_SAMPLES, Samples
from halfwise.fixing.bench import Tolerance
from halfwise.fixing.depths import Depths
from halfwise.fixing.filed import judged_plan_as_file
from halfwise.fixing.plan.plan import Plan, Written
from halfwise.fixing.space import WELL_WITHIN, Space
from halfwise.graph.casts import Rewritten
from halfwise.judging.inside import Emulated, emulate
from halfwise.judging.judge import Judged, judge_emulated
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import TensorName, Verdict
from halfwise.reporting.remarks import under, with_failures


@dataclass(frozen=True)
class _Latest:
    """The last model that was written, and its outputs; others are not kept in memory."""

    plan: Plan
    written: Written
    samples: tuple[str, ...] = ()
    emulated: Emulated | None = None


class Verdicts:
    """Judges on held-out samples, or without any on the calibration, which cannot pass."""

    def __init__(self, nonfinite: frozenset[TensorName], watcher: Watcher) -> None:
        """Take the tensors not finite in FP32 either, and what receives progress."""
        self._nonfinite, self._watcher = nonfinite, watcher
        self._latest: _Latest | None = None

    def baseline(self, depths: Depths) -> Verdict:
        """Judge the model with everything low.

        If it passes the search it is probably the plan, so its verdict is computed in full at once,
        and kept.
        """
        space, samples = depths.space, depths.heldout.samples
        plan = space.plan(space.islands)
        written = plan.of.write(plan)
        excess = space.bench.exact(plan)
        passes = excess is not None and excess <= 1
        exact = not passes and depths.expects_infinities
        emulated = self._emulate(space, written[0], samples, exact=exact)
        if passes:
            self._latest = _Latest(plan, written, samples.ids, emulated)
        else:
            depths.take(plan, written[0], emulated.results)
        judged = self._judge(depths, written[0], emulated.first(FEW_SAMPLES))
        return depths.marked(judged, written[0])

    def suffices(self, baseline: Verdict) -> bool:
        """Return whether everything low passes on all samples and is finite inside."""
        latest = self._latest
        if latest is None or latest.emulated is None:
            return False
        return baseline.passed and not latest.emulated.nonfinite

    def passes_widely(self, depths: Depths, baseline: Verdict) -> bool:
        """Return whether everything low passes by a wide margin on all samples, and is finite.

        Where a metric decides, the margin is that to the default tolerance.
        """
        latest, bench = self._latest, depths.space.bench
        if not self.suffices(baseline):
            return False
        assert latest is not None
        assert latest.emulated is not None
        searched: float | None = bench.recall(latest.plan, "plain")
        judged = depths.heldout.samples, depths.heldout.references
        plain = Tolerance(bench.tolerance.of_samples)
        unseen = plain.excess(latest.emulated.results, *judged)
        return max(inf if searched is None else searched, unseen) <= WELL_WITHIN

    def write(self, plan: Plan) -> Written:
        """Return the model of a plan."""
        if self._latest is None or self._latest.plan != plan:
            self._latest = None  # the search does not come back to it
            self._latest = _Latest(plan, plan.of.write(plan))
        return self._latest.written

    def judge(self, depths: Depths, plan: Plan) -> Judged:
        """Judge the model of a plan, with what held-out samples show of it inside and as a file."""
        heldout, (written, _) = depths.heldout, self.write(plan)
        samples, references, latest = heldout.samples, heldout.references, self._latest
        emulated = None
        if latest is not None and (latest.plan, latest.samples) == (plan, samples.ids):
            emulated = latest.emulated
        if emulated is None:
            emulated = self._emulate(depths.space, written, samples)
        depths.take(plan, written, emulated.results)
        judged = depths.judged_inside(self._judge(depths, written, emulated), plan, written)
        return judged_plan_as_file(judged, depths.space, plan, written, samples, references)

    def searched_too(self, space: Space, verdict: Verdict, written: Rewritten) -> Verdict:
        """Fail a verdict if the model fails on samples that the search saw.

        Otherwise nothing would judge the samples that joined; where a share of inputs may fail,
        they count as failing.
        """
        bench = space.bench
        if bench.tolerance.criterion.failing is not None:
            return verdict
        emulated = self._emulate(space, written, bench.samples, inside=False)
        judged = self._judged(
            space, written, emulated, bench.samples, bench.references, unseen=True
        )
        if judged.verdict.passed:
            return verdict
        return with_failures(verdict, under("seen", "", judged.verdict.failures))

    def _emulate(
        self,
        space: Space,
        written: Rewritten,
        samples: Samples,
        *,
        inside: bool = True,
        exact: bool = False,
    ) -> Emulated:
        settings = space.variant.settings
        space.budget.spend("judge", len(samples))
        return emulate(
            written.model,
            samples.with_progress(self._watcher.step),
            accumulate=settings.accumulate,
            inside=inside,
            exact=exact,
            runtime=settings.runtime,
        )

    def _judge(self, depths: Depths, written: Rewritten, emulated: Emulated) -> Judged:
        heldout = depths.heldout
        samples, references = heldout.samples, heldout.references
        return self._judged(
            depths.space, written, emulated, samples, references, unseen=heldout.unseen
        )

    def _judged(
        self,
        space: Space,
        written: Rewritten,
        emulated: Emulated,
        samples: Samples,
        references: Sequence[Outputs],
        *,
        unseen: bool,
    ) -> Judged:
        case = space.variant.case
        return judge_emulated(
            written.model,
            emulated,
            samples,
            references,
            case.criterion,
            case.metric,
            reference_nonfinite=self._nonfinite | space.evidence.nonfinite,
            unseen=unseen,
        )
