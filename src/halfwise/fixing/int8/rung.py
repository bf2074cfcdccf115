"""From a passing plan to plans with INT8: which nodes may have it, and the record of such a plan.

To the search, an INT8 node is what a low one was before: the cheaper form. What it "keeps" is left
out of INT8 and has the low format; nodes kept by the plan below stay kept, all in FP32: no plan
with INT8 has BF16.
"""

from functools import partial

from halfwise.emulation.budget import Budget
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.bench import Bench
from halfwise.fixing.fixed import Fixed, kept_nodes, plan_record
from halfwise.fixing.following import Stage
from halfwise.fixing.int8.placing import (
    FIRST_OPSET,
    QuantisedModel,
    peaks,
    quantisable,
    quantised,
)
from halfwise.fixing.plan.plan import Nodes, Plan, Quantisation
from halfwise.fixing.plan.rules import Start
from halfwise.fixing.plan.search import SearchResult
from halfwise.fixing.space import Int8Space, Space
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role
from halfwise.progress import Watcher
from halfwise.records import KeptNode, Remark, replace
from halfwise.records import Plan as PlanRecord


def int8_plan_of(
    below: PlanRecord, space: Int8Space, plan: Plan, result: SearchResult, placed: Nodes, casts: int
) -> PlanRecord:
    """Return the record of a plan.

    Args:
        below: The plan in the low format that it extends.
        space: The plans with INT8.
        plan: The plan.
        result: What it leaves out of INT8, and results of trials.
        placed: All nodes that its file computes in FP32.
        casts: Cast nodes in its model.
    """
    variant, int8 = space.variant, plan.int8
    network, roles = variant.case.network, variant.roles
    left_out = kept_nodes(
        network,
        space.choices - int8,
        (),
        {},
        result.excess_without,
        nonfinite_without=result.nonfinite_without,
        contributions=result.contributions,
    )
    kept = (replace(k, precision="fp32") for k in below.keep)
    more = space.held_nodes - space.extended
    held = kept_nodes(network, more, (), {}, {}, held=space.held)
    quantisation = space.quantisation
    record = plan_record(
        network,
        roles,
        variant.settings.fmt,
        placed,
        casts,
        keep=(*kept, *held),
        minimal=result.minimal,
        lowered=below.lowered,
        remarks=below.remarks,
        low_io=variant.low_io,
    )
    return replace(
        record,
        repairs=below.repairs,
        int8=tuple(name for name in map(node_name, network.nodes()) if name in int8),
        left_out=tuple(_left_out(kept, below, quantisation, int8) for kept in left_out),
    )


def _left_out(
    kept: KeptNode, below: PlanRecord, quantisation: Quantisation, int8: Nodes
) -> KeptNode:
    """Return a node that is left out; of a sum, with the convolution if that is the reason."""
    kept = replace(kept, precision=below.low)
    product = quantisation.sums.get(kept.node)
    if product is None or product in int8 or kept.error_without is not None or kept.because is None:
        return kept
    because = replace(kept.because, beside=product)
    return replace(kept, because=because, unknown=False)


def int8_rung(
    below: Fixed,
    stage: Stage,
    watcher: Watcher,
    source: QuantisedModel | None = None,
    start: PlanRecord | None = None,
) -> Int8Space | Fixed:
    """Return the plans with INT8; `below` if there are none.

    Args:
        below: The passing plan in the low format.
        stage: Begins a stage of the run.
        watcher: Receives progress.
        source: See `quantisation_of`.
        start: A plan to start from, with or without INT8.
    """
    low = below.space
    start = start if start is not None and start.has_int8 else None
    try:
        quantisation = quantisation_of(low, below.result.kept, watcher, source)
        if quantisation is None or not quantisation.nodes:
            return below
        with stage("emulate"):
            space = _space(low, below.result.kept, quantisation)
            space.survey(space.islands)
            if start is not None:
                out = space.choices & {node.node for node in start.left_out}
                note = Remark(kind="start-int8", numbers={"elements": len(out)})
                space = space.starting(Start(out, note))
    except (CaseError, RunFailed) as error:
        why = Remark(kind="int8-untried", names={"why": error.message})
        watcher.note(f"INT8 was not tried: {error.message}")
        return below.telling(why)
    return space


def _space(low: Space, kept: Nodes, quantisation: Quantisation) -> Int8Space:
    settings, bench = low.variant.settings, low.bench
    budget = Budget(settings.time_budget, work=settings.budget * len(low.variant.case.calibration))
    budget.took_in(low.budget)
    spend = lambda: budget.spend("trial")  # noqa: E731
    return Int8Space(
        low.variant,
        Bench(bench.judge, bench.samples, bench.references, bench.tolerance, spend),
        low.observed,
        budget,
        low.watcher,
        repairs=low.repairs,
        below=low,
        extended=kept,
        quantisation=quantisation,
    )


def quantisation_of(
    low: Space,
    kept: Nodes,
    watcher: Watcher,
    source: QuantisedModel | None = None,
) -> Quantisation | None:
    """Return what puts nodes in INT8; None if no node can be INT8.

    Args:
        low: The plans in the low format.
        kept: What the passing plan keeps in FP32, which stays so.
        watcher: Receives progress.
        source: The quantised model to leave nodes out of; without it, ranges are those observed.

    Raises:
        CaseError: nothing has a range.
    """
    network, roles = low.variant.case.network, low.variant.roles
    names = quantisable(network) if source is None else source.pairs
    candidates = frozenset(n for n in names if roles[n].role is Role.COMPUTE) - kept
    is_old = source is None and network.opset < FIRST_OPSET
    if not candidates or is_old:
        old = f", at opset {network.opset}" if is_old else ""
        watcher.note(f"no node in the low format can be INT8{old}")
        return None
    if source is not None:
        return Quantisation(source.place, candidates)
    seen = peaks(low.evidence.observations)
    made = Quantisation(partial(quantised, network, peaks=seen), candidates)
    if not made.nodes:
        raise CaseError(
            "Every product that could be INT8 reads a tensor that has a single value, or no finite "
            "one, on the calibration samples, so there is no range.",
            "Give real samples with varying values.",
        )
    return made
