"""Which Q/DQ pairs make a quantised model's outputs wrong: leaving them out mends the outputs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from math import inf

from halfwise.case import CPU, Runtime, Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.bypassed import BypassRunner, Site
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.trial import Trials
from halfwise.graph.excluding import excluding
from halfwise.graph.model import Network, node_name
from halfwise.graph.quantised import small_channels
from halfwise.metrics import Metric, Outputs
from halfwise.observing import DETAIL_SAMPLES
from halfwise.observing.quantised import Reach, reaches
from halfwise.progress import Silent, Watcher
from halfwise.records import Criterion, NodeName, PairFault, PairLoss, QuantisationLoss, Right

MOST_CAUSES = 8
"""Largest number of pairs reported as causes: if more must go, 8 bits are too few."""
_MOST_TRIALS = 128
"""Trials of halves: 8 pairs among 500 take about 100."""


@dataclass(frozen=True)
class Question:
    """A quantised model whose outputs are not acceptable.

    Attributes:
        network: The quantised model.
        original: The model before quantisation; None if unknown: then the weights stay.
        samples: Samples it was judged on.
        references: Right outputs of each sample.
        criterion: Criterion for acceptable outputs.
        metric: Task metric; decides alone if given.
        accumulate: Format of running sums inside low ops.
        runtime: Where it runs.
        right: Source of the references.
        watcher: Receives progress.
        budget: Ends the search for pairs; what three runs over the samples show is exempt.
    """

    network: Network
    original: Network | None
    samples: Samples
    references: Sequence[Outputs]
    criterion: Criterion
    metric: Metric | None = None
    accumulate: str = "fp32"
    runtime: Runtime = CPU
    right: Right = "original"
    watcher: Watcher = field(default_factory=Silent)
    budget: Budget = field(default_factory=Budget)

    @cached_property
    def runner(self) -> BypassRunner:
        """Runs the model with any set of pairs left out."""
        return BypassRunner(
            self.network, self.original, accumulate=self.accumulate, runtime=self.runtime
        )

    @cached_property
    def trials(self) -> Trials:
        """Tries which pairs may stay."""
        return Trials(
            runner=self.runner,
            samples=self.samples,
            references=list(self.references),
            criterion=self.criterion,
            factor=1.0,
            metric=self.metric,
            resolve=lambda left_out: left_out,
            spend=lambda: self.budget.spend("trial"),
        )


def allowance(settings: Settings, samples: Samples) -> Budget:
    """Return the budget of a search over these samples: that of `fix`."""
    return Budget(settings.time_budget, work=settings.budget * len(samples))


def quantisation_loss(question: Question) -> QuantisationLoss | None:
    """Return the pairs to leave out for acceptable outputs.

    With all other pairs left out, tries halves of the pairs on the worst sample, then halves of the
    more harmful half, to find those that do most harm alone. As many of these as possible are put
    back; each of the rest is needed and a cause. If these do not suffice, the causes are pairs with
    a fault that make most of the error.

    Returns:
        None if no pair can be left out, or if ONNX Runtime cannot run that model, perhaps for lack
        of memory: the verdict stands without.
    """
    with suppress(CaseError, RunFailed):
        if sites := {site.name: site for site in question.runner.sites}:
            question.watcher.stage("quantisation")
            return _loss(question, sites)
    return None


def _loss(question: Question, sites: Mapping[NodeName, Site]) -> QuantisationLoss:
    trials, every = question.trials, frozenset(sites)
    errors = trials.survey(frozenset(), question.watcher)
    found = QuantisationLoss(
        pairs=len(sites),
        samples=len(question.samples),
        error=trials.excess(frozenset()),
        without_all=trials.excess(every),
        explained=trials.evaluate(every, confirm=True).passed,
        right=question.right,
    )
    if not found.explained:
        return found.model_copy(update={"foreign": question.runner.foreign})
    if trials.evaluate(frozenset(), confirm=True).passed:
        return found.model_copy(update={"needed": 0, "without": found.error})
    alone: dict[NodeName, float] = {}

    def search() -> dict[str, object]:
        _find_gravest(alone, [*sites], every, trials)
        worst = sorted(range(len(errors)), key=lambda i: -errors[i])[:DETAIL_SAMPLES]
        return _caused(alone, _described([*sites.values()], worst, question), question)

    told = question.budget.within("search", search, {"cut": True})
    gravest = tuple(sites[name].tensor for name in alone)
    return found.model_copy(update={"gravest": gravest, **told})


def _caused(
    alone: Mapping[NodeName, float], known: Mapping[NodeName, PairLoss], question: Question
) -> dict[str, object]:
    """Return the number of needed pairs, the error without them, and the causes."""
    trials, ranked = question.trials, [*alone]
    if (needed := _needed(ranked[::-1], trials)) is None:
        harm = _by_harm([n for n, loss in known.items() if loss.fault != "rounding"], trials)
        ranked = [*harm]
        needed = _needed(ranked[::-1], trials) if ranked else None
    if needed is None:
        causes = _faulty(harm, known, question)
        left_out = frozenset(cause.node for cause in causes) or frozenset(alone)
        return {"without": trials.excess(left_out), "causes": causes}
    gravest = [name for name in ranked if name in needed][:MOST_CAUSES]
    causes = _measured(gravest, needed, known, question)
    return {"needed": len(needed), "without": trials.excess(needed), "causes": causes}


def _find_gravest(
    found: dict[NodeName, float],
    names: Sequence[NodeName],
    every: frozenset[NodeName],
    trials: Trials,
) -> None:
    """Add at most `MOST_CAUSES` pairs that do most harm alone to `found`, with their errors."""
    waiting: list[tuple[float, int, Sequence[NodeName]]] = [(-inf, 0, names)]
    tried = 0
    while waiting and len(found) < MOST_CAUSES:
        error, _, group = heappop(waiting)
        if len(group) == 1:
            found[group[0]] = -error
            continue
        if tried >= _MOST_TRIALS:
            break
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            tried += 1
            heappush(waiting, (-trials.contribution(every.difference(half)), tried, half))


def _needed(ranked: Sequence[NodeName], trials: Trials) -> frozenset[NodeName] | None:
    """Return the pairs in `ranked`, least harmful first, that must be left out.

    None if leaving out all is not enough.
    """
    needed = frozenset(ranked)
    if not trials.evaluate(needed, confirm=True).passed:
        return None
    for name in ranked:
        if trials.evaluate(needed - {name}, confirm=True).passed:
            needed -= {name}
    return needed


def _by_harm(faults: Sequence[NodeName], trials: Trials) -> dict[NodeName, float]:
    """Return the worst sample's error by pair, if of these only that pair quantises."""
    every = frozenset(faults)
    errors = {name: trials.contribution(every - {name}) for name in faults}
    return dict(sorted(errors.items(), key=lambda each: -each[1]))


def _faulty(
    harm: Mapping[NodeName, float], known: Mapping[NodeName, PairLoss], question: Question
) -> tuple[PairLoss, ...]:
    """Return at most `MOST_CAUSES` pairs whose faults make most of the error, or none.

    Each alone at least doubles the worst sample's error without all faulty pairs.
    """
    trials = question.trials
    left = trials.contribution(frozenset(harm)) if harm else 0.0
    blamed = [name for name in harm if harm[name] > 2 * left][:MOST_CAUSES]
    least = 0.0 if trials.metric is None else 1.0
    whole = trials.excess(frozenset()) - least
    while blamed and trials.excess(frozenset(blamed)) - least <= whole / 2:
        causes = _measured(blamed, frozenset(blamed), known, question)
        faulty = tuple(cause for cause in causes if cause.fault != "rounding")
        if len(faulty) == len(blamed):
            return causes
        blamed = [cause.node for cause in faulty]
    return ()


def _described(
    sites: Sequence[Site], worst: Sequence[int], question: Question
) -> dict[NodeName, PairLoss]:
    """Return what is known about pairs without leaving them out."""
    floats = [s for s in sites if s.pair.source is not None and s.pair.has_scales]
    samples = question.samples.select(worst)
    # Behind a pair that clips, others would seem too wide.
    every = [node_name(node) for node in question.network.nodes()]
    without = excluding(question.network, every, question.original)
    seen = reaches(without, [s.pair for s in floats], samples, runtime=question.runtime)
    reach = dict(zip((site.name for site in floats), seen, strict=True))
    return {site.name: _loss_of(site, reach.get(site.name)) for site in sites}


def _measured(
    names: Sequence[NodeName],
    left_out: frozenset[NodeName],
    known: Mapping[NodeName, PairLoss],
    question: Question,
) -> tuple[PairLoss, ...]:
    """Return the cost of pairs and of other scales; no fault if other scales do not help."""
    trials, found = question.trials, []
    every = frozenset(site.name for site in question.runner.sites)
    for name in names:
        loss, others = known[name], left_out - {name}
        told = {"alone": trials.contribution(every - {name}), "restored": trials.excess(others)}
        if loss.rescale is not None:
            results = [
                question.runner.run(sample, others, {name: loss.rescale})
                for sample in question.samples
            ]
            told["rescaled"] = trials.excess_of(results)
        loss = loss.model_copy(update=told)
        helps = loss.rescaled is None or loss.rescaled < loss.restored
        found.append(loss if helps else loss.model_copy(update={"fault": "rounding"}))
    return tuple(found)


def _loss_of(site: Site, reach: Reach | None) -> PairLoss:
    """Return what is known about a pair without running the model."""
    pair = site.pair
    loss = PairLoss(
        tensor=site.tensor,
        node=site.name,
        readers=tuple(node_name(node) for node in site.readers),
        fault=_fault(site, reach),
        bits=pair.dtype.bitwidth,
        alone=0.0,
        restored=0.0,
    )
    if reach is None:
        return loss
    is_one = pair.axis is None and pair.source is not None and pair.source.const_value is None
    told = {
        "beyond": reach.beyond,
        "clipped": reach.clipped,
        "limit": reach.limit,
        "ends": reach.ends if reach.limit else None,
        "reach": reach.largest,
        "usual": reach.usual,
        "rescale": _rescale(loss.fault, reach) if is_one else None,
    }
    return loss.model_copy(update=told)


def _rescale(fault: PairFault, reach: Reach) -> float | None:
    if fault == "outlier":
        return reach.usual / reach.limit
    is_scaled = fault in ("saturated", "wide") and reach.factor != 1
    return reach.factor if is_scaled else None


def _fault(site: Site, reach: Reach | None) -> PairFault:
    if not all(pair.has_scales for pair in site.pairs):
        return "scale"
    slots = [(node, slot) for each in site.pairs for node, slot in each.readers]
    if any(small_channels(site.pair, node, slot) is not None for node, slot in slots):
        return "channels"
    return (reach and reach.fault) or "rounding"
