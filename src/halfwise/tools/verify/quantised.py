"""Which pairs of a quantised model make its outputs wrong: those that mend them when left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.bypassed import BypassRunner, Site
from halfwise.errors import CaseError
from halfwise.fixing.plan.halving import lowered
from halfwise.fixing.trial import Trials
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.quantisation.channels import small_channels
from halfwise.graph.quantisation.exclusion import excluding
from halfwise.metrics import Metric, Outputs
from halfwise.observing import DETAIL_SAMPLES
from halfwise.observing.quantised import Reach, reaches
from halfwise.records import Criterion, NodeName, PairFault, PairLoss, QuantisationLoss

MOST_CAUSES = 8
"""Pairs up to which they are told as causes: where many have to go, it is 8 bits that are few."""


@dataclass(frozen=True)
class Question:
    """A quantised model whose outputs are not acceptable.

    Attributes:
        network: It.
        original: The model before quantisation; None where there is none, and its weights stay.
        samples: What it was judged on.
        references: What the outputs should be, of each.
        criterion: What is acceptable.
        metric: Task metric; decides alone where given.
        accumulate: Format of running sums inside low ops.
        runtime: Where it runs.
    """

    network: Network
    original: Network | None
    samples: Samples
    references: Sequence[Outputs]
    criterion: Criterion
    metric: Metric | None = None
    accumulate: str = "fp32"
    runtime: Runtime = CPU

    @cached_property
    def runner(self) -> BypassRunner:
        """Runs it with any pairs left out."""
        return BypassRunner(
            self.network, self.original, accumulate=self.accumulate, runtime=self.runtime
        )

    @cached_property
    def trials(self) -> Trials:
        """Tries which of them may stay."""
        return Trials(
            runner=self.runner,
            samples=self.samples,
            references=list(self.references),
            criterion=self.criterion,
            factor=1.0,
            metric=self.metric,
            resolve=lambda left_out: left_out,
        )


def quantisation_loss(question: Question) -> QuantisationLoss | None:
    """Return which pairs have to be left out so that the outputs are acceptable.

    First each pair alone, with all others left out, on the worst sample: that ranks them. Then as
    many as can are taken back, the least harmful first, by halves; those that are left are needed,
    each of them, and a cause.

    Returns:
        None where there is no pair that can be left out, or the model does not load so.
    """
    try:
        sites = {site.name: site for site in question.runner.sites}
    except CaseError:
        return None
    if not sites:
        return None
    trials, every = question.trials, frozenset(sites)
    errors = trials.survey(frozenset())
    found = QuantisationLoss(
        pairs=len(sites),
        samples=len(question.samples),
        error=trials.excess(frozenset()),
        without_all=trials.excess(every),
        explained=trials.evaluate(every, confirm=True).passed,
    )
    if not found.explained:
        return found
    alone = {name: trials.contribution(every - {name}) for name in sites}
    ranked = sorted(sites, key=lambda name: alone[name])
    needed = _needed(every, ranked, trials)
    causes: tuple[PairLoss, ...] = ()
    if 0 < len(needed) <= MOST_CAUSES:
        worst = sorted(range(len(errors)), key=lambda i: -errors[i])[:DETAIL_SAMPLES]
        causes = _causes(
            [sites[n] for n in reversed(ranked) if n in needed], alone, worst, question
        )
    return found.model_copy(
        update={"needed": len(needed), "without": trials.excess(needed), "causes": causes}
    )


def _needed(
    every: frozenset[NodeName], ranked: Sequence[NodeName], trials: Trials
) -> frozenset[NodeName]:
    """Return pairs that have to be left out: without any one of them, the outputs are wrong."""
    groups = [frozenset((name,)) for name in ranked]
    needed = lowered(every, groups, lambda left_out: trials.evaluate(left_out).passed)
    if not trials.evaluate(needed, confirm=True).passed:
        confirmed = partial(trials.evaluate, confirm=True)
        needed = lowered(every, groups, lambda left_out: confirmed(left_out).passed)
    for name in ranked if len(needed) <= MOST_CAUSES else ():
        if name in needed and trials.evaluate(needed - {name}, confirm=True).passed:
            needed -= {name}
    return needed


def _causes(
    sites: Sequence[Site],
    alone: dict[NodeName, float],
    worst: Sequence[int],
    question: Question,
) -> tuple[PairLoss, ...]:
    trials = question.trials
    needed = frozenset(site.name for site in sites)
    floats = [site for site in sites if site.pair.source is not None]
    samples = question.samples.select(worst)
    # Behind a pair that clips, others would seem to be too wide.
    every = [node_name(node) for node in question.network.nodes()]
    without = excluding(question.network, every, question.original)
    seen = reaches(without, [s.pair for s in floats], samples, runtime=question.runtime)
    reach = dict(zip((site.name for site in floats), seen, strict=True))
    found = []
    for site in sites:
        its, others = reach.get(site.name), needed - {site.name}
        loss = _described(site, its).model_copy(
            update={"alone": alone[site.name], "restored": trials.excess(others)}
        )
        if loss.rescale is not None:
            results = [
                question.runner.run(sample, others, {site.name: loss.rescale})
                for sample in question.samples
            ]
            loss = loss.model_copy(update={"rescaled": trials.excess_of(results)})
        found.append(loss)
    return tuple(found)


def _described(site: Site, reach: Reach | None) -> PairLoss:
    """Return what is known of a pair without running the model."""
    pair = site.pair
    value = pair.dequantise.outputs[0] if pair.source is None else pair.source
    loss = PairLoss(
        tensor=tensor_name(value),
        node=site.name,
        readers=tuple(node_name(node) for node in site.readers),
        fault=_fault(site, reach),
        alone=0.0,
        restored=0.0,
    )
    if reach is None:
        return loss
    is_one = pair.axis is None and value.const_value is None
    told = {
        "beyond": reach.beyond,
        "clipped": reach.clipped,
        "limit": reach.limit,
        "reach": reach.largest,
        "usual": reach.usual,
        "rescale": _rescale(loss.fault, reach) if is_one else None,
    }
    return loss.model_copy(update=told)


def _rescale(fault: PairFault, reach: Reach) -> float | None:
    if fault == "outlier":
        return reach.usual / reach.limit
    return reach.factor if fault in ("saturated", "wide") else None


def _fault(site: Site, reach: Reach | None) -> PairFault:
    slots = [(node, slot) for each in site.pairs for node, slot in each.readers]
    if any(small_channels(site.pair, node, slot) is not None for node, slot in slots):
        return "channels"
    return (reach and reach.fault) or "rounding"
