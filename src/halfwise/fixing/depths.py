"""What a plan that passes on samples must also stand: inside its model, as a file, held out.

Held-out samples are those that no search has seen.

What is found is remembered by the bench: nothing is run twice for one plan and the same samples.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf

from msgspec import Struct

from halfwise.case import Case, Samples
from halfwise.emulation.runner import Nonfinite
from halfwise.fixing.attribute import Infinity, attribute_inside
from halfwise.fixing.filed import judged_as_file, may_mend
from halfwise.fixing.plan.plan import NONE, Plan
from halfwise.fixing.space import Space
from halfwise.graph.casts import Rewritten, converted
from halfwise.graph.sensitivity import Fate
from halfwise.judging.inside import (
    emulate,
    judge_infinities,
    lacking_in,
    nonfinite_records,
)
from halfwise.judging.judge import Judged, judge_outputs
from halfwise.metrics import Computed, Outputs
from halfwise.metrics.untested import may_fail
from halfwise.progress import Watcher
from halfwise.records import (
    UNSHOWN,
    Failure,
    Guard,
    GuardKind,
    TensorName,
    Verdict,
)
from halfwise.reporting.remarks import under, with_failures
from halfwise.wording import FEW

JOINING = 4
"""At most 1 in 4 of the held-out samples joins the calibration at a time. Our choice."""


class HeldOut:
    """Samples no search has seen; if there are none, the calibration samples, which cannot pass.

    Attributes:
        case: The case.
        left: Samples still unseen.
        rest_references: Their reference outputs.
        joined: Identifiers of samples that joined the calibration.
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
        self.infinite = False

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
        self.infinite |= any(failure.kind == "infinite" for failure in judged.verdict.failures)
        self.rest = self.rest.select(rest)
        self.rest_references = [self.rest_references[i] for i in rest]
        space.join(moved, references)
        return moved, references


LEADING_TO_INFINITY: frozenset[GuardKind] = frozenset(
    ("overflow", "square", "sum", "mask", "underflow", "eps", "constant-range", "headroom")
)
"""Guards that may lead to infinities; subnormal weights, say, do not."""


class Inside(Struct, frozen=True):
    """What a plan must keep because of harmful infinities inside, or which of them cannot go."""

    guards: tuple[Guard, ...] = ()
    lasting: frozenset[TensorName] = frozenset()


class Depths(Struct, frozen=True):
    """Looks deeper at plans of a space.

    Attributes:
        space: The plans.
        heldout: The samples that no search has seen.
    """

    space: Space
    heldout: HeldOut

    # --- inside --------------------------------------------------------------------------------

    def inside(self, plan: Plan) -> Inside:
        """Return what a plan must keep so that no harmful infinity occurs on calibration samples.

        Nothing if no guard leads to infinities, and if the rest is unavoidable: a user's rule
        lowers it, or its operators have to be low.
        """
        return self.space.bench.once(plan, "inside", lambda: self._looked(plan), self._key)

    @property
    def expects_infinities(self) -> bool:
        """Whether something may be infinite inside."""
        guards = self.space.evidence.guards
        return self.heldout.infinite or any(g.kind in LEADING_TO_INFINITY for g in guards)

    @property
    def _key(self) -> object:
        return self.space.held_nodes, self.space.chosen, self.expects_infinities

    def _looked(self, plan: Plan) -> Inside:
        space = self.space
        if not self.expects_infinities:
            return Inside()
        of, settings, samples = space.variant, space.variant.settings, space.bench.samples
        rewritten = of.write(plan)[0]
        _, found = emulate(
            rewritten.model, samples, accumulate=settings.accumulate, runtime=settings.runtime
        )
        new = lacking_in(space.evidence.nonfinite, rewritten.model, found)
        harmful = self._harmful(rewritten, new, self._fates(rewritten, new, samples))
        needed = attribute_inside(space.evidence, harmful, space.held_nodes)
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

    def _harmful(
        self,
        written: Rewritten,
        inside: Mapping[TensorName, Nonfinite],
        fates: Mapping[TensorName, Fate],
    ) -> dict[TensorName, Infinity]:
        """Return harmful infinities by tensor of the network."""
        names = converted(written.model.graph)
        harmful: dict[TensorName, Infinity] = {}
        for tensor, fate in fates.items():
            if not fate.is_harmless:
                root = names.get(tensor, tensor)
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
            settings.fmt,
            inside,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )

    # --- verdicts ------------------------------------------------------------------------------

    def baseline(self) -> Verdict:
        """Judge the model with everything low, whatever is infinite inside."""
        return self._emulated(self.space.plan(self.space.islands))[0].verdict

    def judge(self, plan: Plan) -> Judged:
        """Judge the model of a plan, with what held-out samples show of it inside and as a file.

        New infinities inside fail it if they are harmful, but not those that are left on the
        samples of the search.
        """
        space, heldout, of = self.space, self.heldout, plan.of
        judged, harmful = self._emulated(plan)
        accepted = self.inside(plan).lasting if harmful and judged.verdict.passed else harmful
        new = {tensor: found.samples for tensor, found in harmful.items() if tensor not in accepted}
        if new:
            failures = (
                Failure(
                    kind="infinite", names={"tensor": t, "sample": heldout.samples.ids[where[0]]}
                )
                for t, where in islice(new.items(), FEW)
            )
            failing = dict.fromkeys(i for where in new.values() for i in where)
            verdict = with_failures(judged.verdict, failures)
            judged = Judged(verdict, tuple(failing))
        on = heldout.samples, heldout.references
        return judged_as_file(
            judged,
            of.write(plan)[0].model,
            *(of.case, of.settings, *on, (space.bench.hardest,), space.budget, of.shapes),
            may_mend=lambda runner: may_mend(space.bench, of, runner, *on),
        )

    def _emulated(self, plan: Plan) -> tuple[Judged, Mapping[TensorName, Infinity]]:
        """Return the verdict on a plan's emulation, and what is harmful of infinities inside."""
        work = lambda: self._judged(plan)  # noqa: E731
        return self.space.bench.once(plan, "emulated", work, self.heldout.rest.ids)

    def _judged(self, plan: Plan) -> tuple[Judged, Mapping[TensorName, Infinity]]:
        heldout, case, evidence = self.heldout, self.space.variant.case, self.space.evidence
        written = plan.of.write(plan)[0]
        passes = (self.space.bench.exact(plan) or inf) <= 1
        exact = self.expects_infinities and not passes
        results, found = self._run(plan, heldout.samples, exact=exact)
        before = heldout.nonfinite | evidence.nonfinite
        new = lacking_in(before, written.model, found)
        fates = self._fates(written, new, heldout.samples)
        judged = judge_outputs(
            results,
            heldout.samples,
            heldout.references,
            case.criterion,
            case.metric,
            intermediate=nonfinite_records(written.model, new, fates),
            unseen=heldout.unseen,
        )
        return judged, self._harmful(written, new, fates)

    def searched_too(self, plan: Plan, verdict: Verdict) -> Verdict:
        """Fail a verdict if the model fails on samples that the search saw.

        Otherwise nothing would judge the samples that joined; where a share of inputs may fail,
        they count as failing.
        """
        bench = self.space.bench
        if bench.tolerance.criterion.failing is not None:
            return verdict
        tolerance, whole = bench.tolerance, (bench.samples, bench.references)
        question = *whole, tolerance.criterion, tolerance.metric
        judged = judge_outputs(self._run(plan, bench.samples)[0], *question)
        if judged.verdict.passed:
            return verdict
        return with_failures(verdict, under("seen", "", judged.verdict.failures))

    def _run(
        self, plan: Plan, samples: Samples, *, exact: bool = False
    ) -> tuple[list[Computed], dict[TensorName, Nonfinite]]:
        """Run the typed emulation of a plan's model; see `emulate`."""
        settings = plan.of.settings
        self.space.budget.spend("judge", len(samples))
        return emulate(
            plan.of.write(plan)[0].model,
            samples.with_progress(self.space.watcher.step),
            accumulate=settings.accumulate,
            exact=exact,
            runtime=settings.runtime,
        )
