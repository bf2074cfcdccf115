"""Whether a plan also passes as ONNX Runtime runs its file, without rounding each value."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import onnx_ir as ir

from halfwise import wording
from halfwise.case import FEW_SAMPLES, Case, Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import runtime_version
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.attribute.evidence import Band, graded
from halfwise.fixing.emulating import predicting
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.plan import NONE, Nodes, Plan
from halfwise.fixing.space import Space
from halfwise.graph.casts import Rewritten
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.sensitivity import decisions, first_of, leading_to
from halfwise.judging.judge import (
    Judged,
    LowSums,
    flips,
    judge_outputs,
    lowest_sums,
    run_as_file,
)
from halfwise.metrics import Outputs
from halfwise.records import Failure, FileRun, Flip, Guard, NodeName
from halfwise.reporting.remarks import under, with_failures


class Decisions:
    """Runs mixed models as ONNX Runtime runs their files, and keeps what leads to decisions.

    Attributes:
        space: The plans.
    """

    def __init__(self, space: Space) -> None:
        """Take the plans."""
        self.space, self._variant, self._bench = space, space.variant, space.bench
        self._settings = space.variant.settings
        nodes = decisions(space.variant.case.network)
        self._decisions = {node_name(n): n for n in nodes}

    @property
    def _are_hopeless(self) -> bool:
        """Whether keeping what leads to decisions did not help a plan, on the present samples."""
        plans = (plan for plan in self._bench.tried() if plan.of is self._variant)
        held = self.space.held_nodes
        return () in (self._bench.recall(plan, "decisions", held) for plan in plans)

    def guards(self, plan: Plan, written: Rewritten) -> tuple[Guard, ...]:
        """Return what to keep so that the file passes on the calibration samples too.

        Empty if no node makes a decision, if the file passes or cannot run, or if keeping
        everything that leads to decisions does not make it pass.
        """
        if not self._decisions or self._are_hopeless:
            return ()
        work = lambda: self._deciding(plan, written)  # noqa: E731
        return self._bench.once(plan, "decisions", work, self.space.held_nodes) or ()

    def _deciding(self, plan: Plan, written: Rewritten) -> tuple[Guard, ...] | None:
        """Return what to keep, nothing where that does not help; None if the file passes."""
        bench = self._bench
        try:
            results = self._run(written, bench.samples, bench.references)
        except (CaseError, RunFailed):
            return None
        excess = bench.excess_of(results) * bench.tolerance.factor
        if excess <= 1:
            return None
        worst = self._worst(bench.samples, bench.references, results)
        nodes, kept = self._decisions.values(), self.space.kept(plan) or NONE
        flips = _flips(written.model, nodes, bench.samples.select(worst), self._settings)
        return tuple(self._guards(flips, self._repair(kept, flips, worst), excess))

    def judged(
        self,
        judged: Judged,
        written: Rewritten,
        samples: Samples,
        references: Sequence[Outputs],
    ) -> Judged:
        """Add the file's result to a verdict, see `judged_as_file`.

        It says whether the search has to run files, as no decision explains the failure.
        """
        passes = (LowSums(self._bench.samples, self._bench.references),)
        model, case, budget = written.model, self._variant.case, self.space.budget
        result = judged_as_file(
            judged, model, case, self._settings, samples, references, passes, budget
        )
        run = result.verdict.as_file
        if run is None or run.passed is not False:
            return result
        return replace(result, as_file=self._are_hopeless or not run.flips)

    def _run(
        self, written: Rewritten, samples: Samples, references: Sequence[Outputs]
    ) -> list[Outputs]:
        return run_as_file(written.model, samples, references, runtime=self._settings.runtime)

    def _worst(
        self, samples: Samples, references: Sequence[Outputs], results: Sequence[Outputs]
    ) -> tuple[int, ...]:
        case = self._variant.case
        judged = judge_outputs(results, samples, references, case.criterion, case.metric)
        return judged.failing[:FEW_SAMPLES]

    def _repair(self, kept: Nodes, flips: Sequence[Flip], worst: Sequence[int]) -> Nodes:
        """Return a few nodes that make the plan hold both ways; empty if nothing helps."""
        space, variant, bench = self.space, self._variant, self._bench
        first = first_of(self._decisions[f.node] for f in flips)
        near = dict.fromkeys(n for d in first for n in leading_to(d, variant.roles))
        chain = [n for n in near if n not in kept and n not in variant.lowered]
        unrounded = predicting(space, "all")
        samples = bench.samples.select(worst)
        references = [bench.references[i] for i in worst]

        def holds(nodes: Sequence[NodeName]) -> bool:
            more = kept | frozenset(nodes)
            if not space.evaluate(more).passed or not unrounded.evaluate(space.fresh(more)).passed:
                return False
            with suppress(CaseError, RunFailed):
                results = self._run(variant.write(space.plan(more))[0], samples, references)
                case = variant.case
                judged = judge_outputs(results, samples, references, case.criterion, case.metric)
                return judged.verdict.passed
            return False

        return _narrowed(space.budget, chain, holds)

    def _guards(self, flips: Sequence[Flip], nodes: Nodes, excess: float) -> Iterator[Guard]:
        by_name = {f.node: f for f in flips}
        for decision in first_of(self._decisions[f.node] for f in flips):
            leading = [n for n in leading_to(decision, self._variant.roles) if n in nodes]
            if not leading:
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
                nodes=tuple(leading),
                severity=graded(Band.INEXACT, excess),
            )


def judged_as_file(
    judged: Judged,
    candidate: ir.Model,
    case: Case,
    settings: Settings,
    samples: Samples,
    references: Sequence[Outputs],
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
        seen: Other samples on which it has to hold with sums in FP16.
        budget: Pays for the runs with sums in FP16; see `lowest_sums`.
    """
    verdict, runner = judged.verdict, f"ONNX Runtime {runtime_version()}"
    if not verdict.passed:
        return judged
    try:
        results = run_as_file(candidate, samples, references, runtime=settings.runtime)
    except (CaseError, RunFailed) as error:
        results, run = [], FileRun(runner=runner, not_run=error.message, outputs={})
    else:
        filed = judge_outputs(results, samples, references, case.criterion, case.metric)
        run = FileRun(
            runner=runner,
            passed=filed.verdict.passed,
            outputs=filed.verdict.outputs,
            metric=filed.verdict.metric,
        )
        if not filed.verdict.passed:
            few = samples.select(filed.failing[:FEW_SAMPLES])
            flips = _flips(candidate, decisions(case.network), few, settings)
            return _failed(judged, filed, run.model_copy(update={"flips": flips}))
    passes = (LowSums(samples, references, results), *seen)
    sums = lowest_sums(candidate, passes, case, settings, budget or Budget())
    fields = {"as_file": run, "sums": sums}
    return replace(judged, verdict=verdict.model_copy(update=fields))


def _failed(judged: Judged, filed: Judged, run: FileRun) -> Judged:
    """Return a verdict with that on a file that failed."""
    update = {"as_file": run, "failure_bound": filed.verdict.failure_bound}
    flipped = map(_flip_failure, run.flips[: wording.FEW])
    failures = (*under("file", "", filed.verdict.failures), *flipped)
    verdict = with_failures(judged.verdict.model_copy(update=update), failures)
    return replace(judged, verdict=verdict, failing=filed.failing)


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
) -> Nodes:
    """Return few nodes of a chain that hold; empty if all of it does not, or there is no time."""
    few = list[NodeName]()

    def narrow() -> None:
        if chain and holds(chain):
            few[:] = chain
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


def demand_files(space: Space, heldout: HeldOut) -> None:
    """Demand of plans that their files pass, on samples that joined because files failed there."""
    bench = space.bench
    places = [i for i, name in enumerate(bench.samples.ids) if name in heldout.filed]
    if places:
        references = tuple(bench.references[i] for i in places)
        bench.demand(Filed(space, bench.samples.select(places), references))


@dataclass(frozen=True)
class Filed:
    """Runs the files of plans that pass; samples on which files failed demand that.

    Attributes:
        space: The plans.
        samples: Those samples; at least one.
        references: Reference outputs of each.
    """

    space: Space
    samples: Samples
    references: tuple[Outputs, ...]

    def __call__(self, plan: Plan) -> float:
        """Return the error of a plan's file, relative to what a trial may use.

        0 if ONNX Runtime refuses the file, as a verdict does not count that either. With a metric
        that needs more samples than these, it is the error on all samples of the search.
        """
        bench, runtime = self.space.bench, plan.of.settings.runtime
        model = plan.of.write(plan)[0].model
        pairs = (self.samples, self.references), (bench.samples, bench.references)
        for samples, references in pairs:
            self.space.budget.spend("trial", len(samples))
            try:
                results = run_as_file(model, samples, references, runtime=runtime)
            except CaseError:
                return 0.0
            except RunFailed:
                return inf
            with suppress(CaseError):
                return bench.tolerance.excess(results, samples, references)
        return inf
