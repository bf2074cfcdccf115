"""Whether a passing plan is also sound inside, and passes without rounding each value."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, takewhile
from math import inf

import onnx_ir as ir

from halfwise.case import Case, Samples, Settings
from halfwise.emulation.accumulate import has_sum
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import runtime_version
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.attribute.evidence import Band, graded
from halfwise.fixing.plan.found import Found, clearly_cheaper
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import MOST_TOLD, PlanFile, Scoring
from halfwise.graph.casts import Rewritten
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.sensitivity import decisions, first_of, leading_to
from halfwise.judging.deciding import FEW
from halfwise.judging.inside import Emulated, emulate
from halfwise.judging.judge import (
    Judged,
    LowSums,
    flips,
    judge_emulated,
    judge_outputs,
    lowest_sums,
    run_as_file,
)
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import Failure, FileRun, Flip, Guard, NodeName, Remark, TensorName, Verdict
from halfwise.reporting.remarks import under, with_failures
from halfwise.wording import count, verb

Assignment = frozenset[NodeName]

LOOKED_AT = 4
"""Known plans examined in place of one that is infinite inside."""

DEARER = 1.02
"""Highest cost of a plan that also passes with sums in FP16, over one that does not."""


class Decisions:
    """Runs mixed models as ONNX Runtime runs their files, and keeps what leads to decisions."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._settings = planner.settings
        self._hopeless = False

    @cached_property
    def _decisions(self) -> dict[NodeName, ir.Node]:
        return {node_name(n): n for n in decisions(self.planner.case.network)}

    def guards(self, kept: Assignment, rewritten: Rewritten) -> tuple[Guard, ...]:
        """Return what to keep so that the file passes on the calibration samples too.

        Empty if no node makes a decision, if the file passes or cannot run, or if keeping
        everything that leads to decisions does not make it pass.
        """
        if not self._decisions or self._hopeless:
            return ()
        trials = self.planner.trials
        try:
            results = self._run(rewritten, trials.samples, trials.references)
        except (CaseError, RunFailed):
            return ()
        excess = trials.excess_of(results) * trials.factor
        if excess <= 1:
            return ()
        worst = self._worst(trials.samples, trials.references, results)
        decisions = self._decisions.values()
        found = _flips(rewritten.model, decisions, trials.samples.select(worst), self._settings)
        nodes = self._repair(kept, found, worst)
        self._hopeless = not nodes
        return tuple(self._guards(found, nodes, excess))

    def judged(
        self,
        judged: Judged,
        rewritten: Rewritten,
        samples: Samples,
        references: Sequence[Outputs],
        ran: Callable[[Sequence[Outputs]], None],
    ) -> Judged:
        """Add the file's result to a verdict, see `judged_as_file`.

        It says whether the search has to run files, as no decision explains the failure.
        """
        case, trials = self.planner.case, self.planner.trials
        seen = (LowSums(trials.samples, trials.references),)
        given = rewritten.model, case, self._settings, samples, references
        found = judged_as_file(judged, *given, ran, seen, self.planner.budget)
        run = found.verdict.as_file
        if run is None or run.passed is not False:
            return found
        return replace(found, as_file=self._hopeless or not run.flips)

    def _run(
        self, rewritten: Rewritten, samples: Samples, references: Sequence[Outputs]
    ) -> list[Outputs]:
        return run_as_file(rewritten.model, samples, references, runtime=self._settings.runtime)

    def _worst(
        self, samples: Samples, references: Sequence[Outputs], results: Sequence[Outputs]
    ) -> tuple[int, ...]:
        case = self.planner.case
        judged = judge_outputs(results, samples, references, case.criterion, case.metric)
        return judged.failing[:FEW]

    def _repair(self, kept: Assignment, found: Sequence[Flip], worst: Sequence[int]) -> Assignment:
        """Return a few nodes that make the plan hold both ways; empty if nothing helps."""
        planner, trials = self.planner, self.planner.trials
        first = first_of(self._decisions[f.node] for f in found)
        near = dict.fromkeys(n for d in first for n in leading_to(d, planner.roles))
        chain = [n for n in near if n not in kept and n not in planner.forced.lowered]
        unrounded = planner.engine_trials("all") if chain else None
        samples = trials.samples.select(worst)
        references = [trials.references[i] for i in worst]

        def holds(nodes: Sequence[NodeName]) -> bool:
            plan = kept | frozenset(nodes)
            if unrounded is None or not trials.evaluate(plan).passed:
                return False
            if not unrounded.evaluate(plan).passed:
                return False
            with suppress(CaseError, RunFailed):
                results = self._run(planner.rewrite(plan)[0], samples, references)
                case = planner.case
                judged = judge_outputs(results, samples, references, case.criterion, case.metric)
                return judged.verdict.passed
            return False

        return _narrowed(planner.budget, chain, holds)

    def _guards(self, found: Sequence[Flip], nodes: Assignment, excess: float) -> Iterator[Guard]:
        planner = self.planner
        by_name = {f.node: f for f in found}
        for decision in first_of(self._decisions[f.node] for f in found):
            own = [n for n in leading_to(decision, planner.roles) if n in nodes]
            if not own:
                continue
            flip = by_name[node_name(decision)]
            source = decision.inputs[0]
            yield Guard(
                kind="decision",
                node=flip.node,
                tensor=None if source is None else tensor_name(source),
                names={"op": flip.op},
                numbers={"elements": flip.elements, "size": flip.of, "value": excess},
                fix="Compute the deciding values in integers, or look them up in a table.",
                nodes=tuple(own),
                severity=graded(Band.INEXACT, excess),
            )


def _ignore(_results: Sequence[Outputs]) -> None:
    """Do nothing with the outputs of a file."""


def judged_as_file(
    judged: Judged,
    candidate: ir.Model,
    case: Case,
    settings: Settings,
    samples: Samples,
    references: Sequence[Outputs],
    ran: Callable[[Sequence[Outputs]], None] = _ignore,
    seen: Sequence[LowSums] = (),
    budget: Budget | None = None,
) -> Judged:
    """Add the result of the candidate's file to a verdict; it fails if the file fails.

    And whether a file that passes also does with sums in FP16. A verdict that failed already is
    returned without a run.

    Args:
        judged: Verdict on the candidate's emulation.
        candidate: A typed model with the names of the case.
        case: Reference, criterion and metric.
        settings: Where to run, and the format of sums.
        samples: The judged samples.
        references: Reference outputs of each sample.
        ran: Receives the file's outputs of each sample.
        seen: Other samples on which it has to hold with sums in FP16.
        budget: Pays for the runs with sums in FP16; only Ctrl-C ends them without one.
    """
    verdict, runner = judged.verdict, f"ONNX Runtime {runtime_version()}"
    if not verdict.passed:
        return judged
    try:
        results = run_as_file(candidate, samples, references, runtime=settings.runtime)
    except (CaseError, RunFailed) as error:
        run = FileRun(runner=runner, not_run=error.message, outputs={})
        passes = (LowSums(samples, references, verdict.excesses), *seen)
        sums = lowest_sums(candidate, passes, case, settings, budget or Budget())
        known = {"as_file": run, "sums": sums}
        return replace(judged, verdict=verdict.model_copy(update=known))
    ran(results)
    own = judge_outputs(results, samples, references, case.criterion, case.metric)
    run = FileRun(
        runner=runner,
        passed=own.verdict.passed,
        outputs=own.verdict.outputs,
        metric=own.verdict.metric,
    )
    if own.verdict.passed:
        passes = (LowSums(samples, references, verdict.excesses, results), *seen)
        sums = lowest_sums(candidate, passes, case, settings, budget or Budget())
        known = {"as_file": run, "sums": sums}
        return replace(judged, verdict=verdict.model_copy(update=known))
    few = samples.select(own.failing[:FEW])
    found = _flips(candidate, decisions(case.network), few, settings)
    update = {
        "as_file": run.model_copy(update={"flips": found}),
        "failure_bound": own.verdict.failure_bound,
    }
    told = (*under("file", "", own.verdict.failures), *map(_flip_failure, found[:MOST_TOLD]))
    verdict = with_failures(verdict.model_copy(update=update), told)
    return replace(judged, verdict=verdict, failing=own.failing)


def _flips(
    model: ir.Model, decisions: Iterable[ir.Node], samples: Samples, settings: Settings
) -> tuple[Flip, ...]:
    with suppress(RunFailed):
        return flips(
            model,
            list(decisions),
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
    return ()


def _narrowed(
    budget: Budget, chain: Sequence[NodeName], holds: Callable[[Sequence[NodeName]], bool]
) -> Assignment:
    """Return few nodes of a chain that hold; empty if all of it does not."""
    if not chain or not holds(chain):
        return frozenset()
    few = list(chain)

    def narrow() -> None:
        for fewer in _fewer(chain, holds):
            few[:] = fewer

    budget.within("search", narrow, None)
    return frozenset(few)


def _fewer(
    chain: Sequence[NodeName], holds: Callable[[Sequence[NodeName]], bool]
) -> Iterator[list[NodeName]]:
    """Yield ever fewer nodes of a chain that holds: the nearest ones, then each omitted in turn."""
    few, length = list(chain), 1
    while length < len(chain):
        if holds(chain[:length]):
            few = list(chain[:length])
            yield few
            break
        length *= 2
    for node in reversed(few):
        without = [n for n in few if n != node]
        if without and holds(without):
            few = without
            yield few


def _flip_failure(flip: Flip) -> Failure:
    names, numbers = {"node": flip.node, "op": flip.op}, {"elements": flip.elements}
    return Failure(kind="flip", names=names, numbers=numbers | {"size": flip.of})


def _of_sum(node: ir.Node, low: str) -> Guard:
    name = node_name(node)
    return Guard(
        kind="sum",
        node=name,
        tensor=None,
        names={"low": low, "inside": name, "op": node.op_type},
        fix="Accumulate in FP32.",
        nodes=(name,),
        severity=float(Band.POSSIBLE),
    )


class Holding:
    """Checks the plans of one run beyond the emulation of their search."""

    def __init__(self, scoring: Scoring) -> None:
        """Take what measures plans."""
        self._planner, self._scoring = scoring.planner, scoring
        self._inside, self._decisions = scoring.inside, Decisions(scoring.planner)
        self._instead: dict[tuple[Assignment, int], Assignment] = {}

    def marked(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Verdict:
        """Mark the harmless infinities in a verdict, whether it passed or failed."""
        return self._inside.marked(judged, rewritten, samples)

    def holds(self, found: Found, rewritten: Rewritten) -> bool:
        """Return whether a plan holds on the calibration samples; if not, hold more nodes.

        None are held if a known plan that holds costs clearly less than with them: `sound` then
        returns that one.

        Plans that fail are not checked; a plan chosen by the user stays as it is.
        """
        planner = self._planner
        if not found.passed:
            return True
        infinite = self._inside.guards(found.kept, rewritten)
        if planner.settings.chosen is not None:
            return True
        guards = infinite or self._decisions.guards(found.kept, rewritten)
        if not guards:
            return True
        with_them = found.kept.union(*map(planner.holdable, guards))
        if infinite and (other := self._cheaper(with_them)) is not None:
            self._instead[found.kept, len(planner.trials.samples)] = other
            planner.watcher.note(
                f"infinite inside; {count(len(other), 'node')} in FP32 cost less than what it takes"
            )
            return False
        planner.hold(guards)
        many = len(guards)
        inside = f"{count(many, 'tensor')} {verb(many, 'is', 'are')} infinite inside"
        decided = f"{count(many, 'decision')} {verb(many, 'changes', 'change')}"
        why = inside if infinite else f"{decided} without rounding between nodes"
        planner.watcher.note(
            f"the outputs pass, but {why}; "
            f"{count(len(planner.held_nodes), 'node')} held in FP32 in total"
        )
        return False

    def sum_guards(self, kept: Assignment) -> tuple[Guard, ...]:
        """Return what to keep too so that a plan passes on the calibration with sums in FP16.

        The cheapest sums first, as long as the plan costs at most `DEARER` times as much, and less
        than everything in FP32. Empty if that does not help, or if costs are unknown or nothing is
        searched.
        """
        planner = self._planner
        cost, fp32 = planner.price(kept), planner.price(planner.choices)
        if cost is None or fp32 is None or not planner.settings.searches:
            return ()
        free = planner.choices - kept - frozenset(planner.forced.lowered)
        nodes = {node_name(n): n for n in planner.case.network.nodes() if has_sum(n)}

        def cheap(plan: Assignment) -> bool:
            price = planner.price(plan)
            return price is not None and price <= DEARER * cost and price < fp32

        cheapest = sorted(free & nodes.keys(), key=lambda n: planner.price(kept | {n}) or inf)
        plans = accumulate(cheapest, lambda plan, n: plan | {n}, initial=kept)
        chain = cheapest[: max(0, sum(1 for _ in takewhile(cheap, plans)) - 1)]
        seen = (LowSums(planner.trials.samples, planner.trials.references),)

        def holds(more: Sequence[NodeName]) -> bool:
            plan = kept.union(more)
            if not (cheap(plan) and planner.trials.evaluate(plan).passed):
                return False
            given = planner.rewrite(plan)[0].model, seen, planner.case, planner.settings
            return lowest_sums(*given, planner.budget) != "fp32"

        more = _narrowed(planner.budget, chain, holds)
        return tuple(_of_sum(nodes[n], planner.settings.fmt.name) for n in chain if n in more)

    def _cheaper(self, kept: Assignment) -> Assignment | None:
        """Return the cheapest known plan that passes, holds, and costs clearly less than `kept`."""
        planner = self._planner
        plans = [p for p, tried in planner.trials.tried.items() if tried.passed]
        plans = [p for p in plans if planner.held_nodes <= p]
        plans = clearly_cheaper(plans, planner.price, kept, planner.roles.computing)
        for plan in sorted(plans, key=lambda p: (planner.price(p) or inf, len(p)))[:LOOKED_AT]:
            passes = planner.trials.evaluate(plan).passed
            if passes and not self._inside.guards(plan, planner.rewrite(plan)[0]):
                return plan
        return None

    def sound(self, found: Found) -> Found:
        """Return what the search found, or the plan that `holds` found to take its place."""
        other = self._instead.get((found.kept, len(self._planner.trials.samples)))
        if other is None:
            return found
        note = Remark(kind="sounder", numbers={"kept": len(found.kept)})
        return replace(
            found,
            kept=other,
            minimal=False,
            excess_without={},
            nonfinite_without=frozenset(),
            steps=(*found.steps, note),
        )

    def judged(
        self,
        judged: Judged,
        kept: Assignment,
        rewritten: Rewritten,
        samples: Samples,
        references: Sequence[Outputs],
    ) -> Judged:
        """Add what held-out samples show of both to a plan's verdict; each may fail it."""
        judged = self._inside.judged(judged, kept, rewritten, samples)
        # A plan that keeps nothing and passes is compared with no other.
        ran = partial(self._scoring.take_file, kept) if kept else _ignore
        return self._decisions.judged(judged, rewritten, samples, references, ran)


BASELINE_INSPECTED = 4
"""Samples on which the all-low model is searched for non-finite values inside."""

WIDE = 0.5
"""Everything low passes by a wide margin up to this fraction of the tolerance."""

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
