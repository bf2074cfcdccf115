"""The stages of a run in order: the table of contents of halfwise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, isfinite, log10

from halfwise.case import Case, Chosen, Settings
from halfwise.declarations import spelt
from halfwise.fixing.curve import MODERATE, TradeOff
from halfwise.fixing.fixed import Fixed, Passed, plan_of, search_of
from halfwise.fixing.following import followed_of
from halfwise.fixing.holding import Holding, PlanJudge
from halfwise.fixing.int8.placing import given_start
from halfwise.fixing.int8.planner import Int8Planner, int8_plan_of, int8_rung
from halfwise.fixing.plan.found import Found, unsupported
from halfwise.fixing.plan.rules import custom_roles, starting_plan
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.choice import Choice, asked_rules, choose_repairs, with_repairs
from halfwise.fixing.repair.needed import catch_up, choose_again, needed_repairs
from halfwise.fixing.rewrite import prepare
from halfwise.fixing.scoring import HeldOut, Scoring
from halfwise.fixing.stages import Stages
from halfwise.formats import Format
from halfwise.graph.casts import Rewritten, adjusted_constants, low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.judging.judge import Judged
from halfwise.judging.reference import check, find_unjudged, inspected_reference
from halfwise.metrics import effective
from halfwise.progress import Watcher
from halfwise.records import (
    Criterion,
    Curve,
    Followed,
    NodeName,
    OutputError,
    Remark,
    Repair,
    Run,
    Verdict,
)
from halfwise.reporting.remarks import remark
from halfwise.wording import typed

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
        if passed and judged.verdict.sums == "fp32":
            found, (rewritten, placed, judged) = self._summed(found, rewritten, placed, judged)
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
            return rewritten, placed, self.holding.judged(judged, found.kept, rewritten, *seen)

    def _summed(
        self, found: Found, rewritten: Rewritten, placed: Assignment, judged: Judged
    ) -> tuple[Found, tuple[Rewritten, Assignment, Judged]]:
        """Return a plan that hardly costs more and passes with sums in FP16 too, or this one."""
        with self._stage("search"):
            guards = self.holding.sum_guards(found.kept)
        if guards:
            note = Remark(kind="summing", numbers={"kept": len(guards)})
            kept = found.kept.union(*(guard.nodes for guard in guards))
            other = replace(found, kept=kept, minimal=False, steps=(*found.steps, note))
            model, nodes, again = self._judged(other)
            if again is not None and again.verdict.passed and again.verdict.sums != "fp32":
                self.planner.hold(guards)
                return other, (model, nodes, again)
        return found, (rewritten, placed, judged)

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


NOTABLE = 0.1
"""A plan is useless if unexplained kept nodes exceed this fraction of the candidates."""


def plan_remarks(
    planner: Planner, found: Found, followed: Followed | None, baseline: Verdict
) -> Iterator[Remark]:
    """Yield remarks on a plan and its model.

    Args:
        planner: The planner, after its search.
        found: The plan.
        followed: Where the error comes from; None if not needed or out of time.
        baseline: Verdict on everything low.
    """
    settings, fmt = planner.settings, planner.settings.fmt
    yield from end_remarks(planner)
    yield from _looked_at(planner)
    if note := planner.start.note:
        numbers = {**note.numbers, "plan": len(found.kept)}
        yield note.model_copy(update={"numbers": numbers})
    kept = found.kept - frozenset(planner.forced.kept) - planner.held_nodes
    searched = kept and settings.searches
    if searched and baseline.passed and _islands_fail(planner):
        pinned = sum(1 for _ in unsupported(planner.case.network, planner.roles))
        headroom = {} if fmt.has_range_of_fp32 else {"headroom": settings.headroom}
        numbers = {"own": len(planner.islands), "pinned": pinned, "margin": settings.margin}
        yield Remark(kind="seen-only", names={"low": fmt.name}, numbers=numbers | headroom)
    # A fault at one node counts even if no guard knows it; if time ran out, neither is known.
    if (
        followed is not None
        and not (followed.origin or followed.decided)
        and not followed.out_of_time
    ):
        yield from _wider(planner, found, accumulates=followed.accumulates)


def _islands_fail(planner: Planner) -> bool:
    """Return whether all low except the islands fails the search, if time allows."""
    work = lambda: planner.trials.evaluate(planner.islands)  # noqa: E731
    tried = planner.budget.within("notes", work, None)
    return tried is not None and not tried.passed


def _looked_at(planner: Planner) -> Iterator[Remark]:
    """Yield on how many samples elements were visited, if fewer than all were enough."""
    if planner.evidence.closer is not None:
        seen = planner.evidence.observations
        looked = min((o.detail.samples for o in seen.tensors if o.detail is not None), default=0)
        yield Remark(kind="first-look", numbers={"samples": looked, "size": len(seen.samples)})


def _wider(planner: Planner, found: Found, *, accumulates: bool) -> Iterator[Remark]:
    """Yield the tolerance that the explained nodes alone would meet, if most are unexplained.

    That no node is at fault is known only where the error `accumulates` along the graph.
    """
    named, case = planner.explained, planner.case
    computing = planner.roles.computing
    if len(found.needed - named) <= NOTABLE * len(computing) or case.metric is not None:
        return
    explained, trials = found.needed & named, planner.trials
    errors = planner.budget.within("notes", lambda: trials.errors(explained), None)
    if errors is not None:
        fmt = planner.settings.fmt
        note = tolerance_note(errors, case.criterion, trials.factor, fmt, len(explained))
        if note is not None:
            unknown = {} if accumulates else {"unknown": ""}
            yield note.model_copy(update={"names": {**note.names, **unknown}})


def tolerance_note(
    errors: Mapping[str, OutputError], criterion: Criterion, factor: float, fmt: Format, kept: int
) -> Remark | None:
    """Return the error that rounding causes, and the options that accept it.

    None if the errors pass, if they exceed the tolerance more than `MODERATE` times, and if a
    metric, a cosine or an integer output prevents it.

    Args:
        errors: Measures of each output over all calibration samples.
        criterion: What is acceptable.
        factor: Fraction of the tolerance that the search may use, in (0, 1].
        fmt: The low format.
        kept: Number of FP32 nodes with which these errors were measured.
    """
    limits = effective(criterion)
    floats = [e for e in errors.values() if e.agreement is None]
    discrete = [e for e in errors.values() if e.agreement is not None]
    if limits.metric or limits.cosine is not None or not all(e.passed for e in discrete):
        return None
    if not all(isfinite(e.max_abs) and isfinite(e.rel_max) for e in floats):
        return None
    options = dict(_options(floats, limits, factor))
    if not options or max(options.values()) > MODERATE:
        return None
    worst = max(floats, key=lambda e: e.rel_max_needed)
    whose = {"slices": "slices"} if worst.rel_max_needed > worst.rel_max else {}
    numbers = {"error": worst.rel_max_needed, "snr": min(e.snr_db for e in floats)}
    return Remark(
        kind="tolerance",
        names={"low": fmt.name, "options": " ".join(options), **whose},
        numbers=numbers | {"kept": kept} if kept else numbers,
    )


def _options(
    outputs: Sequence[OutputError], limits: Criterion, factor: float
) -> Iterator[tuple[str, float]]:
    """Yield each option that needs another value, and by what factor its limit is exceeded."""
    for name, measure, limit in (
        ("rel_max", "rel_max_needed", limits.rel_max),
        ("max_abs", "max_abs", limits.max_abs),
    ):
        needed = max((getattr(o, measure) for o in outputs), default=0.0) / factor
        if limit is not None and needed > limit:
            times = needed / limit if limit > 0 else inf
            yield spelt(name, _rounded_up(needed)), times
    if limits.snr_db is not None:
        reached = min((o.snr_db for o in outputs), default=limits.snr_db) + 20 * log10(factor)
        if reached < limits.snr_db:
            yield spelt("snr_db", str(floor(reached))), 10 ** ((limits.snr_db - reached) / 20)


def _rounded_up(value: float) -> str:
    """Round a positive number up to two significant digits."""
    unit = 10.0 ** (floor(log10(value)) - 1)
    return typed(ceil(value / unit - 1e-9) * unit)


def end_remarks(planner: Planner) -> Iterator[Remark]:
    """Yield remarks on the inputs and outputs of the mixed model."""
    low = {"low": planner.settings.fmt.name}
    if other := sorted(planner.case.stored.io.keys() - planner.low_io):
        yield Remark(kind="low-io", names={"tensors": ", ".join(other), **low})
    for c in adjusted_constants(
        planner.case.network,
        planner.roles,
        frozenset(planner.roles),
        planner.settings.fmt,
        planner.low_io,
    ):
        numbers = {"minimum": c.minimum, "maximum": c.maximum}
        yield Remark(kind="constant", names={"tensor": c.name, **low}, numbers=numbers)
    limit = planner.settings.fmt.overflow_threshold
    for o in planner.evidence.observations.tensors:
        if o.producer is None and o.tensor in planner.low_io and o.absmax >= limit:
            names = {"tensor": o.tensor, **low}
            yield Remark(kind="input", names=names, numbers={"value": o.absmax})


def stands(fixed: Fixed) -> bool:
    """Return whether a plan passed on real data that test it, as strictly as the user demands.

    Args:
        fixed: Result of the search.

    Raises:
        RunFailed: the model does not run on a sample.
    """
    planner, heldout = fixed.planner, fixed.heldout
    case, settings = planner.case, planner.settings
    if not (fixed.found.passed and fixed.verdict.passed and (case.real or settings.allow_random)):
        return False
    judged = heldout.left, heldout.left_references
    found = find_unjudged(case, fixed.rewritten.model, *judged, runtime=settings.runtime)
    return settings.allow_unjudged or not found
