"""The results of plans on held-out samples, and whether anything is infinite inside them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite
from typing import Any

import onnx_ir as ir

from halfwise.case import Samples
from halfwise.emulation.runner import Nonfinite
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.attribute import Infinity, attribute_inside
from halfwise.fixing.plan.found import LEADING_TO_INFINITY, Types
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import has_new_nonfinite
from halfwise.graph.casts import Rewritten, converted
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.sensitivity import Fate, original
from halfwise.judging.inside import emulate, judge_infinities, lacking_in
from halfwise.judging.judge import Judged, run_as_file
from halfwise.metrics import (
    AUTO,
    Computed,
    Excess,
    Outputs,
    recognise,
    scores,
    support_of,
    task_scores,
    totals,
    untested_task,
)
from halfwise.progress import Watcher
from halfwise.records import (
    Criterion,
    Failure,
    Guard,
    NodeName,
    Recognised,
    TaskScore,
    TensorName,
    Verdict,
)
from halfwise.reporting.remarks import with_failures

Assignment = frozenset[NodeName]

MOST_TOLD = 3
"""Infinite tensors, or decisions, named in a failed verdict."""
LOOKED_AT = 4
"""How often a plan is corrected for infinities inside; others only show once the first are gone."""


@dataclass(frozen=True)
class _Seen:
    """What a plan must keep because of harmful infinities inside, or which of them cannot go."""

    guards: tuple[Guard, ...]
    left: frozenset[TensorName]


class Infinities:
    """Looks for new NaN and infinities inside the mixed models of a run, in each once."""

    def __init__(
        self,
        planner: Planner,
        ran: Callable[[Assignment, Sequence[Computed]], None] = lambda _kept, _results: None,
    ) -> None:
        """Take what runs plans.

        Args:
            planner: Makes their models.
            ran: Receives the outputs of all calibration samples for each plan that is run.
        """
        self.planner, self._ran = planner, ran
        self._met = False
        self._seen: dict[object, _Seen] = {}
        self._latest = _Seen((), frozenset())

    def guards(self, kept: Assignment, rewritten: Rewritten) -> tuple[Guard, ...]:
        """Return what a plan must keep so that no harmful infinity occurs on calibration samples.

        Empty if no guard leads to infinities, and if the rest is unavoidable: a user's rule lowers
        it, or its operators have to be low.

        Args:
            kept: The plan.
            rewritten: Its model.
        """
        self._met |= any(g.kind in LEADING_TO_INFINITY for g in self.planner.evidence.guards)
        here = self._here(kept)
        if here not in self._seen:
            self._seen[here] = self._look(kept, rewritten) if self._met else _Seen((), frozenset())
        self._latest = self._seen[here]
        return self._latest.guards

    def known(self, kept: Assignment) -> tuple[Guard, ...] | None:
        """Return what `guards` returned, if it was called for this plan; else None."""
        seen = self._seen.get(self._here(kept))
        return None if seen is None else seen.guards

    def _here(self, kept: Assignment) -> object:
        planner = self.planner
        held, samples = planner.held_nodes, planner.trials.samples.ids
        return kept, planner.types_of(kept), held, samples, self._met

    def _look(self, kept: Assignment, rewritten: Rewritten) -> _Seen:
        planner, settings = self.planner, self.planner.settings
        samples, known = planner.trials.samples, planner.evidence.nonfinite
        emulated = emulate(
            rewritten.model,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
        self._ran(kept, emulated.results)
        inside = lacking_in(known, rewritten.model, emulated.nonfinite)
        harmful = self._harmful(rewritten, inside, self._fates(rewritten, inside, samples))
        needed = attribute_inside(
            planner.case.network,
            planner.roles,
            planner.evidence.observations,
            settings.fmt,
            harmful,
            planner.evidence.guards,
            planner.held_nodes,
        )
        found = tuple(filter(self._may_help, needed))
        return _Seen(found, frozenset() if found else frozenset(harmful))

    def _may_help(self, guard: Guard) -> bool:
        """Return whether holding the nodes of a guard would change anything.

        It would not if they are held or chosen already, nor if a rule lowers a node next to a
        tensor that itself exceeds the range: that is infinite whatever the other nodes are.
        """
        planner, chosen = self.planner, self.planner.settings.chosen
        kept = planner.held_nodes | (chosen.kept if chosen else frozenset())
        if planner.holdable(guard) <= kept:
            return False
        limit = planner.settings.fmt.overflow_threshold
        seen = {o.tensor: o.absmax for o in planner.evidence.observations.tensors}
        is_beyond = guard.tensor is not None and seen.get(guard.tensor, 0.0) >= limit
        return not is_beyond or planner.holdable(guard) == frozenset(guard.nodes)

    def judged(
        self, judged: Judged, kept: Assignment, rewritten: Rewritten, samples: Samples
    ) -> Judged:
        """Mark harmless infinities in the verdict of a plan; new harmful ones fail it.

        Infinities left on the calibration samples do not fail it.
        """
        fates = self._fates(rewritten, judged.inside, samples)
        verdict = _marked(judged.verdict, rewritten.model, fates)
        harmful = self._harmful(rewritten, judged.inside, fates)
        left = self._seen.get(self._here(kept), self._latest).left
        new = [t for t in harmful if t not in left]
        if not new or not verdict.passed:
            return replace(judged, verdict=verdict)
        self._met = True
        failing = dict.fromkeys(i for t in new for i in harmful[t].samples)
        first = {tensor: samples.ids[harmful[tensor].samples[0]] for tensor in new[:MOST_TOLD]}
        failures = (
            Failure(kind="infinite", names={"tensor": tensor, "sample": sample})
            for tensor, sample in first.items()
        )
        return replace(judged, verdict=with_failures(verdict, failures), failing=tuple(failing))

    def marked(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Verdict:
        """Mark harmless infinities in a verdict."""
        fates = self._fates(rewritten, judged.inside, samples)
        return _marked(judged.verdict, rewritten.model, fates)

    def _harmful(
        self,
        rewritten: Rewritten,
        inside: Mapping[TensorName, Nonfinite],
        fates: Mapping[TensorName, Fate],
    ) -> dict[TensorName, Infinity]:
        """Return harmful infinities by tensor of the network."""
        own = {node_name(n) for n in self.planner.case.network.nodes()}
        values = {v.name: v for n in rewritten.model.graph for v in n.outputs}
        found: dict[TensorName, Infinity] = {}
        for tensor, fate in fates.items():
            if not fate.is_harmless:
                root = tensor_name(original(values[tensor], own))
                before = found.get(root, Infinity(0, (), ()))
                found[root] = Infinity(
                    max(before.elements, inside[tensor].elements),
                    tuple(dict.fromkeys((*before.harmful, *fate.harmful))),
                    tuple(sorted({*before.samples, *inside[tensor].samples})),
                )
        return found

    def _fates(
        self, rewritten: Rewritten, inside: Mapping[TensorName, Nonfinite], samples: Samples
    ) -> dict[TensorName, Fate]:
        if not inside:
            return {}
        planner, settings = self.planner, self.planner.settings

        def keeping(nodes: frozenset[NodeName]) -> ir.Model | None:
            made = planner.rewrite(rewritten.fp32 | nodes)[0]
            return made.model if nodes <= made.fp32 else None

        return judge_infinities(
            rewritten.model,
            planner.case.network,
            planner.roles,
            planner.evidence.observations,
            settings.fmt,
            inside,
            samples,
            keeping=keeping,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )


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
    seen = "limit" if all(f.seen for f in ending) else "unseen"
    seen = "wrong" if any(f.wrong for f in ending) else seen
    return {"harmless": True, "ends": seen if ending else "unread"}


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


PlanFile = tuple[Assignment, Types, Assignment]
"""Kept nodes, their types, and nodes that no plan may choose but that are held."""
_OnSamples = tuple[PlanFile, tuple[str, ...]]


@dataclass(frozen=True)
class Given:
    """Result of a plan on held-out samples; attributes as in `Point`."""

    heldout: float | None
    rel_max: float
    nonfinite: bool
    scores: tuple[TaskScore, ...]


class Scoring:
    """Measures each plan once, and remembers the result.

    Attributes:
        planner: What runs plans.
        heldout: The unseen samples.
        inside: What looks for infinities inside.
    """

    def __init__(self, planner: Planner, heldout: HeldOut) -> None:
        """Take what runs plans, and the unseen samples."""
        self.planner, self.heldout = planner, heldout
        self.inside = Infinities(planner, self._look_at)
        self._given: dict[_OnSamples, Given] = {}
        self._casts: dict[PlanFile, int] = {}
        self._searched: dict[_OnSamples, bool] = {}
        self._as_file: dict[_OnSamples, bool | None] = {}

    @cached_property
    def recognised(self) -> tuple[Recognised, ...]:
        """The task recognised from the outputs; empty if a metric was given."""
        case = self.planner.case
        if case.metric is not None:
            return case.criterion.recognised if case.criterion.metric == AUTO else ()
        return recognise(self.planner.trials.references, case.input_shapes)

    @property
    def reference(self) -> tuple[TaskScore, ...]:
        """The score of FP32's own outputs, if any plan was scored."""
        left, references = self.heldout.left, self.heldout.left_references
        return self._scores(references, references, left.labels) if self._given else ()

    def given(self, kept: Assignment) -> Given | None:
        """Return the result of a plan on the present held-out samples; None if it was not run."""
        return self._given.get(self._unseen(kept))

    def casts(self, kept: Assignment) -> int | None:
        """Return the number of Casts in the mixed model of a measured plan, else None."""
        return self._casts.get(self.plan(kept))

    def needs(self, kept: Assignment) -> Assignment | None:
        """Return what a plan must add so that nothing is infinite inside; None if unknown."""
        guards = self.inside.known(kept)
        if guards is None:
            return None
        return frozenset[NodeName]().union(*map(self.planner.holdable, guards))

    def measure(self, kept: Assignment, *, original: bool = False) -> None:
        """Run the held-out samples, and count the Casts.

        Args:
            kept: The compute nodes in FP32.
            original: Whether this is the model itself, which has already run.
        """
        left, references = self.heldout.left, self.heldout.left_references
        if left and self.given(kept) is None:
            if original:
                results: Sequence[Computed] = references
            else:
                results = self.planner.trials.of(left, references).results(kept)
                self.planner.trials.evaluations += 1
            self._given[self._unseen(kept)] = self.given_of(results)
        if self.casts(kept) is None:
            self._casts[self.plan(kept)] = self.planner.rewrite(kept)[0].casts

    def take(self, kept: Assignment, rewritten: Rewritten, results: Sequence[Computed]) -> None:
        """Take the model of a plan, and its outputs of the held-out samples, if there are any."""
        self._casts[self.plan(kept)] = rewritten.casts
        if self.heldout.unseen:
            self._given[self._unseen(kept)] = self.given_of(results)

    def searched(self, kept: Assignment) -> bool | None:
        """Return whether a plan serves on the present search samples; None if unknown."""
        trials = self.planner.trials
        if trials.metric is not None and (error := trials.exact(kept)) is not None:
            return error <= 1
        if (tried := trials.tried.get(kept)) is not None and tried.nonfinite:
            return False
        return self._searched.get(self._seen(kept))

    def search(self, kept: Assignment) -> None:
        """Run the search samples, if it is unknown whether a plan serves there."""
        if self.searched(kept) is not None:
            return
        results = self.planner.trials.results(kept)
        self.planner.trials.excess(kept, results)
        self._take_searched(kept, results)

    def _look_at(self, kept: Assignment, results: Sequence[Computed]) -> None:
        scored = self.planner.case.metric is not None or self.recognised
        if scored and self.searched(kept) is None:
            self._take_searched(kept, results)

    def _take_searched(self, kept: Assignment, results: Sequence[Computed]) -> None:
        trials = self.planner.trials
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        sound = not failed and not any(map(has_new_nonfinite, trials.references, computed))
        found = self._scores(trials.references, computed, trials.samples.labels) if sound else ()
        # Held-out samples test what these do not.
        passed = sound and all(isfinite(s.value) and s.value >= s.required for s in found)
        self._searched[self._seen(kept)] = passed

    def as_file(self, kept: Assignment) -> bool | None:
        """Return whether a plan's file serves in ONNX Runtime; None if it was not run."""
        return self._as_file.get(self._unseen(kept))

    def run_file(self, kept: Assignment) -> None:
        """Run the file that would be written on the held-out samples, as the verdict does."""
        if self.filed(kept):
            return
        left, references = self.heldout.left, self.heldout.left_references
        planner, runtime = self.planner, self.planner.settings.runtime
        planner.budget.spend("judge", len(left))
        try:
            results = run_as_file(planner.rewrite(kept)[0].model, left, references, runtime=runtime)
        except (CaseError, RunFailed):
            self._as_file[self._unseen(kept)] = None
            return
        self.take_file(kept, results)

    def take_file(self, kept: Assignment, results: Sequence[Computed]) -> None:
        """Take the outputs of a plan's file on the held-out samples, if there are any."""
        if self.heldout.unseen:
            given = self.given_of(results)
            passed = not given.nonfinite and all(one.passed for one in given.scores)
            self._as_file[self._unseen(kept)] = passed if given.scores else None

    def filed(self, kept: Assignment) -> bool:
        """Return whether a plan's file was run on the present held-out samples, or refused."""
        return self._unseen(kept) in self._as_file

    def look_inside(self, kept: Assignment) -> None:
        """Look for harmful infinities in the mixed model of a plan, on the calibration samples."""
        if self.inside.known(kept) is None:
            self.planner.budget.spend("pass", len(self.planner.trials.samples))
            self.inside.guards(kept, self.planner.rewrite(kept)[0])

    def plan(self, kept: Assignment) -> PlanFile:
        """Return what distinguishes the file of a plan."""
        planner = self.planner
        return kept, planner.types_of(kept), planner.held_nodes - planner.choices

    def _unseen(self, kept: Assignment) -> _OnSamples:
        return self.plan(kept), self.heldout.left.ids

    def _seen(self, kept: Assignment) -> _OnSamples:
        return self.plan(kept), self.planner.trials.samples.ids

    def given_of(self, results: Sequence[Computed]) -> Given:
        """Return the result of given outputs of the present held-out samples, at least one."""
        left, references = self.heldout.left, self.heldout.left_references
        # At these limits an excess is the needed share of the largest value.
        share = Excess(Criterion(rel_max=1.0, agreement=0.0), totals(references))
        for reference, result in zip(references, results, strict=True):
            share.update(reference, result)
        own, trials = None, self.planner.trials.of(left, references)
        with suppress(CaseError):  # a few samples may be too few for a metric
            own = trials.excess_of(results) * trials.factor
        computed = [r for r in results if not isinstance(r, RunFailed)]
        failed = len(computed) < len(results)
        return Given(
            heldout=own,
            rel_max=share.final(),
            nonfinite=failed or any(map(has_new_nonfinite, references, computed)),
            scores=() if failed else self._scores(references, computed, left.labels),
        )

    def _scores(
        self,
        references: Sequence[Outputs],
        computed: Sequence[Outputs],
        labels: Sequence[Any] | None,
    ) -> tuple[TaskScore, ...]:
        """Return a plan's scores by the given metric, else by those of the recognised task."""
        case = self.planner.case
        name, drop = case.criterion.metric, case.criterion.metric_drop
        with suppress(CaseError):  # a few samples may be too few for a metric
            if case.metric is None or name in (None, AUTO):
                return task_scores(self.recognised, references, computed, labels)
            before, after = scores(name, case.metric, references, computed, labels)
            untested = bool(untested_task(case.criterion, case.metric, references, labels))
            passed = isfinite(after) and after >= before - drop
            rests, unit = support_of(case.criterion, references, labels)
            one = TaskScore(
                metric=name,
                outputs=tuple(references[0]),
                value=after,
                required=before - drop,
                passed=passed and not untested,
                untested=untested,
                evidence=rests,
                unit=unit,
            )
            return (one,)
        return ()
