"""The stages of a run in order: the table of contents of halfwise."""

import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice

import onnx_ir as ir
from msgspec import Struct

from halfwise.case import Case, Sample, Seen, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import Session, give_back
from halfwise.emulation.probe import ExtremaProbe, observable
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.curve import curve_of
from halfwise.fixing.depths import Depths, HeldOut
from halfwise.fixing.evidence import Observed
from halfwise.fixing.filed import Filed, filed
from halfwise.fixing.fixed import (
    Fixed,
    built_by,
    built_cost,
    int8_plan_of,
    plan_of,
    search_of,
    unsupported,
)
from halfwise.fixing.following import followed_of
from halfwise.fixing.int8.placing import QuantisedModel, quantised_start
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, Quantisation, Variant
from halfwise.fixing.plan.rules import Start, starting_plan
from halfwise.fixing.plan.search import SearchResult, few_of
from halfwise.fixing.repair.moves import allowed_rules, with_repairs
from halfwise.fixing.rewrite import prepare
from halfwise.fixing.space import Int8Space, Space
from halfwise.graph.model import Network
from halfwise.graph.weights import weight_bytes
from halfwise.judging.judge import Judged
from halfwise.judging.reference import check, inspected_reference, refuse_nan
from halfwise.metrics import Outputs
from halfwise.progress import Watcher, interruption
from halfwise.records import LEAST_DEARER, Remark, Repair, Run, TensorName, Verdict, replace
from halfwise.wording import count, verb

LOADED = 2
"""Sessions held at once: of the network without repairs, and of one with some."""

_Subject = tuple[Variant, Quantisation | None, Nodes]
"""What one session emulates all plans of: with INT8, those with the same kept nodes."""


class Emulation:
    """A judge that needs no device: ONNX Runtime with explicit rounding.

    Plans that differ in which nodes are low or INT8 are runs of one session; those with BF16 or
    TF32, and one that fails there, are emulated as they are written.
    """

    def __init__(self, observed: Observed) -> None:
        """Take the evidence for each network; one that was not observed has no headroom."""
        self._observed = observed
        self._runners: dict[_Subject, tuple[Mapping[TensorName, float], SwitchedRunner]] = {}
        self._typed: tuple[Plan, Session] | None = None
        self._assignment = lru_cache(maxsize=LOADED)(lambda plan: plan.of.assignment(plan))

    def prepare(self, plan: Plan, /) -> None:
        """Load the session of a plan; raises as `Session` does."""
        if self._as_written(plan):
            self._session(plan)
        else:
            self._typed = None
            self._runner(plan).prepare(self._assignment(plan))

    def run(self, sample: Sample, plan: Plan, /) -> Outputs:
        """Return the outputs of a plan.

        Raises:
            RunFailed: it fails on the sample, also in the form in which it is written.
        """
        if self._as_written(plan):
            return self._session(plan).run(sample)
        try:
            return self._runner(plan).run(sample, self._assignment(plan))
        except RunFailed as failure:
            if failure.late:
                raise
        return self._session(plan).run(sample)

    def release(self) -> None:
        """Free all sessions; the next run loads its own again."""
        self._typed = None
        self._runners.clear()

    def _as_written(self, plan: Plan) -> bool:
        """Return whether a plan runs without branches: for its types, or as it failed with them."""
        return plan.is_typed or (self._typed is not None and self._typed[0] == plan)

    def _session(self, plan: Plan) -> Session:
        if self._typed is None or self._typed[0] != plan:
            self._typed = None  # two sessions at once would need more memory
            model, settings = plan.of.write(plan)[0].model, plan.of.settings
            typed = emulate_typed(model, accumulate=settings.accumulate)
            self._typed = plan, Session(typed, runtime=settings.runtime)
        return self._typed[1]

    def _runner(self, plan: Plan) -> SwitchedRunner:
        subject = plan.of, plan.quantisation, plan.kept if plan.quantisation else frozenset()
        evidence = self._observed.get(plan.of)
        limits = {} if evidence is None else evidence.limits
        entry = self._runners.pop(subject, None)
        if entry is None or entry[0] != limits:
            entry = None
            while len(self._runners) >= LOADED:
                del self._runners[next(iter(self._runners))]
            entry = limits, self._new_runner(plan, limits)
        self._runners[subject] = entry
        return entry[1]

    def _new_runner(self, plan: Plan, limits: Mapping[TensorName, float]) -> SwitchedRunner:
        of, quantisation = plan.of, plan.quantisation
        network, settings, evidence = of.case.network, of.settings, self._observed.get(of)
        slots = {}
        if quantisation is not None:
            slots = {n: s for n, s in quantisation.slots.items() if n not in plan.kept}
        switched = partial(
            emulate_switched,
            *(network, of.roles, settings.fmt),
            accumulate=settings.accumulate,
            limits=limits,
            apart=NONE if evidence is None else evidence.suspected,
            low_io=of.low_io,
            weights=of.weights,
            quantised=slots,
        )
        made = partial(switched, alike=True), switched
        return SwitchedRunner(*made, runtime=settings.runtime)


def plan_remarks(space: Space, result: SearchResult, baseline: Verdict) -> Iterator[Remark]:
    """Yield remarks on a plan and its model.

    Args:
        space: The plans, after a search.
        result: The plan.
        baseline: Verdict on everything low.
    """
    variant, settings, fmt = space.variant, space.variant.settings, space.variant.settings.fmt
    yield from end_remarks(space)
    if note := space.start.note:
        numbers = {**note.numbers, "plan": len(result.kept)}
        yield replace(note, numbers=numbers)
    kept = result.kept - frozenset(variant.forced.kept) - space.held_nodes
    lowest = space.tried().get(space.islands)
    fails = lowest is not None and not lowest.passed
    if kept and space.searches and baseline.passed and fails:
        pinned = sum(1 for _ in unsupported(variant.case.network, variant.roles))
        headroom = {} if fmt.has_range_of_fp32 else {"headroom": settings.headroom}
        numbers = {"own": len(variant.islands), "pinned": pinned, "margin": settings.margin}
        yield Remark(kind="seen-only", names={"low": fmt.name}, numbers=numbers | headroom)


def end_remarks(space: Space) -> Iterator[Remark]:
    """Yield remarks on the inputs and outputs of the mixed model."""
    variant, fmt = space.variant, space.variant.settings.fmt
    low = {"low": fmt.name}
    if other := sorted(variant.case.stored.io.keys() - variant.low_io):
        yield Remark(kind="low-io", names={"tensors": ", ".join(other), **low})
    for o in space.evidence.observations.tensors:
        beyond = o.absmax >= fmt.overflow_threshold
        if o.producer is None and o.tensor in variant.low_io and beyond:
            names = {"tensor": o.tensor, **low}
            yield Remark(kind="input", names=names, numbers={"value": o.absmax})


HEAVY = 1 << 24
"""Bytes of weights from which copies of a graph are freed at once: 20 ms, 12 times in a run."""


class Stages:
    """Begins stages by name; a stage may begin several times.

    Attributes:
        seconds: Total time of each stage.
    """

    def __init__(self, watcher: Watcher, model: ir.Model | None = None) -> None:
        """Take what stages are reported to, and the model that they copy, if it is known."""
        self._watcher, self._last = watcher, ""
        self._collects = model is None or weight_bytes(model) >= HEAVY
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Report a stage, unless the last one goes on, and time its block."""
        if name != self._last:
            self._watcher.stage(name)
        self._last = name
        started = time.monotonic()
        try:
            yield
        finally:
            if self._collects:
                # Graphs and their weights are cycles: else they would stay, for there are few
                # collections (cli). Only of objects made since the last stage.
                gc.collect(1)
                give_back()  # else what follows would need its memory on top of the last run's
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


NEAR = 1.05
"""A plan that is predicted to cost up to this many times another may cost less: half of the
predictions are off by more than 2 or 3 % (docs/decisions/0072-price-from-the-builder.md)."""
FURTHER = 2
"""So many further plans are judged and built to compare their kernels. Our choice."""


def fix(
    case: Case,
    settings: Settings,
    watcher: Watcher,
    *,
    start_from: Network | Run | None = None,
    repairs: Sequence[Repair] = (),
) -> Fixed:
    """Return the smallest plan found for `case`, its model, and its verdict on held-out samples.

    Args:
        case: The case.
        settings: Settings of the search.
        watcher: Receives progress.
        start_from: Plan to start from: a mixed model with the types in its file, or a run.
        repairs: Made without being proposed again; no others are looked for.
    """
    stage = Stages(watcher, case.network.model)
    quantised = quantised_start(case.network, start_from)
    start_from = None if quantised else start_from
    with stage("reference"):
        check(case.network, runtime=settings.runtime)
        prepared = prepare(case, quantised, settings, watcher)
        case, model = prepared.case, prepared.case.network.model
        if case.seen is None and case.network is prepared.original:
            # Weights of hundreds of megabytes take long to load: one session runs all samples.
            probe = ExtremaProbe(model, observable(model), runtime=settings.runtime)
            case = replace(case, seen=Seen(model, (), (), probe))
        variant = Variant(case, settings)
        _ = variant.forced, variant.may_have_bf16  # or an option does not fit the model
        if start_from is not None:
            starting_plan(case.network, variant.roles, start_from)
        references, nonfinite = inspected_reference(
            prepared.original,
            case.heldout.with_progress(watcher.step),
            runtime=settings.runtime,
            seen=case.seen,
        )
        if not settings.allow_unjudged:
            case_of = prepared.original, case.heldout, references, nonfinite
            refuse_nan(*case_of, runtime=settings.runtime)
    budget = Budget(settings.time_budget, work=settings.budget * len(case.calibration))
    observed = Observed(budget, watcher)
    with stage("observe"):
        evidence = observed.look(variant, case.calibration)
    with stage("emulate"):
        searched = prepared.searched or evidence.references
        bench: Bench[Plan] = Bench(
            Emulation(observed),
            case.calibration,
            searched,
            Tolerance(case.criterion, case.metric, settings.margin),
            lambda: budget.spend("trial"),
        )
        low = Space(variant, bench, observed, budget, watcher)
        low.survey(low.islands)
    heldout = HeldOut(case, case.heldout, references, searched, watcher, nonfinite)
    with stage("baseline"):
        baseline = Depths(low, heldout).baseline()
    run = _Fix(start_from, repairs, prepared.notes, watcher, stage, heldout, baseline)
    fixed = run.low(low, is_free=quantised is None)
    goes_on = (settings.int8 or quantised is not None) and "interrupt" not in budget.ended_by
    passed = fixed.result.passed and fixed.verdict.passed
    return run.int8(fixed, quantised) if goes_on and passed else fixed


class _Found(Struct, frozen=True):
    """A plan, and its verdict if it passes inside and as a file on the samples of the search.

    Attributes:
        space: The plans that it was found among.
        result: What was searched, and what it keeps.
        plan: The plan, as a type for each node.
        judged: Its verdict; None where it failed before.
    """

    space: Space
    result: SearchResult
    plan: Plan
    judged: Judged | None = None

    @property
    def verdict(self) -> Verdict:
        """Its verdict, once it was judged."""
        assert self.judged is not None
        return self.judged.verdict

    @property
    def holds(self) -> bool:
        """Whether it passes at every depth."""
        return self.judged is not None and self.verdict.passed


class _Fix(Struct, frozen=True):
    """Takes the plans of one search to a plan that holds at every depth."""

    start_from: Network | Run | None
    repairs: Sequence[Repair]
    notes: tuple[Remark, ...]
    watcher: Watcher
    stage: Stages
    heldout: HeldOut
    baseline: Verdict
    below: Fixed | None = None

    def low(self, space: Space, *, is_free: bool) -> Fixed:
        """Return the plan in the low format; repairs are looked for if the network `is_free`."""
        if self.repairs or (is_free and allowed_rules(space)):
            space = self._repaired(space)
        if self.start_from is not None:
            with self.stage("emulate"):
                case, roles = space.variant.case, space.variant.roles
                start = starting_plan(case.network, roles, self.start_from, case.repairs)
                space = space.starting(start)
        return self.rounds(space)

    def int8(self, below: Fixed, quantised: QuantisedModel | None) -> Fixed:
        """Return the plan with INT8 added if INT8 gains anything, else the passing plan itself."""
        start = self.start_from.plan if isinstance(self.start_from, Run) else None
        try:
            with self.stage("emulate"):
                space = Int8Space.above(below.space, below.result.kept, quantised)
                if space is None:
                    return below
                space.survey(space.islands)
                if start is not None and start.has_int8:
                    out = space.choices & {node.node for node in start.left_out}
                    note = Remark(kind="start-int8", numbers={"elements": len(out)})
                    space = space.starting(Start(out, note))
        except (CaseError, RunFailed) as error:
            self.watcher.note(f"INT8 was not tried: {error.message}")
            return below.telling(Remark(kind="int8-untried", names={"why": error.message}))
        if below.space.bench.demands_files:
            _demand_files(space)
        with self.stage("baseline"):
            baseline = Depths(space, self.heldout).baseline()
        low = replace(self, baseline=baseline, below=below).rounds(space)
        best = low if low.improves(below) else below
        took = self.stage.seconds
        return replace(best, rungs=(below, low), stage_seconds=took, all_int8=baseline)

    def _repaired(self, space: Space) -> Space:
        """Return the plans of the repaired network if repairs are worth making, else of its own."""
        low = space.original or space
        with self.stage("repair"):
            if self.repairs:
                made = low.repaired(self.repairs)
            else:
                low.observed.catch_up(low.variant, low.bench.samples)
                seeds = low.seeds()
                tried = lambda: any(low.evaluate(kept).passed for kept in seeds)  # noqa: E731
                low.budget.within("search", tried, None)
                made = with_repairs(low, self.heldout)
        return replace(space, undone=made.undone) if made.variant is space.variant else made

    # --- rounds --------------------------------------------------------------------------------

    def rounds(self, space: Space) -> Fixed:
        """Search until a plan holds at every depth, or none is left that may."""
        before, failed = SearchResult(), dict[Plan, Judged]()
        while True:
            with self.stage("search"):
                result = space.find(before)
            found = self._looked(space, result)
            if found.judged is not None and found.plan in failed:
                # The samples that joined pass only among the others: its verdict stands.
                found = replace(found, judged=failed[found.plan])
                break
            more = self._asking_more(found)
            if more is None:
                break
            if found.judged is not None:
                failed[found.plan] = found.judged
            before = result if more.variant is space.variant else SearchResult()
            space = more
        found = self._built(self._passing(found))
        verdict = found.verdict
        if verdict.passed and not found.result.passed:
            with self.stage("judge"):
                depths = Depths(found.space, self.heldout)
                verdict = depths.searched_too(found.plan, verdict)
        return self._fixed(found, verdict)

    def _looked(self, space: Space, result: SearchResult) -> _Found:
        """Look at the plan of a search at each depth, up to the first at which it fails.

        One chosen by the user is judged whatever else is seen, and so is what failed.
        """
        depths = Depths(space, self.heldout)
        with self.stage("judge"):
            plan = space.typed(result.kept) if result.passed else space.plan(result.kept)
            is_searched = result.passed and space.searches
            if is_searched and (depths.inside(plan).guards or _file_of(space, plan).failing):
                return _Found(space, result, plan)
            return _Found(space, result, plan, depths.judge(plan))

    def _asking_more(self, found: _Found) -> Space | None:
        """Return the plans of which more is asked, where one fails beyond the emulation; or None.

        If something is infinite inside on the samples of the search, more nodes are held; if its
        file fails there, those of others have to pass; if held-out samples fail, some of them join,
        perhaps with other repairs.
        """
        space = found.space
        guards = () if found.judged else Depths(space, self.heldout).inside(found.plan).guards
        if guards:
            space = space.holding(guards)
            many, held = len(guards), count(len(space.held_nodes), "node")
            self.watcher.note(
                f"the outputs pass, but {count(many, 'tensor')} {verb(many, 'is', 'are')} infinite "
                f"inside; {held} held in FP32 in total"
            )
            return space
        if found.judged is None:
            wrong = _file_of(space, found.plan)
            failing = count(len(wrong.failing), "sample")
            self.watcher.note(f"{failing} of the search fail as the file runs")
            _demand_files(space)
            return replace(space, deciding=(*space.deciding, *wrong.guards))
        may_go_on = found.result.passed and space.searches and not space.budget.is_spent
        if not (may_go_on and self.heldout.may_join(found.judged)):
            return None
        with self.stage("observe"):
            self.heldout.join(found.judged, space)
            if found.judged.as_file:
                _demand_files(space)
        # Repairs the user gave stay; all repairs stay if the search starts from a plan.
        is_free = not self.repairs and self.start_from is None and self.below is None
        if is_free and allowed_rules(space) and not space.evaluate(space.ruled).passed:
            return self._repaired(space)
        return space

    # --- the choice ----------------------------------------------------------------------------

    def _passing(self, found: _Found) -> _Found:
        """Return the cheapest of a few plans that passes on unseen samples too; else this one.

        For a plan that fails there when no search may go on: what passed in it, and its seeds, may
        pass there; where only time is short, at last everything kept.
        """
        space, result = found.space, found.result
        fails = found.judged is not None and self.heldout.fails(found.judged)
        if not (fails and result.passed and space.searches):
            return found
        others = [*few_of(self._others(found))]
        if space.budget.is_spent and len(self.heldout.rest) > 1:
            space.budget.leave_out("search")
            found = replace(found, result=replace(result, exhausted=True))
            others.append(space.choices)
        return next(self._holding(found, others), found)

    def _built(self, found: _Found) -> _Found:
        """Return the cheapest of the last plans by a target's builder.

        The others hold at every depth, too, and are predicted to cost about as much.
        """
        space, result = found.space, found.result
        least = space.cost(result.kept)
        may_differ = found.holds and result.passed and result.kept and space.searches
        if not may_differ or least is None or built_by(found.verdict) is None:
            return found
        near = [kept for kept in self._others(found) if (space.cost(kept) or 0.0) <= NEAR * least]
        further = islice(self._holding(found, near), FURTHER)
        plans = [found, *space.budget.within("curve", lambda: [*further], [])]
        costs = [built_cost(one.plan, one.verdict) for one in plans]
        priced = [cost for cost in costs if cost is not None]
        # The first in the order of predictions.
        enough = LEAST_DEARER * min(priced)
        best = next(i for i, cost in enumerate(costs) if cost is not None and cost <= enough)
        return plans[best]

    def _others(self, found: _Found) -> list[Nodes]:
        """Return what passed in the search besides its result, and its seeds, cheapest first."""
        space = found.space
        passed = (kept | space.forced for kept, one in space.tried().items() if one.passed)
        taken = found.result.kept, space.choices
        others = [kept for kept in dict.fromkeys((*passed, *space.seeds())) if kept not in taken]
        return sorted(others, key=lambda kept: (space.cost(kept) or 0.0, len(kept)))

    def _holding(self, found: _Found, others: Iterable[Nodes]) -> Iterator[_Found]:
        """Yield other plans that hold at every depth, with their verdicts."""
        for kept in others:
            if interruption().overdue:
                return
            if found.space.evaluate(kept).passed:
                other = replace(found.result, kept=kept, minimal=False)
                looked = self._looked(found.space, other)
                if looked.holds:
                    yield looked

    def _fixed(self, found: _Found, verdict: Verdict) -> Fixed:
        below, space, result, plan = self.below, found.space, found.result, found.plan
        rewritten, placed = plan.of.write(plan)
        follow = space, result, self.watcher, self.stage
        path, followed = (below.growth, below.followed) if below else followed_of(*follow)
        with self.stage("curve"):
            curve = curve_of(space, plan, result)
        if isinstance(space, Int8Space):
            assert below is not None
            record = int8_plan_of(below.plan, space, plan, result, placed, rewritten.casts)
        else:
            remarks = [*self.notes, *space.undone, *plan_remarks(space, result, self.baseline)]
            record = plan_of(space, plan, result, placed, rewritten.casts, remarks)
        bench = space.bench
        bench.release()
        return Fixed(
            rewritten=rewritten,
            guards=(*(below.guards if below else ()), *space.guards),
            growth=path,
            followed=followed,
            plan=record,
            search=search_of(space, self.heldout, result),
            baseline=below.baseline if below else self.baseline,
            all_int8=self.baseline if below else None,
            verdict=verdict,
            space=space,
            heldout=self.heldout,
            assigned=plan,
            result=result,
            curve=curve,
            evaluations=bench.evaluations,
            stage_seconds=self.stage.seconds,
        )


def _file_of(space: Space, plan: Plan) -> Filed:
    """Return what targets make of the file of a plan that passes; where that is asked, it does."""
    return Filed() if space.bench.demands_files else filed(space.bench, space.budget, plan)


def _demand_files(space: Space) -> None:
    """Demand of plans that their files pass on the samples of the search."""
    bench, budget = space.bench, space.budget
    bench.demand(lambda plan, asked: filed(bench, budget, plan, asked).excess)
