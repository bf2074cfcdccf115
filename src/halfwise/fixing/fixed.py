"""What a run found."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_tf32, tf32_nodes
from halfwise.errors import CaseError
from halfwise.fixing.depths import Depths
from halfwise.fixing.engines.race import time_ratio
from halfwise.fixing.heldout import Assessment, HeldOut
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.fixing.plan.result import SearchResult, kept_nodes, plan_record
from halfwise.fixing.repair.rule import place
from halfwise.fixing.rewrite import written_bytes
from halfwise.fixing.space import LowSpace, Space
from halfwise.graph.casts import Rewritten
from halfwise.graph.quantised import quantised_nodes
from halfwise.judging.judge import computed, judge_outputs
from halfwise.metrics import Computed, Outputs
from halfwise.records import (
    UNSHOWN,
    Curve,
    EngineResult,
    EngineRung,
    Engines,
    Followed,
    Growth,
    Guard,
    KeptNode,
    LadderRung,
    NodeName,
    Observations,
    Point,
    Remark,
    RightBy,
    Search,
    Verdict,
)
from halfwise.records import Plan as PlanRecord


@dataclass(frozen=True)
class Fixed:
    """What `fix` found.

    Attributes:
        rewritten: The mixed model.
        observations: Observations of the reference.
        guards: Guards.
        growth: Error growth; empty if not measured.
        followed: What growth and trials show about the source of the error; None if not followed.
        plan: The plan.
        search: Record of the search.
        baseline: Verdict on the model with everything low, except what its file computes in FP32.
        verdict: Verdict on the mixed model.
        references: Reference outputs of the calibration samples.
        space: The plans that were searched.
        heldout: The samples that judged, and those no search has seen.
        assigned: The plan, as a type for each node.
        result: Result of the search; its kept nodes are the plan's.
        curve: Plans to choose from.
        evaluations: Assignments tried.
        stage_seconds: Seconds per stage.
        all_int8: Verdict on INT8 wherever possible; None without INT8.
        rungs: Results of each type if several were requested, most exact first; the run delivers
            one of them.
    """

    rewritten: Rewritten
    observations: Observations
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    followed: Followed | None
    plan: PlanRecord
    search: Search
    baseline: Verdict
    verdict: Verdict
    references: Sequence[Outputs]
    space: Space
    heldout: HeldOut
    assigned: Plan
    result: SearchResult
    curve: Curve
    evaluations: int
    stage_seconds: dict[str, float]
    rungs: tuple["Fixed", ...] = ()
    all_int8: Verdict | None = None

    @property
    def depths(self) -> Depths:
        """Looks deeper at plans."""
        return Depths(self.space, self.heldout)

    @property
    def without_int8(self) -> tuple[KeptNode, ...]:
        """What could be INT8, if INT8 was tried and no node has it; else empty."""
        plan = self.rungs[-1].plan if self.rungs else self.plan
        return () if plan.int8 or self.plan.has_int8 else plan.left_out

    @property
    def original(self) -> Space:
        """The plans of the model as given, without repairs."""
        low = self.space if isinstance(self.space, LowSpace) else None
        return self.space if low is None or low.original is None else low.original

    @property
    def seen(self) -> Observations:
        """The observations, including what the plan's repairs resolved in the model as given."""
        answered = {guard for repair in self.plan.repairs for guard in repair.guards}
        evidence = self.original.evidence
        mended = tuple(guard for guard in evidence.guards if place(guard) in answered)
        tensors = {guard.tensor for guard in mended}
        before = tuple(one for one in evidence.observations.tensors if one.tensor in tensors)
        return self.observations.model_copy(update={"mended": mended, "before": before})

    def telling(self, *remarks: Remark) -> "Fixed":
        """Return a copy with more facts about its plan."""
        remarks = (*self.plan.remarks, *remarks)
        return replace(self, plan=self.plan.model_copy(update={"remarks": remarks}))

    def improves(self, below: "Fixed") -> bool:
        """Return whether it has INT8, passed, and is predicted to be cheaper than `below`."""
        cost, other = (one.space.variant.cost(one.assigned) for one in (self, below))
        cheaper = cost is None or other is None or cost < other
        return self.verdict.passed and bool(self.plan.int8) and cheaper


def rungs_of(
    fixed: Fixed, verdict: Verdict, by: RightBy | None, engines: Engines | None = None
) -> tuple[LadderRung, ...]:
    """Return the result of each rung, most exact first.

    FP32 and TF32 have no plan: all products are FP32, or all those of the main graph are TF32. TF32
    kernels are assumed to round toward zero, as the coarsest do (`emulation/tf32.py`).

    Args:
        fixed: Results of the run, and of each type if there are several.
        verdict: The run's verdict, on the plan or its engine.
        by: The check of FP32 that was made first; None if there was none.
        engines: Results of real engines; if there are any, their verdicts and times count.
    """
    ladder, by = _Ladder(fixed), by or _labelled(fixed, verdict)
    low = fixed.rungs or (fixed,)
    rungs = [ladder.fp32(by), *ladder.tf32(), *(_low(one, fixed, verdict) for one in low)]
    if engines is not None:
        rungs = _timed(rungs, engines, fixed.space.bench.tolerance.factor)
    rungs = [_counted(rung, verdict) for rung in rungs]
    best = _fastest(rungs, None if engines is None else engines.rung)
    return tuple(r.model_copy(update={"chosen": r.rung == best}) for r in rungs)


_UNTESTED = UNSHOWN | {"not-real", "unjudged"}
"""Failures of the data alone, which judge no rung."""


def _counted(rung: LadderRung, verdict: Verdict) -> LadderRung:
    """Return a rung as not judged if the run's data show nothing."""
    untested = _UNTESTED & {failure.kind for failure in verdict.failures}
    if rung.by is not None or not untested:
        return rung
    wrong = rung.passed is False and not {f.kind for f in rung.failures} <= _UNTESTED
    return rung if wrong else rung.model_copy(update={"passed": None})


def _labelled(fixed: Fixed, verdict: Verdict) -> RightBy | None:
    """Return whether labels show FP32 to be right: a metric with labels that does not guess."""
    case = fixed.space.variant.case
    wrong = any(one.kind in ("guessing", "metric") for one in verdict.unjudged)
    judged = case.heldout.labels is not None and case.metric is not None
    return "labels" if judged and not wrong else None


def with_beside(fixed: Fixed, kept: frozenset[NodeName] | None) -> Curve:
    """Return the run's curve with its plan, and with that of the other rung that has plans.

    Args:
        fixed: What was found.
        kept: The plan, see `Curve.of_plan`.
    """
    curve = fixed.curve.of_plan(kept)
    others = [one for one in fixed.rungs if _rung(one) != _rung(fixed)]
    if not others:
        return curve
    beside = others[-1].curve.model_copy(update={"rung": _rung(others[-1])})
    return curve.model_copy(update={"rung": _rung(fixed), "beside": beside})


def _rung(one: Fixed) -> EngineRung:
    return "int8" if one.plan.has_int8 else one.plan.low


class _Ladder:
    """Measures the rungs without a plan on the samples of a run."""

    def __init__(self, fixed: Fixed) -> None:
        self._space, self._heldout = fixed.space, fixed.heldout
        self._network = fixed.original.variant.case.network
        self._bytes = written_bytes(self._network.model)

    def fp32(self, by: RightBy | None) -> LadderRung:
        """Return the FP32 rung."""
        heldout, prices = self._heldout, self._space.variant.prices
        return LadderRung(
            rung="fp32",
            passed=None if by is None else True,
            by=by,
            scores=heldout.reference if heldout.unseen else (),
            cost=None if prices is None else prices.fp32,
            bytes=self._bytes,
        )

    def tf32(self) -> Iterator[LadderRung]:
        """Yield the rung with all products in TF32; nothing if there are no products."""
        variant, bench, network = self._space.variant, self._space.bench, self._network
        products = tf32_nodes(network)
        if not products:
            return
        case, runtime, prices = variant.case, variant.settings.runtime, variant.prices
        rung = LadderRung(rung="tf32", passed=None, candidates=len(products), bytes=self._bytes)
        if prices is not None:
            share = prices.model.macs(frozenset(products))
            rung = rung.model_copy(update={"cost": prices.tf32, "low_share": share})
        with suppress(CaseError):
            session = Session(emulate_tf32(network, rounding="zero"), runtime=runtime)
            error = bench.excess_of([computed(session, sample) for sample in bench.samples])
            rung = rung.model_copy(update={"error": error * bench.tolerance.factor})
            results = [computed(session, sample) for sample in self._heldout.samples]
            judged = results, self._heldout.samples, self._heldout.references
            verdict = judge_outputs(*judged, case.criterion, case.metric).verdict
            update = {"passed": verdict.passed, "failures": verdict.failures}
            rung = self._with_scores(rung.model_copy(update=update), results)
        yield rung

    def _with_scores(self, rung: LadderRung, results: Sequence[Computed]) -> LadderRung:
        if not self._heldout.unseen:
            return rung
        assessment = self._heldout.assess(results, self._space.bench.tolerance)
        return rung.model_copy(update={"heldout": assessment.heldout, "scores": assessment.scores})


def _low(one: Fixed, fixed: Fixed, verdict: Verdict) -> LadderRung:
    """Return the rung of a type that has a plan; `verdict` is that of the run, `fixed`."""
    space, plan, kept = one.space, one.assigned, one.result.kept
    judged = verdict if _rung(one) == _rung(fixed) else one.verdict
    variant, bench, choices = space.variant, space.bench, space.choices
    rung = LadderRung(
        rung=_rung(one),
        passed=judged.passed if one.plan.int8 or not one.plan.left_out else None,
        kept=len(one.plan.keep),
        left_out=len(one.plan.left_out),
        candidates=len(choices) if one.plan.has_int8 else one.plan.candidates,
        error=bench.excess(plan) * bench.tolerance.factor,
        bytes=written_bytes(one.rewritten.model),
        failures=judged.failures,
    )
    if variant.prices is not None:
        quantised = quantised_nodes(variant.case.network) if one.plan.has_int8 else ()
        share = variant.prices.model.macs((choices - kept).union(quantised))
        rung = rung.model_copy(update={"cost": variant.cost(plan), "low_share": share})
    place = one.curve.plan
    assessed: Point | Assessment | None = None if place is None else one.curve.points[place]
    if assessed is None or assessed.heldout is None:
        one.depths.measure(plan)
        assessed = one.depths.assessment(plan)
    if assessed is None:
        return rung
    return rung.model_copy(update={"heldout": assessed.heldout, "scores": assessed.scores})


def _timed(rungs: Sequence[LadderRung], engines: Engines, factor: float) -> list[LadderRung]:
    """Return the rungs with their engine results, each by its fastest engine that passed.

    `factor` is the share of the tolerance that the search may use; excesses are relative to it.
    """
    timed: list[LadderRung] = []
    before: EngineResult | None = None
    for rung in rungs:
        rows = [r for r in engines.results if r.rung == rung.rung and r.verdict is not None]
        row = min(
            rows,
            key=lambda row: (not _passed(row), row is not engines.row, _time(row)),
            default=None,
        )
        if row is None or row.verdict is None:
            timed.append(rung)
            continue
        update: dict[str, object] = {"latency": row.latency, "failures": row.verdict.failures}
        update |= {} if rung.rung == "int8" else {"kept": row.kept}
        update |= {"passed": row.verdict.passed} if rung.by is None else {}
        update |= {"error": row.excess * factor} if row.excess is not None else {}
        update |= {"bytes": row.build.engine.bytes} if row.build.engine else {}
        if before and before.latency and row.latency:
            update["beside"] = time_ratio(row.latency.medians, before.latency.medians)
        timed.append(rung.model_copy(update=update))
        before = row
    return timed


def _passed(row: EngineResult) -> bool:
    return row.verdict is not None and row.verdict.passed


def _time(row: EngineResult) -> float:
    return inf if row.latency is None else row.latency.median_ms


def _fastest(rungs: Sequence[LadderRung], delivered: EngineRung | None) -> EngineRung | None:
    """Return the delivered rung; without engines, the passing one of least predicted cost.

    FP32 needs no proof unless something showed it wrong. Where a plan with low nodes passes, its
    file is delivered: only where everything stays FP32 can its products be TF32.
    """
    if delivered is not None:
        return delivered
    right = [r for r in rungs if r.passed or (r.rung == "fp32" and r.passed is None)]
    low = [r for r in right if r.rung not in ("fp32", "tf32") and _is_low(r)]
    judged = any(r.passed is not None for r in rungs)
    priced = [r for r in low or right if r.cost is not None and judged]
    return min(priced, key=lambda r: r.cost or 0.0).rung if priced else None


def _is_low(rung: LadderRung) -> bool:
    """Return whether any node has the type of a rung that has a plan."""
    return (rung.left_out if rung.rung == "int8" else rung.kept) < rung.candidates


def plan_of(
    space: LowSpace,
    assigned: Plan,
    result: SearchResult,
    placed: Nodes,
    casts: int,
    remarks: Sequence[Remark],
) -> PlanRecord:
    """Return the record of a plan.

    Args:
        space: The plans that were searched.
        assigned: The plan.
        result: Results of trials.
        placed: All its FP32 nodes.
        casts: Cast nodes in the mixed model.
        remarks: Remarks on it.
    """
    variant, network = space.variant, space.variant.case.network
    chosen = {}
    if space.chosen is not None:
        chosen = space.chosen.beside(space.evidence.suspected)
    forced = variant.forced
    keep = kept_nodes(
        network,
        variant.roles,
        assigned.kept,
        (*space.evidence.guards, *space.deciding),
        chosen | dict(forced.kept),
        result.excess_without,
        nonfinite_without=result.nonfinite_without,
        contributions=result.contributions,
        near=space.evidence.limits,
        held=space.held,
        hopeless=None if result.passed else dict.fromkeys(forced.lowered.values()),
    )
    plan = plan_record(
        network,
        variant.roles,
        variant.settings.fmt,
        placed,
        casts,
        keep=tuple(
            (_spare(k) if k.node in result.spare else k).model_copy(
                update={"precision": assigned.precision(k.node)}
            )
            for k in keep
        ),
        minimal=result.minimal,
        lowered=forced.lowered,
        remarks=remarks,
        low_io=variant.low_io,
    )
    return plan.model_copy(update={"repairs": space.repairs})


def _spare(kept: KeptNode) -> KeptNode:
    """Return a node that a dearer plan lowers: no guard says why it is kept."""
    because = (
        None
        if kept.because is None
        else kept.because.model_copy(update={"guard": None, "spare": True})
    )
    return kept.model_copy(update={"guard": None, "unknown": False, "because": because})


def search_of(space: Space, heldout: HeldOut, result: SearchResult) -> Search:
    """Return the record of a search, including the held-out samples that joined it."""
    bench, settings = space.bench, space.variant.settings
    return Search(
        tolerance_factor=bench.tolerance.factor,
        calibration=bench.samples.ids,
        joined=heldout.joined,
        filed=heldout.filed,
        seen=bench.samples.marks or (),
        seconds_budget=settings.time_budget,
        budget=settings.budget,
        late=bench.late,
        refused=bench.refused,
        exhausted=result.exhausted,
        remarks=result.steps,
    )
