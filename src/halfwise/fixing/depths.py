"""What a plan that passes on samples must also stand: inside its model, as a file, held out.

What is found is remembered by the bench: nothing is run twice for one plan and the same samples.
Of the models of plans, only the last one is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from halfwise.case import FEW_SAMPLES, Samples
from halfwise.emulation.runner import Nonfinite
from halfwise.fixing.attribute import Infinity, attribute_inside
from halfwise.fixing.filed import judged_plan_as_file
from halfwise.fixing.heldout import Assessment, HeldOut
from halfwise.fixing.plan.guide import union
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, Written
from halfwise.fixing.space import Space
from halfwise.graph.casts import Rewritten, converted
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.sensitivity import Fate, original
from halfwise.judging.inside import Emulated, emulate, judge_infinities, lacking_in
from halfwise.judging.judge import Judged, judge_emulated
from halfwise.metrics import Computed, Outputs
from halfwise.progress import Watcher
from halfwise.records import Failure, Guard, GuardKind, TensorName, Verdict
from halfwise.reporting.remarks import under, with_failures
from halfwise.wording import FEW

LEADING_TO_INFINITY: frozenset[GuardKind] = frozenset(
    ("overflow", "square", "sum", "mask", "underflow", "eps", "constant-range", "headroom")
)
"""Guards that may lead to infinities; subnormal weights, say, do not."""


@dataclass(frozen=True)
class Inside:
    """What a plan must keep because of harmful infinities inside, or which of them cannot go."""

    guards: tuple[Guard, ...] = ()
    lasting: frozenset[TensorName] = frozenset()


@dataclass(frozen=True)
class Depths:
    """Looks deeper at plans of a space.

    Attributes:
        space: The plans.
        heldout: The samples that no search has seen.
    """

    space: Space
    heldout: HeldOut

    # --- inside --------------------------------------------------------------------------------

    def inside(self, plan: Plan, written: Rewritten | None = None) -> Inside:
        """Return what a plan must keep so that no harmful infinity occurs on calibration samples.

        Nothing if no guard leads to infinities, and if the rest is unavoidable: a user's rule
        lowers it, or its operators have to be low.

        Args:
            plan: The plan.
            written: Its model, if it was made already.
        """
        return self.space.bench.once(plan, "inside", lambda: self._looked(plan, written), self._key)

    def recall_inside(self, plan: Plan) -> Inside | None:
        """Return what `inside` returned, if it was called for this plan; else None."""
        inside: Inside | None = self.space.bench.recall(plan, "inside", self._key)
        return inside

    @property
    def expects_infinities(self) -> bool:
        """Whether something may be infinite inside."""
        guards = self.space.evidence.guards
        return self.heldout.infinite or any(g.kind in LEADING_TO_INFINITY for g in guards)

    @property
    def _key(self) -> object:
        return self.space.held_nodes, self.space.chosen, self.expects_infinities

    def _looked(self, plan: Plan, written: Rewritten | None) -> Inside:
        space = self.space
        if not self.expects_infinities:
            return Inside()
        of, settings, samples = space.variant, space.variant.settings, space.bench.samples
        rewritten = written or of.write(plan)[0]
        emulated = emulate(
            rewritten.model, samples, accumulate=settings.accumulate, runtime=settings.runtime
        )
        new = lacking_in(space.evidence.nonfinite, rewritten.model, emulated.nonfinite)
        harmful = self._harmful(rewritten, new, self._fates(rewritten, new, samples))
        needed = attribute_inside(
            of.case.network,
            of.roles,
            space.evidence.observations,
            settings.fmt,
            harmful,
            space.evidence.guards,
            space.held_nodes,
        )
        guards = tuple(filter(self._may_help, needed))
        return Inside(guards, frozenset() if guards else frozenset(harmful))

    def _may_help(self, guard: Guard) -> bool:
        """Return whether holding the nodes of a guard would change anything.

        It would not if they are held or chosen already, nor if a rule lowers a node next to a
        tensor that itself exceeds the range: that is infinite whatever the other nodes are.
        """
        space, of = self.space, self.space.variant
        kept = space.held_nodes | (space.chosen.kept if space.chosen else NONE)
        if of.holdable(guard) <= kept:
            return False
        limit = of.settings.fmt.overflow_threshold
        largest = {o.tensor: o.absmax for o in space.evidence.observations.tensors}
        is_beyond = guard.tensor is not None and largest.get(guard.tensor, 0.0) >= limit
        return not is_beyond or of.holdable(guard) == frozenset(guard.nodes)

    def judged_inside(self, judged: Judged, plan: Plan, written: Rewritten) -> Judged:
        """Mark harmless infinities in the verdict of a plan; new harmful ones fail it.

        Infinities left on the calibration samples do not fail it.
        """
        samples = self.heldout.samples
        fates = self._fates(written, judged.inside, samples)
        verdict = _marked(judged.verdict, written.model, fates)
        harmful = self._harmful(written, judged.inside, fates)
        accepted = (self.recall_inside(plan) or Inside()).lasting
        new = [t for t in harmful if t not in accepted]
        if not new or not verdict.passed:
            return replace(judged, verdict=verdict)
        failing = dict.fromkeys(i for t in new for i in harmful[t].samples)
        first = {tensor: samples.ids[harmful[tensor].samples[0]] for tensor in new[:FEW]}
        failures = (
            Failure(kind="infinite", names={"tensor": tensor, "sample": sample})
            for tensor, sample in first.items()
        )
        return replace(judged, verdict=with_failures(verdict, failures), failing=tuple(failing))

    def marked(self, judged: Judged, written: Rewritten) -> Verdict:
        """Mark harmless infinities in a verdict."""
        fates = self._fates(written, judged.inside, self.heldout.samples)
        return _marked(judged.verdict, written.model, fates)

    def _harmful(
        self,
        written: Rewritten,
        inside: Mapping[TensorName, Nonfinite],
        fates: Mapping[TensorName, Fate],
    ) -> dict[TensorName, Infinity]:
        """Return harmful infinities by tensor of the network."""
        names = {node_name(n) for n in self.space.variant.case.network.all_nodes()}
        values = {v.name: v for n in written.model.graph.all_nodes() for v in n.outputs}
        harmful: dict[TensorName, Infinity] = {}
        for tensor, fate in fates.items():
            if not fate.is_harmless:
                root = tensor_name(original(values[tensor], names))
                before = harmful.get(root, Infinity(0, (), ()))
                harmful[root] = Infinity(
                    max(before.elements, inside[tensor].elements),
                    tuple(dict.fromkeys((*before.harmful, *fate.harmful))),
                    tuple(sorted({*before.samples, *inside[tensor].samples})),
                )
        return harmful

    def _fates(
        self, written: Rewritten, inside: Mapping[TensorName, Nonfinite], samples: Samples
    ) -> dict[TensorName, Fate]:
        if not inside:
            return {}
        of, settings = self.space.variant, self.space.variant.settings

        return judge_infinities(
            written.model,
            of.case.network,
            of.roles,
            self.space.evidence.observations,
            settings.fmt,
            inside,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )

    def needs(self, plan: Plan) -> Nodes | None:
        """Return what a plan must add so that nothing is infinite inside; None if unknown."""
        inside = self.recall_inside(plan)
        if inside is None:
            return None
        return union([*map(self.space.variant.holdable, inside.guards)])

    def look_inside(self, plan: Plan) -> Nodes:
        """Return what `needs` does, after a look if that was not known."""
        if self.recall_inside(plan) is None:
            self.space.budget.spend("pass", len(self.space.bench.samples))
            self.inside(plan)
        return self.needs(plan) or NONE

    def is_original(self, plan: Plan) -> bool:
        """Return whether a plan is the model itself."""
        return self.space.is_safe and self.space.kept(plan) == self.space.choices

    # --- scores --------------------------------------------------------------------------------

    def assessment(self, plan: Plan) -> Assessment | None:
        """Return the result of a plan on the present held-out samples; None if it was not run."""
        ids = self.heldout.rest.ids
        assessment: Assessment | None = self.space.bench.recall(plan, "heldout", ids)
        return assessment

    def casts(self, plan: Plan) -> int | None:
        """Return the number of Casts in the mixed model of a measured plan, else None."""
        number: int | None = self.space.bench.recall(plan, "casts")
        return number

    def measure(
        self,
        plan: Plan,
        written: Rewritten | None = None,
        results: Sequence[Computed] | None = None,
    ) -> None:
        """Assess a plan on the held-out samples, and count its Casts.

        Args:
            plan: The plan.
            written: Its model, if it was made already.
            results: Its outputs of the held-out samples; without them it is run, except the model
                itself.
        """
        bench, rest, references = self.space.bench, self.heldout.rest, self.heldout.rest_references

        def assess() -> Assessment:
            ran = results or (references if self.is_original(plan) else None)
            return self.heldout.assess(ran or bench.results_on(plan, rest), bench.tolerance)

        if rest:
            bench.once(plan, "heldout", assess, rest.ids)
        bench.once(plan, "casts", lambda: (written or plan.of.write(plan)[0]).casts)


def _marked(verdict: Verdict, candidate: ir.Model, fates: Mapping[TensorName, Fate]) -> Verdict:
    names = converted(candidate.graph)
    by_name: dict[TensorName, list[Fate]] = {}
    for tensor, fate in fates.items():
        by_name.setdefault(names.get(tensor, tensor), []).append(fate)
    marked = tuple(
        i.model_copy(update=_fate(by_name[i.tensor])) for i in verdict.intermediate_nonfinite
    )
    return verdict.model_copy(update={"intermediate_nonfinite": marked})


def _fate(fates: Sequence[Fate]) -> dict[str, object]:
    """Return the record of one tensor, from its fates in each of its types."""
    harmless = all(f.is_harmless for f in fates)
    if not harmless:
        return {"harmless": False}
    ending = [f for f in fates if f.ends]
    ends = "limit" if all(f.seen for f in ending) else "unseen"
    return {"harmless": True, "ends": ends if ending else "unread"}


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
        space, heldout = depths.space, depths.heldout
        samples, references = heldout.samples, heldout.references
        plan = space.plan(space.islands)
        written = plan.of.write(plan)
        excess = space.bench.exact(plan)
        passes = excess is not None and excess <= 1
        exact = not passes and depths.expects_infinities
        emulated = self._emulate(space, written[0], samples, exact=exact)
        if passes:
            self._latest = _Latest(plan, written, samples.ids, emulated)
        else:
            depths.measure(plan, written[0], emulated.results)
        few = emulated.first(FEW_SAMPLES)
        judged = self._judged(space, written[0], few, samples, references, unseen=heldout.unseen)
        return depths.marked(judged, written[0])

    def write(self, plan: Plan) -> Written:
        """Return the model of a plan."""
        if self._latest is None or self._latest.plan != plan:
            self._latest = None  # the search does not come back to it
            self._latest = _Latest(plan, plan.of.write(plan))
        return self._latest.written

    def judge(self, depths: Depths, plan: Plan) -> Judged:
        """Judge the model of a plan, with what held-out samples show of it inside and as a file."""
        space, heldout, (written, _) = depths.space, depths.heldout, self.write(plan)
        samples, references, latest = heldout.samples, heldout.references, self._latest
        seen = latest.emulated if latest is not None and latest.samples == samples.ids else None
        emulated = seen or self._emulate(space, written, samples)
        depths.measure(plan, written, emulated.results)
        judged = self._judged(space, written, emulated, samples, references, unseen=heldout.unseen)
        judged = depths.judged_inside(judged, plan, written)
        return judged_plan_as_file(judged, space, plan, written, samples, references)

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
