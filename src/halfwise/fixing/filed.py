"""Whether a plan also passes as its file runs, in ONNX Runtime and in each target."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import onnx_ir as ir

from halfwise import wording
from halfwise.case import FEW_SAMPLES, Case, FileRunner, Samples, Settings
from halfwise.emulation.budget import Budget
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
    AsFile,
    Judged,
    LowSums,
    file_runners,
    flips,
    judge_outputs,
    lowest_sums,
    run_as_file,
    run_files,
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
        runs = result.verdict.as_file
        if all(run.passed is not False for run in runs):
            return result
        return replace(result, as_file=self._are_hopeless or not any(run.flips for run in runs))

    def _run(
        self, written: Rewritten, samples: Samples, references: Sequence[Outputs]
    ) -> list[Outputs]:
        runner = file_runners(self._settings)[0]
        return run_as_file(written.model, samples, references, runner)

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
    """Add what ONNX Runtime and each target make of the candidate's file; the worst decides.

    And whether a file that passes also does with sums in FP16. A verdict that failed already is
    returned without a run.

    Args:
        judged: Verdict on the candidate's emulation.
        candidate: A typed model with the names of the case.
        case: Reference, criterion and metric.
        settings: Where to run, the targets, and the format of sums.
        samples: The judged samples.
        references: Reference outputs of each sample.
        seen: Other samples on which it has to hold with sums in FP16.
        budget: Pays for the runs with sums in FP16; see `lowest_sums`.
    """
    if not judged.verdict.passed:
        return judged
    files = [*run_files(candidate, samples, references, settings)]
    question = samples, references, case.criterion, case.metric
    outputs = [None if f.results is None else judge_outputs(f.results, *question) for f in files]
    runs = [*map(_file_run, files, outputs)]
    failures = [failure for pair in zip(files, outputs, strict=True) for failure in _against(*pair)]
    failed = [filed for filed in outputs if filed is not None and not filed.verdict.passed]
    if runs[0].passed is False:
        # The emulation has this arithmetic, and the tensors inside.
        few = samples.select(failed[0].failing[:FEW_SAMPLES])
        flips = _flips(candidate, decisions(case.network), few, settings)
        runs[0] = runs[0].model_copy(update={"flips": flips})
        failures += map(_flip_failure, flips[: wording.FEW])
    fields: dict[str, object] = {"as_file": tuple(runs)}
    if failed:
        fields["failure_bound"] = failed[0].verdict.failure_bound
    if not failures:
        passes = (LowSums(samples, references, files[0].results or ()), *seen)
        fields["sums"] = lowest_sums(candidate, passes, case, settings, budget or Budget())
    verdict = judged.verdict.model_copy(update=fields)
    verdict = with_failures(verdict, failures) if failures else verdict
    failing = dict.fromkeys(index for filed in failed for index in filed.failing)
    return replace(judged, verdict=verdict, failing=tuple(failing))


def _file_run(file: AsFile, filed: Judged | None) -> FileRun:
    name, version = file.runner.name, file.runner.version
    run = FileRun(runner=name, version=version, not_run=file.error, outputs={})
    update: dict[str, object] = {"passed": False} if file.error and file.required else {}
    if filed is not None:
        verdict = filed.verdict
        fields = {"passed": verdict.passed, "outputs": verdict.outputs, "metric": verdict.metric}
        return run.model_copy(update=fields)
    if file.built is not None:
        names = file.built.folded
        update = {"built": True, "folded": names, "passed": False if names else None}
    return run.model_copy(update=update)


def _against(file: AsFile, filed: Judged | None) -> Iterator[Failure]:
    """Yield why a file fails in a runner."""
    name = file.runner.name
    if filed is not None:
        yield from under("file", name, filed.verdict.failures)
    elif file.built is not None and (nodes := file.built.folded):
        names = {"runner": name, "nodes": wording.listed(nodes)}
        yield Failure(kind="folded", names=names, numbers={"elements": len(nodes)})
    elif file.required and file.error:
        yield Failure(kind="refused", names={"runner": name, "why": file.error})


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


def wrong_on_targets(space: Space, plan: Plan) -> tuple[str, ...]:
    """Return a few samples of the search on which targets get the file of a plan wrong.

    None where a target refuses the file: no other plan would change that.
    """
    case, settings, bench = plan.of.case, plan.of.settings, space.bench
    model, wrong = plan.of.write(plan)[0].model, dict[str, None]()
    for runner in settings.targets:
        if runner.runs:
            space.budget.spend("judge", len(bench.samples))
            with suppress(CaseError, RunFailed):
                results = run_as_file(model, bench.samples, bench.references, runner)
                question = bench.samples, bench.references, case.criterion, case.metric
                failing = judge_outputs(results, *question).failing[:FEW_SAMPLES]
                wrong |= {bench.samples.ids[i]: None for i in failing}
    return tuple(wrong)


def demand_files(space: Space, heldout: HeldOut) -> None:
    """Demand of plans that their files pass, on samples where files failed."""
    bench = space.bench
    places = [i for i, name in enumerate(bench.samples.ids) if name in heldout.demanding]
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
        """Return the largest error of a plan's file in a runner, relative to what a trial may use.

        0 if ONNX Runtime refuses the file, as a verdict does not count that either. With a metric
        that needs more samples than these, it is the error on all samples of the search.
        """
        model, excess = plan.of.write(plan)[0].model, 0.0
        for runner in file_runners(plan.of.settings):
            if runner.runs and excess <= 1:
                excess = max(excess, self._excess(model, runner))
        return excess

    def _excess(self, model: ir.Model, runner: FileRunner) -> float:
        bench = self.space.bench
        pairs = (self.samples, self.references), (bench.samples, bench.references)
        for samples, references in pairs:
            self.space.budget.spend("trial", len(samples))
            try:
                results = run_as_file(model, samples, references, runner)
            except CaseError:
                return 0.0
            except RunFailed:
                return inf
            with suppress(CaseError):
                return bench.tolerance.excess(results, samples, references)
        return inf
