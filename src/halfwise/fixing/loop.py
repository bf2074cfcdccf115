"""The stages of a run in order: the table of contents of halfwise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from halfwise.case import Case, Chosen, Settings
from halfwise.fixing.curve import TradeOff
from halfwise.fixing.fixed import Fixed, Passed
from halfwise.fixing.following import followed_of
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.holding import Holding
from halfwise.fixing.int8.given import given_start
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.int8.recording import int8_plan_of
from halfwise.fixing.int8.rung import int8_rung
from halfwise.fixing.plan.found import Found
from halfwise.fixing.plan.rules import custom_roles, starting_plan
from halfwise.fixing.plan_judge import PlanJudge
from halfwise.fixing.planner import Planner
from halfwise.fixing.preparing import prepare
from halfwise.fixing.recording import plan_of, search_of
from halfwise.fixing.remarks import plan_remarks
from halfwise.fixing.repair.choice import Choice, asked_rules, choose_repairs, with_repairs
from halfwise.fixing.repair.needed import catch_up, choose_again, needed_repairs
from halfwise.fixing.scoring import Scoring
from halfwise.fixing.stages import Stages
from halfwise.fixing.standing import stands
from halfwise.graph.casts import Rewritten, low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.judging.judge import Judged
from halfwise.judging.reference import check, inspected_reference
from halfwise.progress import Watcher
from halfwise.records import Curve, NodeName, Remark, Repair, Run, Verdict
from halfwise.reporting.remarks import remark

Assignment = frozenset[NodeName]

LATE = 8
"""Plans tried after the budget is spent, because one failed; the last is all FP32."""


Choosing = Callable[[Planner, HeldOut], Chosen]
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
        choosing: Replaces the search; its result becomes `settings.chosen`.
        repairs: Made without being proposed again; no others are looked for.
        quick: Whether nobody else uses the guards. Then tensor elements are visited on fewer
            samples if these show nothing, and everything low passes by a wide margin with nothing
            infinite inside; a remark says so.
    """
    quick = quick and settings.searches and choosing is None and case.metric is None
    return _Fix(case, settings, watcher, start_from, choosing, repairs, quick=quick).run()


@dataclass
class _Fix:
    case: Case
    settings: Settings
    watcher: Watcher
    start_from: Network | Run | None
    choosing: Choosing | None
    repairs: Sequence[Repair]
    notes: list[Remark] = field(default_factory=list)
    undone: list[Remark] = field(default_factory=list)
    late: int = 0
    quick: bool = False
    unrepaired: Curve | None = None
    passed: Passed | None = None
    below: Fixed | None = None

    def __post_init__(self) -> None:
        self._stage = Stages(self.watcher, sum(1 for _ in self.case.network.nodes()))
        self.given = given_start(self.case.network, self.start_from)
        self.start_from = None if self.given else self.start_from

    def run(self) -> Fixed:
        settings = self.settings
        with self._stage("reference"):
            check(self.case.network, runtime=settings.runtime)
            prepared = prepare(self.case, self.given, settings, self.watcher)
            self.case, self.notes = prepared.case, [*prepared.notes]
            network = self.case.network
            custom = custom_roles(network, settings.rules, settings.fmt)
            roles = roles_of(network, low_type(settings.fmt), custom=custom)
            planner = Planner(self.case, settings, roles, self.watcher)
            if self.start_from is not None:
                starting_plan(network, roles, self.start_from)  # or it names something unusable
            references, self.nonfinite = inspected_reference(
                prepared.original,
                self.case.heldout.with_progress(self.watcher.step),
                runtime=settings.runtime,
            )
            self.heldout = HeldOut(planner, self.case.heldout, references, self.watcher)
            self._plan_with(planner)
        with self._stage("observe"):
            evidence = self.planner.gather(self.case.calibration, first=self.quick)
            self.planner.evidence = evidence
        with self._stage("emulate"):
            self.planner.begin(evidence, prepared.searched)
        with self._stage("baseline"):
            baseline = self.judge.baseline(self.holding)
        if not self.judge.passes_widely(baseline):
            self._look_closer()
        self.original = self.planner
        asked = asked_rules(settings) and not self.given
        if self.repairs or (asked and not self.judge.suffices(baseline)):
            with self._stage("repair"):
                self._repair()
        if self.start_from is not None:
            with self._stage("emulate"):
                case, roles, start = self.case, self.planner.roles, self.start_from
                self.planner.start_from(starting_plan(case.network, roles, start, case.repairs))
        if not settings.int8:
            self._choose()
        if self.trade_off.begins:
            with self._stage("curve"):
                self.trade_off.begin()
        fixed = self._rounds(baseline)
        asked = settings.int8 or (self.given is not None and self.choosing is None)
        goes_on = asked and (self.choosing is not None or stands(fixed))
        return self._with_int8(fixed) if goes_on else fixed

    def _with_int8(self, below: Fixed) -> Fixed:
        """Return the plan with INT8 added if INT8 gains anything, else the passing plan itself."""
        given = self.given, self.start_from.plan if isinstance(self.start_from, Run) else None
        is_new = self.choosing is None
        planner = int8_rung(below, self._stage, self.watcher, *given, is_new=is_new)
        if isinstance(planner, Fixed):
            return planner
        self.below, self.unrepaired, self.passed, self.late = below, None, None, 0
        self._plan_with(planner)
        with self._stage("baseline"):
            baseline = self.judge.baseline(self.holding)
        self._choose()
        found = self._rounds(baseline)
        best = found if self.choosing or found.improves(below) else below.telling(*planner.remarks)
        took = self._stage.seconds
        return replace(best, rungs=(below, found), stage_seconds=took, all_int8=baseline)

    def _choose(self) -> None:
        """Choose a plan of the last type, if there is one; the plans of earlier types are known."""
        if self.choosing is not None:
            with self._stage("curve"):
                chosen = self.choosing(self.planner, self.heldout)
            self.settings = self.planner.settings = replace(self.planner.settings, chosen=chosen)

    def _look_closer(self) -> None:
        closer = self.planner.evidence.closer
        if closer is not None:
            with self._stage("observe"):
                self.planner.learn(closer())

    def _plan_with(self, planner: Planner) -> None:
        """Search with a planner, and judge the result."""
        self.case, self.planner = planner.case, planner
        self.heldout = self.heldout.over(planner)
        self.scoring = Scoring(planner, self.heldout)
        self.judge = PlanJudge(self.scoring, self.nonfinite, self.watcher)
        self.holding = Holding(self.scoring)
        self.trade_off = TradeOff(self.scoring)

    def _repair(self) -> None:
        """Continue with the repaired network if repairs are worth making."""
        if self.repairs:
            self._plan_with(with_repairs(self.planner, self.repairs, self.watcher))
            self.judge.baseline(self.holding)
            return
        self._take(choose_repairs(self.planner, self.heldout, self.watcher))

    def _take(self, chosen: Choice) -> None:
        """Continue with the chosen repairs."""
        self.undone = [*chosen.remarks]
        if chosen.planner is not self.planner:
            self.unrepaired = self._sketched()
            self.planner.trials.runner.release()
            self._plan_with(chosen.planner)
            # If everything low passes now, it is the plan, and this is its verdict.
            self.judge.baseline(self.holding)

    def _sketched(self) -> Curve:
        return TradeOff(Scoring(self.original, self.heldout)).sketched()

    def _joined(self, found: Found) -> Found:
        """Return a plan after samples joined, with other repairs if these do more.

        Repairs the user gave stay; all repairs stay if the search starts from a plan.
        """
        chosen = None
        if not self.repairs and self.start_from is None and self.below is None:
            with self._stage("repair"):
                chosen = choose_again(self.original, self.planner, self.heldout, self.watcher)
                if chosen is not None:
                    self._take(chosen)
        previous = found.kept if chosen is None else frozenset[NodeName]()
        return self._without_spare(self._search(previous, certify=False))

    def _without_spare(self, found: Found) -> Found:
        """Undo repairs that the plan does not need; undo all if they make it no cheaper."""
        if not self.unrepaired:
            return found
        tried = self.original.trials.evaluations
        with self._stage("repair"):
            needed, kept = needed_repairs(self.original, self.planner, found, self.watcher)
            if self.original.trials.evaluations > tried:
                self.unrepaired = self._sketched()
        self.undone += needed.remarks
        if needed.planner is self.planner:  # its records may be renumbered
            self.case = self.planner.case
            return found
        self._plan_with(needed.planner)
        self.unrepaired = self.unrepaired if self.case.repairs else None
        return self._search(kept, certify=False)

    def _rounds(self, baseline: Verdict) -> Fixed:
        # Held-out samples may still reject this plan: skip the certificate.
        found, certify = self._without_spare(self._search(frozenset(), certify=False)), False
        while True:
            rewritten, placed, judged = self._judged(found)
            if judged is None:
                self._look_closer()
                found, certify = self._search(found.kept, certify=False), False
                continue
            if found.passed and judged.verdict.passed:
                bare, undone = self.unrepaired, [*self.undone]
                types = self.planner.types_of(found.kept)
                self.passed = Passed(self.planner, found, types, bare, undone)
            if self._may_go_on(judged, found):
                with self._stage("observe"), self.planner.budget.counted():
                    self.heldout.join(judged)
                found, certify = self._joined(found), False
                continue
            if certify or found.exhausted or found.futile or not found.passed:
                break
            reduced, certify = found.kept, True
            found = self._search(reduced, certify=True)
            if found.kept == reduced:
                break
        passed = found.passed
        if self.passed is not None and not judged.verdict.passed:
            found, passed = self._returned(self.passed, found), False
            rewritten, placed, again = self._judged(found)
            judged = again or judged
        verdict = judged.verdict
        if not passed and verdict.passed:
            with self._stage("judge"):
                verdict = self.judge.searched_too(verdict, rewritten)
        return self._fixed(found, rewritten, placed, verdict, baseline)

    def _judged(self, found: Found) -> tuple[Rewritten, Assignment, Judged | None]:
        """Return a plan's model, FP32 nodes and verdict; None if the plan does not hold."""
        with self._stage("judge"), self.planner.budget.counted():
            again = self.passed is not None and self.passed.found is found
            if found.passed and not again:
                self.planner.narrowing.settle(found.kept)
            rewritten, placed = self.judge.write(found.kept)
            if not (again or self.late >= LATE or self.holding.holds(found, rewritten)):
                return rewritten, placed, None
            judged = self.judge.judge(found.kept, rewritten)
            seen = self.heldout.samples, self.heldout.references
            return rewritten, placed, self.holding.told(judged, found.kept, rewritten, *seen)

    def _returned(self, passed: Passed, failed: Found) -> Found:
        """Go back to the plan that passed on held-out samples if the new one fails there."""
        planner = passed.planner
        if planner is not self.planner:
            self.planner.trials.runner.release()
            catch_up(planner, self.planner)
            self._plan_with(planner)
            self.unrepaired, self.undone = passed.unrepaired, [*passed.undone]
        planner.narrowing.known[passed.found.kept] = passed.types
        note = Remark(kind="refused", numbers={"elements": len(failed.kept)})
        self.watcher.note(remark(note))
        self.passed = replace(passed, found=replace(passed.found, steps=(*failed.steps, note)))
        return self.passed.found

    def _fixed(
        self,
        found: Found,
        rewritten: Rewritten,
        placed: Assignment,
        verdict: Verdict,
        baseline: Verdict,
    ) -> Fixed:
        below, planner = self.below, self.planner
        given = planner, found, self.watcher, self._stage
        path, followed = (below.growth, below.followed) if below else followed_of(*given)
        with self._stage("curve"):
            curve = self.trade_off.curve(found).model_copy(update={"unrepaired": self.unrepaired})
        if below is None:
            remarks = [*self.notes, *self.undone]
            remarks += plan_remarks(planner, found, followed, baseline)
            plan = plan_of(planner, found, placed, rewritten.casts, remarks)
        else:
            assert isinstance(planner, Int8Planner)
            plan = int8_plan_of(below.plan, planner, found, placed, rewritten.casts)
        trials = planner.trials
        trials.runner.release()  # after the remarks, which may try plans
        return Fixed(
            rewritten=rewritten,
            observations=planner.evidence.observations,
            guards=(*(below.guards if below else ()), *planner.guards),
            growth=path,
            followed=followed,
            plan=plan,
            search=search_of(planner, self.heldout, found),
            baseline=below.baseline if below else baseline,
            all_int8=baseline if below else None,
            verdict=verdict,
            references=trials.references,
            scoring=self.scoring,
            found=found,
            curve=curve,
            evaluations=trials.evaluations,
            stage_seconds=self._stage.seconds,
        )

    def _search(self, previous: Assignment, *, certify: bool) -> Found:
        self.late += self.planner.budget.is_spent
        if self.late >= LATE:
            self.planner.give_up()
        with self._stage("certify" if certify else "search"):
            return self.holding.sound(self.planner.find(previous, certify=certify))

    def _may_go_on(self, judged: Judged, found: Found) -> bool:
        """Return whether a failed verdict can improve: samples and plans are left.

        Without budget, the larger plans that passed during the search remain.
        """
        goes_on = found.passed and self.settings.searches and self.late < LATE
        return goes_on and self.heldout.may_join(judged)
