"""The stages of a run in order: the table of contents of halfwise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from halfwise.case import Case, Chosen, Settings
from halfwise.emulation.budget import Budget
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.curve import MEASURED, TradeOff
from halfwise.fixing.depths import Depths
from halfwise.fixing.emulating import Emulation
from halfwise.fixing.evidence import Observed
from halfwise.fixing.filed import Decisions, Filed, sum_guards
from halfwise.fixing.fixed import Fixed, Passed, plan_of, search_of
from halfwise.fixing.following import followed_of
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.int8.placing import quantised_start
from halfwise.fixing.int8.rung import int8_plan_of, int8_rung
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, Variant
from halfwise.fixing.plan.result import MOST_FAILURES, SearchResult, clearly_cheaper
from halfwise.fixing.plan.rules import starting_plan
from halfwise.fixing.remarks import plan_remarks
from halfwise.fixing.repair.moves import (
    Choice,
    allowed_rules,
    choose_again,
    choose_repairs,
    named,
    needed_repairs,
)
from halfwise.fixing.rewrite import prepare
from halfwise.fixing.space import Int8Space, LowSpace, Space
from halfwise.fixing.stages import Stages
from halfwise.fixing.verdicts import Verdicts
from halfwise.graph.model import Network
from halfwise.judging.judge import Judged
from halfwise.judging.reference import check, find_unjudged, inspected_reference
from halfwise.progress import Watcher
from halfwise.records import (
    Curve,
    Guard,
    Remark,
    Repair,
    Run,
    Verdict,
)
from halfwise.reporting.remarks import remark
from halfwise.wording import count, verb

Choosing = Callable[[Space, HeldOut], Chosen]
"""Chooses a plan; it receives what measures plans on the samples of a case."""


def fix(
    case: Case,
    settings: Settings,
    watcher: Watcher,
    *,
    start_from: Network | Run | None = None,
    choosing: Choosing | None = None,
    repairs: Sequence[Repair] = (),
    quick: bool = False,
) -> Fixed:
    """Return the smallest plan found for `case`, its model, and its verdict on held-out samples.

    Args:
        case: The case.
        settings: Settings of the search.
        watcher: Receives progress.
        start_from: Plan to start from: a mixed model with the types in its file, or a run.
        choosing: Replaces the search; its result is the plan.
        repairs: Made without being proposed again; no others are looked for.
        quick: Whether nobody else uses the guards. Then tensor elements are visited on fewer
            samples if these show nothing, and everything low passes by a wide margin with nothing
            infinite inside; a remark says so.
    """
    quick = quick and settings.chosen is None and choosing is None and case.metric is None
    return _Fix(case, settings, watcher, start_from, choosing, repairs, quick=quick).run()


@dataclass
class _Fix:
    case: Case
    settings: Settings
    watcher: Watcher
    start_from: Network | Run | None
    choosing: Choosing | None
    repairs: Sequence[Repair]
    notes: tuple[Remark, ...] = ()
    undone: tuple[Remark, ...] = ()
    steps: tuple[Remark, ...] = ()
    late: int = 0
    quick: bool = False
    joined: bool = False
    unrepaired: Curve | None = None
    passed: Passed | None = None
    below: Fixed | None = None
    filed: Filed | None = None
    space: Space = field(init=False)
    heldout: HeldOut = field(init=False)
    verdicts: Verdicts = field(init=False)

    def __post_init__(self) -> None:
        self._stage = Stages(self.watcher, sum(1 for _ in self.case.network.nodes()))
        self.quantised = quantised_start(self.case.network, self.start_from)
        self.start_from = None if self.quantised else self.start_from

    @property
    def depths(self) -> Depths:
        return Depths(self.space, self.heldout)

    def run(self) -> Fixed:
        low = self._observed()
        with self._stage("baseline"):
            baseline = self.verdicts.baseline(self.depths)
        if not self.verdicts.passes_widely(self.depths, baseline):
            self._look_closer()
        may_repair = allowed_rules(low) and not self.quantised
        if self.repairs or (may_repair and not self.verdicts.suffices(baseline)):
            with self._stage("repair"):
                self._repair(low)
        if self.start_from is not None:
            with self._stage("emulate"):
                variant = self.space.variant
                network, repairs = variant.case.network, variant.case.repairs
                start = starting_plan(network, variant.roles, self.start_from, repairs)
                self.space, steps = self.space.starting(start)
                self.steps += steps
        if not self.settings.int8:
            self._choose()
        self._begin_curve()
        fixed = self._rounds(baseline)
        with_int8 = self.settings.int8 or (self.quantised is not None and self.choosing is None)
        goes_on = with_int8 and "interrupt" not in fixed.space.budget.ended_by
        goes_on = goes_on and (self.choosing is not None or stands(fixed))
        return self._with_int8(fixed) if goes_on else fixed

    def _observed(self) -> LowSpace:
        """Run the reference, observe it, and return its plans."""
        settings, watcher = self.settings, self.watcher
        with self._stage("reference"):
            check(self.case.network, runtime=settings.runtime)
            prepared = prepare(self.case, self.quantised, settings, watcher)
            self.case, self.notes = prepared.case, prepared.notes
            variant = Variant(self.case, settings)
            _ = variant.forced, variant.may_have_bf16  # or an option does not fit the model
            if self.start_from is not None:
                starting_plan(self.case.network, variant.roles, self.start_from)
            references, nonfinite = inspected_reference(
                prepared.original,
                self.case.heldout.with_progress(watcher.step),
                runtime=settings.runtime,
            )
        calibration = self.case.calibration
        work = settings.budget * len(calibration)
        budget = Budget(settings.time_budget, work=work, told=watcher.left)
        observed = Observed(budget, watcher)
        with self._stage("observe"):
            evidence = observed.look(variant, calibration, first=self.quick)
        with self._stage("emulate"):
            case = self.case
            factor = 1.0 if case.metric else settings.margin
            searched = prepared.searched or evidence.references
            bench: Bench[Plan] = Bench(
                Emulation(observed),
                calibration,
                searched,
                Tolerance(case.criterion, case.metric, factor),
                lambda: budget.spend("trial"),
            )
            low = LowSpace.of(variant, bench, observed, budget, watcher)
            low = replace(low, chosen=settings.chosen)
            self.heldout = HeldOut(case, case.heldout, references, searched, watcher)
            self.verdicts = Verdicts(nonfinite, watcher)
            self.space = low
            low.survey(low.islands)
        return low

    def _with_int8(self, below: Fixed) -> Fixed:
        """Return the plan with INT8 added if INT8 gains anything, else the passing plan itself."""
        start = self.start_from.plan if isinstance(self.start_from, Run) else None
        is_new = self.choosing is None
        rung = int8_rung(below, self._stage, self.watcher, self.quantised, start, is_new=is_new)
        if isinstance(rung, Fixed):
            return rung
        self.below, self.unrepaired, self.passed, self.late = below, None, None, 0
        self.space, self.steps = rung
        if self.filed is not None:
            self.filed = replace(self.filed, space=self.space)
            self.space.bench.demand(self.filed)
        remarks = rung[0].quantisation.remarks
        with self._stage("baseline"):
            baseline = self.verdicts.baseline(self.depths)
        self._choose()
        self._begin_curve()
        low = self._rounds(baseline)
        best = low if self.choosing or low.improves(below) else below.telling(*remarks)
        took = self._stage.seconds
        return replace(best, rungs=(below, low), stage_seconds=took, all_int8=baseline)

    def _choose(self) -> None:
        """Choose a plan of the last type, if there is one; the plans of earlier types are known."""
        if self.choosing is not None:
            with self._stage("curve"):
                chosen = self.choosing(self.space, self.heldout)
            self.space = replace(self.space, chosen=chosen)

    def _begin_curve(self) -> None:
        if self.below is None and (trade_off := TradeOff(self.depths)).begins:
            with self._stage("curve"):
                self.space = replace(self.space, serving=trade_off.begin())

    def _look_closer(self) -> None:
        if self.space.evidence.closer is not None:
            with self._stage("observe"):
                self.space.observed.look_closer(self.space.variant)

    # --- repairs -------------------------------------------------------------------------------

    def _repair(self, low: LowSpace) -> None:
        """Continue with the repaired network if repairs are worth making."""
        if self.repairs:
            self.space = replace(low.repaired(self.repairs), chosen=low.chosen)
            self.verdicts.baseline(self.depths)
        else:
            self._take(choose_repairs(low, self.heldout))

    def _take(self, chosen: Choice) -> None:
        """Continue with the chosen repairs."""
        self.undone, self.joined = chosen.remarks, False
        assert isinstance(self.space, LowSpace)
        if chosen.space is not self.space:
            self.unrepaired = self._sketched(self.space.original or self.space)
            self.space, self.steps = chosen.space, ()
            # If everything low passes now, it is the plan, and this is its verdict.
            self.verdicts.baseline(self.depths)

    def _sketched(self, original: LowSpace) -> Curve:
        return TradeOff(Depths(original, self.heldout)).sketched()

    def _joined(self, result: SearchResult) -> SearchResult:
        """Return a plan after samples joined, with other repairs if these do more.

        Repairs the user gave stay; all repairs stay if the search starts from a plan.
        """
        chosen, self.joined = None, True
        if not self.repairs and self.start_from is None and isinstance(self.space, LowSpace):
            with self._stage("repair"):
                chosen = choose_again(self.space, self.heldout)
                if chosen is not None:
                    self._take(chosen)
        previous = result.kept if chosen is None else NONE
        return self._without_spare(self._search(previous, certify=False))

    def _without_spare(self, result: SearchResult) -> SearchResult:
        """Undo repairs that the plan does not need; undo all if they make it no cheaper."""
        space = self.space
        if not self.unrepaired or not isinstance(space, LowSpace) or space.original is None:
            return result
        tried = space.bench.evaluations
        with self._stage("repair"):
            needed = needed_repairs(space, result, self.heldout, joined=self.joined)
            if space.bench.evaluations > tried:
                self.unrepaired = self._sketched(space.original)
        self.undone += needed.remarks
        is_same = needed.space.variant is space.variant
        self.space = needed.space  # records of repairs may be renumbered
        if is_same:
            return result
        self.steps = needed.steps
        self.unrepaired = self.unrepaired if needed.space.repairs else None
        return self._search(needed.kept, certify=False)

    # --- rounds --------------------------------------------------------------------------------

    def _rounds(self, baseline: Verdict) -> Fixed:
        # Held-out samples may still reject this plan: skip the certificate.
        result, certify = self._without_spare(self._search(NONE, certify=False)), False
        while True:
            sound = self._sound(result)
            result, certify = sound, certify and sound is result
            plan = self._settled(result)
            judged = self._judged(plan)
            if result.passed and judged.verdict.passed:
                bare, undone = self.unrepaired, self.undone
                self.passed = Passed(self.space, result, plan, bare, undone)
            if self._may_go_on(judged, result):
                self._join(judged)
                result, certify = self._joined(result), False
                continue
            if certify or result.exhausted or self._is_futile or not result.passed:
                break
            reduced, certify = result.kept, True
            result = self._search(reduced, certify=True)
            if result.kept == reduced:
                break
        result, plan, judged = self._without_idle_repairs(result, plan, judged)
        passed = result.passed
        if self.passed is not None and not judged.verdict.passed:
            result, plan, passed = self._returned(result), self.passed.plan, False
            judged = self._judged(plan)
        if passed and judged.verdict.sums == "fp32":
            result, plan, judged = self._summed(result, plan, judged)
        verdict = judged.verdict
        if not passed and verdict.passed:
            with self._stage("judge"):
                written, _ = self.verdicts.write(plan)
                verdict = self.verdicts.searched_too(self.space, verdict, written)
        return self._fixed(result, plan, verdict, baseline)

    def _without_idle_repairs(
        self, result: SearchResult, plan: Plan, judged: Judged
    ) -> tuple[SearchResult, Plan, Judged]:
        """Return the original model where everything is kept: repairs do nothing for it."""
        space = self.space
        original = space.original if isinstance(space, LowSpace) else None
        if original is None or self.repairs or not original.is_safe:
            return result, plan, judged
        if not result.passed or result.kept < space.choices:
            return result, plan, judged
        self.undone += tuple(Remark(kind="repair-spare", names=named(r)) for r in space.repairs)
        original.observed.catch_up(original.variant, original.bench.samples)
        self.space, self.unrepaired = original, None
        result = replace(result, kept=original.choices, excess_without={}, nonfinite_without=NONE)
        plan = original.plan(result.kept)
        return result, plan, self._judged(plan)

    @property
    def _is_futile(self) -> bool:
        """Whether a search ended early because no plan that passes gains."""
        return any(step.kind == "futile" for step in self.steps)

    def _search(self, previous: Nodes, *, certify: bool) -> SearchResult:
        self.late += self.space.budget.is_spent
        gives_up = self.late >= MOST_FAILURES
        with self._stage("certify" if certify else "search"):
            result = self.space.find(previous, certify=certify, steps=self.steps, gives_up=gives_up)
        self.steps = result.steps
        return result

    def _settled(self, result: SearchResult) -> Plan:
        with self._stage("judge"), self.space.budget.counted():
            return (
                self.space.settled(result.kept) if result.passed else self.space.plan(result.kept)
            )

    def _judged(self, plan: Plan) -> Judged:
        with self._stage("judge"), self.space.budget.counted():
            return self.verdicts.judge(self.depths, plan)

    def _sound(self, result: SearchResult) -> SearchResult:
        """Return a plan that holds on the calibration samples beyond the emulation of the search.

        If one does not, more nodes are held, and the search goes on; unless a plan that is known
        to hold costs clearly less than with them. One chosen by the user stays as it is.
        """
        while result.passed and self.late < MOST_FAILURES:
            plan = self._settled(result)
            guards = self._against(plan)
            if self.space.chosen is not None or not guards:
                return result
            infinite = all(guard.kind == "infinite" for guard in guards)
            with_them = result.kept.union(*map(self.space.variant.holdable, guards))
            other = self._cheaper(with_them) if infinite else None
            if other is not None:
                self.watcher.note(
                    f"infinite inside; {count(len(other), 'node')} in FP32 cost less than what it "
                    "takes"
                )
                return self._sounder(result, other)
            self.space = self.space.holding(guards)
            many, held = len(guards), count(len(self.space.held_nodes), "node")
            why = f"{count(many, 'tensor')} {verb(many, 'is', 'are')} infinite inside"
            if not infinite:
                changes = f"{count(many, 'decision')} {verb(many, 'changes', 'change')}"
                why = f"{changes} without rounding between nodes"
            self.watcher.note(f"the outputs pass, but {why}; {held} held in FP32 in total")
            self._look_closer()
            result = self._search(result.kept, certify=False)
        return result

    def _against(self, plan: Plan) -> Sequence[Guard]:
        """Return what a plan must keep so that it holds beyond the emulation of the search."""
        with self._stage("judge"), self.space.budget.counted():
            written, _ = self.verdicts.write(plan)
            infinite = self.depths.inside(plan, written).guards
            if self.space.chosen is not None:
                return ()
            return infinite or Decisions(self.space).guards(plan, written)

    def _cheaper(self, kept: Nodes) -> Nodes | None:
        """Return the cheapest known plan that passes, holds, and costs clearly less than `kept`."""
        space, depths = self.space, self.depths
        plans = [p for p, tried in space.tried().items() if tried.passed and space.held_nodes <= p]
        plans = clearly_cheaper(plans, space.cost, kept, space.choices)
        for plan in sorted(plans, key=lambda p: (space.cost(p) or inf, len(p)))[:MEASURED]:
            if space.evaluate(plan).passed and not depths.inside(space.plan(plan)).guards:
                return plan
        return None

    def _sounder(self, result: SearchResult, other: Nodes) -> SearchResult:
        note = Remark(kind="sounder", numbers={"kept": len(result.kept)})
        self.steps += (note,)
        return replace(result, kept=other, minimal=False, excess_without={}, nonfinite_without=NONE)

    def _join(self, judged: Judged) -> None:
        """Let held-out samples that fail join the search."""
        with self._stage("observe"), self.space.budget.counted():
            moved, references = self.heldout.join(judged, self.space)
            if judged.as_file:
                more = self.filed
                samples = moved if more is None else more.samples + moved
                every = (*(more.references if more else ()), *references)
                self.filed = Filed(self.space, samples, every)
                self.space.bench.demand(self.filed)

    def _may_go_on(self, judged: Judged, result: SearchResult) -> bool:
        """Return whether a failed verdict can improve: samples and plans are left.

        Without budget, the larger plans that passed during the search remain.
        """
        goes_on = result.passed and self.space.searches and self.late < MOST_FAILURES
        return goes_on and self.heldout.may_join(judged)

    def _summed(
        self, result: SearchResult, plan: Plan, judged: Judged
    ) -> tuple[SearchResult, Plan, Judged]:
        """Return a plan that hardly costs more and passes with sums in FP16 too, or this one."""
        with self._stage("search"):
            guards = sum_guards(self.space, result.kept)
        if guards:
            kept = result.kept.union(*(guard.nodes for guard in guards))
            other = replace(result, kept=kept, minimal=False)
            typed = self._settled(other)
            if not self._against(typed):
                again = self._judged(typed)
                if again.verdict.passed and again.verdict.sums != "fp32":
                    self.space = self.space.holding(guards)
                    self.steps += (Remark(kind="summing", numbers={"kept": len(guards)}),)
                    return other, typed, again
        return result, plan, judged

    def _returned(self, failed: SearchResult) -> SearchResult:
        """Go back to the plan that passed on held-out samples if the new one fails there."""
        passed = self.passed
        assert passed is not None
        self.space, self.unrepaired = passed.space, passed.unrepaired
        self.undone, self.joined = tuple(passed.undone), True
        space, plan = passed.space, passed.plan
        space.observed.catch_up(space.variant, space.bench.samples)
        space.bench.once(replace(plan, bf16=NONE, tf32=False), "types", lambda: plan)
        self.depths.inside(plan)  # what may be infinite inside it, on samples that joined too
        note = Remark(kind="refused", numbers={"elements": len(failed.kept)})
        self.watcher.note(remark(note))
        self.steps = (*failed.steps, note)
        return passed.result

    def _fixed(
        self, result: SearchResult, assigned: Plan, verdict: Verdict, baseline: Verdict
    ) -> Fixed:
        below, space = self.below, self.space
        rewritten, placed = self.verdicts.write(assigned)
        follow = space, result, self.watcher, self._stage
        path, followed = (below.growth, below.followed) if below else followed_of(*follow)
        with self._stage("curve"):
            curve = TradeOff(self.depths).curve(result)
            curve = curve.model_copy(update={"unrepaired": self.unrepaired})
        if isinstance(space, LowSpace):
            remarks = [*self.notes, *self.undone]
            remarks += plan_remarks(space, result, followed, baseline)
            plan = plan_of(space, assigned, result, placed, rewritten.casts, remarks)
        else:
            assert isinstance(space, Int8Space)
            assert below is not None
            plan = int8_plan_of(below.plan, space, assigned, result, placed, rewritten.casts)
        bench = space.bench
        bench.release()  # after the remarks, which may try plans
        return Fixed(
            rewritten=rewritten,
            observations=space.evidence.observations,
            guards=(*(below.guards if below else ()), *space.guards),
            growth=path,
            followed=followed,
            plan=plan,
            search=search_of(space, self.heldout, result, self.steps),
            baseline=below.baseline if below else baseline,
            all_int8=baseline if below else None,
            verdict=verdict,
            references=bench.references,
            space=space,
            heldout=self.heldout,
            assigned=assigned,
            result=result,
            curve=curve,
            evaluations=bench.evaluations,
            stage_seconds=self._stage.seconds,
        )


def stands(fixed: Fixed) -> bool:
    """Return whether a plan passed on real data that test it, as strictly as the user demands.

    Args:
        fixed: Result of the search.

    Raises:
        RunFailed: the model does not run on a sample.
    """
    heldout, variant = fixed.heldout, fixed.space.variant
    case, settings = variant.case, variant.settings
    if not (fixed.result.passed and fixed.verdict.passed and (case.real or settings.allow_random)):
        return False
    judged = heldout.rest, heldout.rest_references
    unjudged = find_unjudged(case, fixed.rewritten.model, *judged, runtime=settings.runtime)
    return settings.allow_unjudged or not unjudged
